"""Table pools: synthetic stand-ins for Meta's DLRM data sets, from which the papers' tasks are drawn.

The data sets themselves are 2 GB a batch. What is published about them in text is the number of tables, lookups and distinct rows of
a batch, and its two reuse histograms. The pools have those totals and histograms in expectation; the single tables are
made up (`scripts/fit_pools.py`). For the real tables see `shardwright.workload.dlrm_datasets`.
"""

from __future__ import annotations

from functools import cache
from importlib.resources import files

import numpy as np

from shardwright.errors import InvalidInput
from shardwright.task import AccessProfile, Table

POOLS: dict[str, int] = {"dlrm-2021": 65_536, "dlrm-2022": 131_072}
"""The pools, and the batch size at which each has the published statistics."""

POOL_DIM = 16
"""Dim of every table of a pool, as in DreamShard; the NeuroShard tasks draw their own."""


@cache
def table_pool(name: str) -> tuple[Table, ...]:
    """The tables of a pool: "dlrm-2021" has 856 of them, "dlrm-2022" 788.

    The same tuple is returned each time.

    Raises:
        InvalidInput: no pool has this name.
    """
    if name not in POOLS:
        raise InvalidInput(f"table pool: unknown pool {name!r}; known pools are {', '.join(POOLS)}")
    with (files("shardwright.workload") / "data" / f"{name}.csv").open() as lines:
        columns = np.loadtxt(lines, delimiter=",", skiprows=1)
    return tuple(
        Table(
            f"t{number:03d}",
            int(rows),
            POOL_DIM,
            pooling=float(pooling),
            access=AccessProfile.zipf(int(rows), float(exponent)),
        )
        for number, (rows, pooling, exponent) in enumerate(columns)
    )
