#!/bin/bash
# Everything a cost model needs of one GPU, unattended: checks, copy bandwidth, samples, a summary last. See scripts/README.md.
#
#   scripts/collect_gpu.sh FOLDER [options of `python -m shardwright.measure.collect`]
#
# Environment: DEVICE (cuda), BACKEND (fbgemm), PYTHON (python3), SECONDS_ALLOWED (530: stops in time, and the same command again goes on),
# SAMPLES (6000), PACK (a folder: the samples so far are written there as one small file, also while collecting and however that ends),
# PACK_SECONDS (120: how often).
set -euo pipefail

folder=${1:?usage: scripts/collect_gpu.sh FOLDER [options]}
shift
python=${PYTHON:-python3}
device=${DEVICE:-cuda}
backend=${BACKEND:-fbgemm}
deadline=$((SECONDS + ${SECONDS_ALLOWED:-530}))
sources=$(cd "$(dirname "$0")/../src" && pwd)
export PYTHONPATH="$sources${PYTHONPATH:+:$PYTHONPATH}" PYTHONUNBUFFERED=1

# Never ends the script: what was measured is worth more than an orderly end.
pack() {
  if [[ -z "${PACK:-}" ]]; then return; fi
  mkdir -p "$PACK" || return 0
  if [[ -e "$folder/checks.json" ]]; then cp "$folder/checks.json" "$PACK/checks.json" || true; fi
  nice -n 10 "$python" -m shardwright.measure.samples "$folder" -o "$PACK/samples.parquet" || true
}

# In the background, so that this shell can pack meanwhile and act on a signal at once; ends with the collection's status.
collect() {
  "$python" -m shardwright.measure.collect -o "$folder" --device "$device" --backend "$backend" -n "${SAMPLES:-6000}" \
    --seconds $((deadline - SECONDS)) "$@" &
  local collector=$! next=$((SECONDS + ${PACK_SECONDS:-120}))
  trap 'kill "$collector" 2>/dev/null' TERM INT HUP
  while kill -0 "$collector" 2>/dev/null; do
    sleep 1
    if ((SECONDS < next)); then continue; fi
    pack >/dev/null
    next=$((SECONDS + ${PACK_SECONDS:-120}))
  done
  wait "$collector"
}

status=0
echo "== checks"
"$python" -m shardwright.measure.checks -o "$folder" --device "$device" --backend "$backend" || status=$?

if ((status == 0)); then
  echo "== samples"
  collect "$@" || status=$?
fi

if [[ -n "${PACK:-}" ]]; then
  echo "== packed"
  pack
fi
exit "$status"
