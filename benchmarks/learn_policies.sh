#!/bin/sh
# Makes the bundled policies anew, from the tasks of policies.yaml, seed 0, on the bundled CPU cost model as the world.
#     benchmarks/learn_policies.sh [FOLDER]
# The same machine, versions and seed give the same policies. Figures of the trainings go to out/learned/logs, for TensorBoard; a training
# that is stopped goes on when the script is started again.
set -eu
cd "$(dirname "$0")/.."
target="${1:-src/shardwright/learned/policies}"
logs=out/learned/logs
mkdir -p "$target" "$logs"
export OMP_NUM_THREADS=1
for strategy in dreamshard autoshard; do
    checkpoint="$logs/$strategy-cpu.checkpoint"
    shardwright learn "$strategy" --tasks benchmarks/policies.yaml --simulated --seed 0 --log "$logs/$strategy-cpu" \
        --checkpoint "$checkpoint" --output "$target/$strategy-cpu.safetensors"
    rm -f "$checkpoint"
done
