"""Situations of TorchRec's users, with TorchRec's planner and with ours: what comes out, and whether models train alike.

    python -m tests.drop_in              # plan each situation with both planners
    python -m tests.drop_in --train      # and train those that run on CPUs
    python -m tests.drop_in --page       # write the table to benchmarks/results/drop_in.md

A situation is a row in `refused.py` (what TorchRec's planner refuses), `heard.py` (what its users say beside constraints) or
`trained.py` (what trains on gloo processes). A new one is a `Situation` more in one of their lists, and is then tested.
"""
