"""Parts of `flexshard-traffic`, and the accesses, memories and lines that it compares."""

from __future__ import annotations

from experiments.flexshard.sequence_models import EXCHANGES

ONE_TABLE, MODELS, CLUSTERS, SWEEP = "one table", "models", "clusters", "sweep"
EVERY, PER_DEVICE, PER_HOST = EXCHANGES
SKEWS = (0.8, 0.9, 1.0, 1.1, 1.15, 1.2, 1.3)
SHAPES = {"Zipf 0.8-1.3": (0.8, 1.3), "Zipf 1.1-1.3": (1.1, 1.3)}
FACTORS = (1.1, 1.25, 1.5)
CLUSTER_FACTOR = 1.25
SWEEP_SKEWS, SWEEP_BATCHES, SWEEP_GBITS = (0.8, 1.0, 1.2), (4, 16, 64, 256, 1024, 4096), (10, 100, 400)
LINES = {
    "row_wise": ("row_wise", EVERY),
    "recshard": ("recshard", EVERY),
    "flexshard": ("flexshard", EVERY),
    "row_wise, distinct per host": ("row_wise", PER_HOST),
    "flexshard, distinct per device": ("flexshard", PER_DEVICE),
}
"""Strategies and exchanges of the part on clusters, as its pictures name them."""
SWEPT = (
    ("row_wise", PER_HOST),
    ("flexshard", PER_HOST),
    ("row_wise", EVERY),
    ("recshard", EVERY),
    ("flexshard", EVERY),
)
"""Strategies and exchanges of the sweep."""
