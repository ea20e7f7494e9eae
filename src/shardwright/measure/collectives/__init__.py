"""Collectives measured for real: processes with torch.distributed (gloo on CPUs, NCCL on GPUs), into the sample store.

sampling.py    what is measured: sample i follows from the seed and i alone
volumes.py     the bytes that a sample puts on the links
operations.py  a sample as calls of torch.distributed
timing.py      common starts, start delays, medians
rank.py        the program of one rank
group.py       the ranks of this machine as processes: started, asked, watched, ended
runner.py      what happens when a rank hangs or dies: restart, retry, skip
collect.py     a collection, from start to summary
torchrun.py    the same inside a group that torchrun started, on several hosts
records.py     rows of the store, and reading them
"""
