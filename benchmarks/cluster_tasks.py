"""Tasks on clusters of many hosts: the papers' pool of tables, as it is or with a heavy tail."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from shardwright.task import Table, Task, Topology
from shardwright.workload import random_task

DEVICES_PER_HOST = 8
HOT_SHARE = 0.01  # share of hot tables; at least 2 tables are hot
HOT_LEAST, HOT_MOST = 10.0, 50.0  # factors on the lookups of hot tables
SPREAD = 1.0  # standard deviation of the logarithm of the factors on rows and pooling
MOST_POOLING = 2000.0
FILL = 0.8


def cluster_task(seed: int, *, tables: int, devices: int, device: str, batch_size: int, heavy_tail: bool) -> Task:
    """Return a task of tables from the pool "dlrm-2021" (dims 4 to 128), on hosts of 8 devices.

    A heavy tail multiplies the rows and pooling factor of every table by lognormal numbers (σ = 1). One table in a hundred, at least two,
    gets a further factor of 10 to 50 on its pooling factor (log-uniform, at most 2,000 lookups a sample). A few tables then cost more than
    the mean device.

    Args:
        seed: seed.
        tables: number of tables.
        devices: number of devices; more than 8 must be a multiple of 8.
        device: "cpu" (16 GB a device) or a device type with a preset.
        batch_size: samples a step over all devices.
        heavy_tail: see above.
    """
    drawn = random_task(seed, tables=tables, devices=devices, device=device, batch_size=batch_size, memory="16 GB")
    near = min(devices, DEVICES_PER_HOST)
    topology = (
        Topology(devices // near, near, "cpu", "16 GB", intra_bandwidth="10 GB/s", inter_bandwidth="5 GB/s")
        if device == "cpu"
        else Topology.preset(f"{device}-8", hosts=devices // near, devices_per_host=near)
    )
    chosen = with_heavy_tail(drawn.tables, seed, sum(topology.memory_bytes)) if heavy_tail else drawn.tables
    return replace(drawn, tables=chosen, topology=topology)


def with_heavy_tail(tables: Sequence[Table], seed: int, memory: int) -> tuple[Table, ...]:
    """Apply lognormal factors and make a few tables hot; rows shrink if the weights would fill over 80% of the memory."""
    rng = np.random.default_rng([seed, 1])
    more_rows, more_lookups = np.exp(SPREAD * rng.standard_normal((2, len(tables))))
    hot = rng.choice(len(tables), max(2, round(HOT_SHARE * len(tables))), replace=False)
    more_lookups[hot] *= np.exp(rng.uniform(np.log(HOT_LEAST), np.log(HOT_MOST), size=hot.size))
    weights = sum(table.weight_bytes * factor for table, factor in zip(tables, more_rows, strict=True))
    more_rows *= min(1.0, FILL * memory / weights)
    return tuple(
        replace(table.scaled_rows(float(rows)), pooling=min(table.pooling * float(lookups), MOST_POOLING))
        for table, rows, lookups in zip(tables, more_rows, more_lookups, strict=True)
    )
