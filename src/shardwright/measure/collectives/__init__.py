"""Collectives measured for real: processes with torch.distributed (gloo on CPUs, NCCL on GPUs), into the sample store.

sampling.py    what is measured, and the bytes that it puts on the links: sample i follows from the seed and i alone
rank.py        one rank: joining a group, timing collectives with the others, and the program of a process
group.py       the ranks of this machine as processes: started, asked, watched, ended; what happens when one hangs or dies
collect.py     a collection, from start to summary; rows of the store, and reading them
torchrun.py    the same inside a group that torchrun started, on several hosts
"""
