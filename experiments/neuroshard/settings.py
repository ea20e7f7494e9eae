"""What `neuroshard-table` runs on, and what searches are allowed there."""

from __future__ import annotations

from experiments.entrants import Limits

DEVICES = (4, 8)
MAX_DIMS = (4, 8, 16, 32, 64, 128)
TASKS, TORCHREC_TASKS = 100, 15
QUICK_MAX_DIMS, QUICK_TASKS = (4, 32, 128), 2
QUICK_TORCHREC_TASKS = {4: 1, 8: 0}  # by devices: its planner takes longer than all others together
QUICK_MEASURED = {"devices": 4, "max_dim": 32, "task": 0}
BATCH_SIZE, SEED, ROUNDS = 1024, 2026, 3
LIMITS = Limits(seconds=5.0, torchrec_seconds=60.0)
PLANNED, MEASURED = "planned", "measured"
SETTING = ("devices", "max_dim")
