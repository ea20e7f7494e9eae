#!/bin/bash
# Everything a cost model needs of one GPU, unattended: checks, copy bandwidth, samples, a summary last. See scripts/README.md.
#
#   scripts/collect_gpu.sh FOLDER [options of `python -m shardwright.measure.collect`]
#
# Environment: DEVICE (cuda), BACKEND (fbgemm), PYTHON (python3), SECONDS_ALLOWED (530: stops in time, and the same command again goes on),
# SAMPLES (6000), PACK (a folder: the samples so far are written there as one small store).
set -euo pipefail

folder=${1:?usage: scripts/collect_gpu.sh FOLDER [options]}
shift
python=${PYTHON:-python3}
device=${DEVICE:-cuda}
backend=${BACKEND:-fbgemm}
deadline=$((SECONDS + ${SECONDS_ALLOWED:-530}))
sources=$(cd "$(dirname "$0")/../src" && pwd)
export PYTHONPATH="$sources${PYTHONPATH:+:$PYTHONPATH}" PYTHONUNBUFFERED=1

echo "== checks"
"$python" -m shardwright.measure.checks -o "$folder" --device "$device" --backend "$backend"

echo "== samples"
"$python" -m shardwright.measure.collect -o "$folder" --device "$device" --backend "$backend" -n "${SAMPLES:-6000}" \
  --seconds $((deadline - SECONDS)) "$@"

if [[ -n "${PACK:-}" ]]; then
  echo "== packed"
  rm -rf "$PACK"
  "$python" -m shardwright.measure.pack "$folder" -o "$PACK"
fi
