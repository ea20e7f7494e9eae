"""Steps of TorchRec's `DistributedModelParallel` on plans, measured in rounds: measured and predicted times of steps and phases.

run.py      the ranks (processes of this machine, or those that torchrun started), and the measurements of a plan
tuning.py   a few plans in turns; the fastest measured one is adopted
rank.py     the program of a rank: rounds of every plan with fresh batches, started together; the reports of all ranks
sharded.py  the model of a task, sharded by a plan, in one rank
shared.py   the exchange, the steps and their phases in `shardwright.runtime`
phases.py   times of the phases of a step of TorchRec, from torch's profiler
modules.py  times of modules besides kernels and collectives, measured along with the links of a cluster
memory.py   the bytes that a rank allocated for weights and optimizer state
"""
