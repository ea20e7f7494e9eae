"""Situations of TorchRec's users, with TorchRec's planner and with ours: outcomes of planning, and whether models train alike.

    python -m tests.drop_in              # plan each situation with both planners
    python -m tests.drop_in --train      # and train those that run on CPUs
    python -m tests.drop_in --page       # write the table to benchmarks/results/drop_in.md

A situation is a row in `refused.py` (requests that TorchRec's planner refuses), `heard.py` (requests other than constraints) or
`trained.py` (trainings on gloo processes). Every row is a test. To add a situation, add a `Situation` to one of these lists.
"""
