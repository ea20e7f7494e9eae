"""A plan run by TorchRec on this machine: processes with `DistributedModelParallel`, real batches, step times, phases, memory.

    python -m examples.run_torchrec plan.json --steps 5        (from the repository's root)

sharded.py   the model of a task, sharded by a plan, in one rank
memory.py    the bytes that a rank allocated for weights and optimizer state
phases.py    times of the phases of a step, from torch's profiler
records.py   what is asked of the ranks and what each reports
rank.py      the program of one rank
run.py       the ranks as processes, and the result
"""
