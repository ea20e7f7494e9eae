"""Run a plan with TorchRec on this machine: processes with `DistributedModelParallel`, real batches, step times, phases, memory.

    python -m examples.run_torchrec plan.json --steps 5        (from the repository's root)

sharded.py   the model of a task, sharded by a plan, in one rank
memory.py    the bytes that a rank allocated for weights and optimizer state
phases.py    times of the phases of a step, from torch's profiler
records.py   the request to the ranks and the report of each
rank.py      the program of one rank
run.py       the rank processes, and the result
"""
