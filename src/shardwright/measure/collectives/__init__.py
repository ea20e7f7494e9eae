"""Collectives measured for real: processes with torch.distributed (gloo on CPUs, NCCL on GPUs), into the sample store.

sampling.py    what is measured, and the bytes that it puts on the links: sample i follows from the seed and i alone
timing.py      a sample as calls of torch.distributed; common starts, start delays, medians
rank.py        the program of one rank
membership.py  how processes become ranks of a group
group.py       the ranks of this machine as processes: started, asked, watched, ended; what happens when one hangs or dies
collect.py     a collection, from start to summary
torchrun.py    the same inside a group that torchrun started, on several hosts
records.py     rows of the store, reading them, and what they come to
"""
