"""Measure collectives between processes with torch.distributed (gloo on CPUs, NCCL on GPUs) into the sample store.

sampling.py    the samples to measure, and their bytes on the links; sample i depends only on the seed and i
rank.py        one rank: join a group, time collectives with the other ranks, and the program of its process
group.py       the ranks of this machine as processes: start, ask, watch and end them, and restart after a rank hangs or dies
collect.py     a collection from start to summary; write and read rows of the store
torchrun.py    collect inside a group that torchrun started, on several hosts
"""
