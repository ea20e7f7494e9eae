"""Measure collectives between processes with torch.distributed (gloo on CPUs, NCCL on GPUs).

links.py       the collectives that TorchRec calls, over a ladder of sizes, inside hosts and between them
sampling.py    random all-to-alls for NeuroShard's networks; sample i depends only on the seed and i
collect.py     a collection of these from start to summary; write and read rows of the store
rank.py        one rank: join a group, time collectives with the other ranks, and the program of its process
group.py       the ranks as processes of this machine, or as torchrun started them on several hosts: start, ask, watch and end them
"""
