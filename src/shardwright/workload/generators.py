"""Tasks from publications: public models, and the papers' benchmark tasks, which draw tables from a pool for a small cluster.

Pools are synthetic stand-ins for Meta's DLRM data sets, which are 2 GB a batch. Their published statistics in text are the number of
tables, the lookups and distinct rows of a batch, and its two reuse histograms. The pools match these totals and histograms in
expectation; the single tables are made up (`scripts/fit_pools.py`). For the real tables see `shardwright.workload.dlrm_datasets`.

The papers leave some rules open, and their public code then decides: dims come by halving the largest one, and NeuroShard draws again
until the weights fill at most 15/16 of the cluster's memory.

References:
    [neuroshard] Zha et al., Pre-train and Search: Efficient Embedding Table Sharding with Pre-trained Neural Cost Models, MLSys 2023.
    [dreamshard] Zha et al., DreamShard: Generalizable Embedding Table Placement for Recommender Systems, NeurIPS 2022.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from functools import cache, partial
from importlib.resources import files
from typing import Any, Literal, TypeAlias

import numpy as np

from shardwright.errors import InvalidInput
from shardwright.task import PRESETS, AccessProfile, Table, Task, Topology
from shardwright.task.quantities import format_bytes
from shardwright.task.table import Dtype, row_bytes
from shardwright.task.task import Optimizer
from shardwright.task.topology import Memory

POOLS: dict[str, int] = {"dlrm-2021": 65_536, "dlrm-2022": 131_072}
"""Batch size at which each pool has the published statistics."""

POOL_DIM = 16
"""Dim of every table of a pool, as in DreamShard; the NeuroShard tasks draw their own."""

PUBLIC_MODELS = {
    "mlperf-dlrm-dcnv2": "mlperf_dlrm_dcnv2",
    "hugectr-180": "hugectr_180_tables",
    "hugectr-200": "hugectr_200_tables",
    "hugectr-7": "hugectr_7_tables",
    "torchrec-dlrm": "torchrec_dlrm",
    **{f"nvidia-{size}": f"nvidia_{size}" for size in ("tiny", "small", "medium", "large", "jumbo")},
}
"""For each model, the name of its entry in the shipped facts."""

ZIPF = {name: 1.1 if name.startswith("hugectr") else 1.05 for name in PUBLIC_MODELS}
"""Zipf exponent of the accesses. HugeCTR's and NVIDIA's are published. That of the Criteo models is an assumption: the ids of
Criteo's click logs fall off about like 1 / rank, and no more exact figure is published in text."""

BATCH_SIZE = 65_536
"""Samples per step if a model publishes no batch size."""

Pool: TypeAlias = str | Sequence[Table]
Seed: TypeAlias = int | np.random.Generator

DRAWS = 1000
MOST_TABLES = 100_000


@cache
def table_pool(name: str) -> tuple[Table, ...]:
    """Return the tables of a pool: "dlrm-2021" has 856 of them, "dlrm-2022" 788.

    Every call returns the same tuple.

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


def random_task(
    seed: Seed,
    *,
    pool: Pool = "dlrm-2021",
    tables: int | tuple[int, int] = (10, 60),
    devices: int = 4,
    max_dim: int = 128,
    dims: Sequence[int] | None = None,
    memory: Memory = "4 GB",
    batch_size: int = 65_536,
    device: str = "rtx2080ti",
    dtype: Dtype = "fp32",
    optimizer: Optimizer = "rowwise_adagrad",
    replacement: bool = True,
    fill: float | None = 15 / 16,
    scale: float = 1.0,
) -> Task:
    """Return a task of tables drawn uniformly from a pool, as in [neuroshard].

    Args:
        seed: seed, or generator to draw with.
        pool: tables, or the name of a pool (see `table_pool`).
        tables: number of tables, or a half-open range to draw it from.
        devices: number of devices, all on one host.
        max_dim: largest dim; each table draws one of max_dim, max_dim / 2, … down to the last multiple of 4.
        dims: dims to draw from, instead of those that max_dim gives.
        memory: bytes for embeddings on a device.
        batch_size: samples per step over all devices.
        device: device type; the links are those of its presets.
        dtype: type of the weights.
        optimizer: optimizer of the embedding weights.
        replacement: whether a table can be drawn twice; a second copy is named `NAME_2`, and so on.
        fill: draw again until the weights take at most this share of all devices' memory; None accepts any draw. A table
            may still be larger than one device, and must then be split.
        scale: factor on the rows of every table, to fit small machines.

    Raises:
        InvalidInput: an option breaks a rule, or such tables do not fit the memory.
    """
    if not 0 < scale < np.inf:
        raise InvalidInput(f"scale {scale!r} must be a finite number greater than 0")
    rng = _generator(seed)
    source = table_pool(pool) if isinstance(pool, str) else tuple(pool)
    count = _draw_count(rng, tables, len(source), replacement)
    topology = _topology(device, devices, memory)
    choices = np.array(halved_dims(max_dim) if dims is None else dims)
    if not choices.size:
        raise InvalidInput("dims is empty; give at least one dim to draw from")
    rows = np.maximum(1, np.rint(np.array([table.rows for table in source]) * scale))
    limit = np.inf if fill is None else fill * sum(topology.memory_bytes)
    for _ in range(DRAWS):
        picked = rng.choice(len(source), count, replace=replacement)
        drawn = rng.choice(choices, count)
        if rows[picked] @ [row_bytes(dtype, dim) for dim in drawn.tolist()] <= limit:
            break
    else:
        raise InvalidInput(
            f"{DRAWS} draws of {count} tables of dims up to {choices.max()} all exceeded {format_bytes(limit)}, the allowed share of "
            f"the memory of {devices} devices; draw fewer tables, or lower max_dim or scale, or raise memory or fill"
        )
    chosen = [replace(source[i], dim=int(dim), dtype=dtype) for i, dim in zip(picked, drawn, strict=True)]
    scaled = chosen if scale == 1 else [table.scaled_rows(scale) for table in chosen]
    return Task(_with_unique_names(scaled), topology, batch_size, optimizer)


def paper_tasks(
    count: int,
    *,
    paper: Literal["neuroshard", "dreamshard"] = "neuroshard",
    devices: int = 4,
    max_dim: int = 128,
    tables: int | tuple[int, int] | None = None,
    pool: Pool = "dlrm-2021",
    seed: int = 0,
    batch_size: int = 65_536,
    device: str = "rtx2080ti",
    scale: float = 1.0,
) -> list[Task]:
    """Return the first `count` tasks of one setting of a paper's benchmark; the n-th depends only on the setting and the seed.

    - neuroshard: T in [10, 60) tables for 4 devices and [20, 120) for 8, with replacement; dims up to `max_dim`; 4 GB a device.
    - dreamshard: 50 tables unless given, each at most once; dim 16 (`max_dim` is not used), fp16; 5 GB a device. The paper draws its
      training and test tasks from the two halves of `split_pool(pool, 0.5)`.

    Raises:
        InvalidInput: there is no such paper, or an option breaks a rule.
    """
    if paper == "neuroshard":
        draw = partial(random_task, tables=tables or (5 * devices // 2, 15 * devices), max_dim=max_dim, memory="4 GB")
    elif paper == "dreamshard":
        draw = partial(
            random_task, tables=tables or 50, dims=(16,), memory="5 GB", dtype="fp16", replacement=False, fill=None
        )
    else:
        raise InvalidInput(f"paper {paper!r} has no task generator; known are neuroshard, dreamshard")
    return [
        draw(_generator([seed, number]), devices=devices, pool=pool, batch_size=batch_size, device=device, scale=scale)
        for number in range(count)
    ]


def split_pool(pool: Pool, share: float, seed: int = 0) -> tuple[tuple[Table, ...], tuple[Table, ...]]:
    """Split a pool into two disjoint ones: a random `share` of the tables to train on, the rest to test on.

    Raises:
        InvalidInput: a side would be empty.
    """
    source = table_pool(pool) if isinstance(pool, str) else tuple(pool)
    count = round(share * len(source)) if 0 < share < 1 else 0
    if not 0 < count < len(source):
        raise InvalidInput(
            f"split_pool: a share of {share} of {len(source)} tables leaves a side empty; give a share between 0 and 1 and a pool to match"
        )
    train = np.zeros(len(source), dtype=bool)
    train[_generator(seed).permutation(len(source))[:count]] = True
    sides = [
        tuple(table for table, in_train in zip(source, train, strict=True) if in_train == side)
        for side in (True, False)
    ]
    return sides[0], sides[1]


def public_model(name: str, *, scale: float = 1.0, zipf: float | None = None) -> tuple[Table, ...]:
    """Return the tables of a public model.

    Args:
        name: `mlperf-dlrm-dcnv2` or `torchrec-dlrm` (26 tables of Criteo's click logs each), `hugectr-180` (177 tables, according to its
            published groups), `hugectr-200` (200 tables), `hugectr-7` (7 giant tables), or one of NVIDIA's synthetic models, in which
            features share tables: `nvidia-tiny` (55 tables), `-small` (107), `-medium` (311), `-large` (612) and `-jumbo` (1,022).
        scale: factor on the rows of every table (a table keeps at least 1 row).
        zipf: Zipf exponent of the accesses, instead of the model's own in `ZIPF`.

    Raises:
        InvalidInput: no model has this name, or scale or zipf breaks a rule.
    """
    facts = _facts(name)
    exponent = ZIPF[name] if zipf is None else zipf
    tables = [
        Table(table_name, rows, dim, pooling, access=AccessProfile.zipf(rows, exponent))
        for table_name, rows, pooling, dim in _specifications(facts)
    ]
    return tuple(tables) if scale == 1 else tuple(table.scaled_rows(scale) for table in tables)


def public_task(name: str, topology: Topology, *, scale: float = 1.0, batch_size: int | None = None) -> Task:
    """Return a public model on a cluster, with its published optimizer and batch size (65,536 if none is published).

    Raises:
        InvalidInput: no model has this name, or an argument breaks a rule.
    """
    facts = _facts(name)
    if batch_size is None:
        batch_size = facts.get("global_batch_size", BATCH_SIZE)
    return Task(public_model(name, scale=scale), topology, batch_size, facts["optimizer"])


def halved_dims(max_dim: int) -> tuple[int, ...]:
    """Return the dims of the papers' tables, ascending: `max_dim`, its half, its quarter, … while 4 divides them.

    Raises:
        InvalidInput: 4 does not divide `max_dim`.
    """
    if max_dim < 4 or max_dim % 4:
        raise InvalidInput(
            f"max_dim is {max_dim}, must be a positive multiple of 4 (the fused kernels read 4 columns at once)"
        )
    dims = [max_dim]
    while dims[-1] % 8 == 0:
        dims.append(dims[-1] // 2)
    return tuple(reversed(dims))


def _generator(seed: Seed | Sequence[int]) -> np.random.Generator:
    """Return the generator of a seed; a given generator is used as it is."""
    try:
        return np.random.default_rng(seed)
    except (TypeError, ValueError):
        raise InvalidInput(f"seed is {seed!r}, must be a whole number of at least 0") from None


def _draw_count(rng: np.random.Generator, tables: int | tuple[int, int], available: int, replacement: bool) -> int:
    """Draw the number of tables of the task."""
    low, high = (tables, tables + 1) if isinstance(tables, int) else tables
    if not 1 <= low < high <= MOST_TABLES + 1:
        raise InvalidInput(
            f"tables is {tables}, must be from 1 to {MOST_TABLES:,}, or a half-open range (low, high) of such numbers with low < high"
        )
    count = int(rng.integers(low, high))
    if available == 0 or (not replacement and count > available):
        raise InvalidInput(
            f"a pool of {available} tables cannot give {count} different ones; give a larger pool, fewer tables, or replacement=True"
        )
    return count


def _topology(device: str, devices: int, memory: Memory) -> Topology:
    """Return one host with `devices` devices and the links of the device type's preset."""
    names = {preset.device: name for name, preset in PRESETS.items()} | {"cpu": "cpu"}
    if device not in names:
        raise InvalidInput(f"device {device!r} has no preset; known devices are {', '.join(names)}")
    return Topology.preset(names[device], hosts=1, devices_per_host=devices, memory=memory)


def _with_unique_names(tables: Sequence[Table]) -> list[Table]:
    """Rename later tables with the same name to NAME_2, NAME_3 and so on."""
    taken: set[str] = {table.name for table in tables}
    seen: dict[str, int] = {}
    result = []
    for table in tables:
        name, number = table.name, seen.get(table.name, 0) + 1
        while number > 1 and (name := f"{table.name}_{number}") in taken:
            number += 1
        seen[table.name] = number
        taken.add(name)
        result.append(replace(table, name=name))
    return result


def _specifications(facts: dict[str, Any]) -> list[tuple[str, int, float | list[float], int]]:
    """Return name, rows, lookups per sample and dim of each table; the third table of group 0 is named g0_2.

    Lookups are a list if features share the table.
    """
    if "groups" not in facts:
        return [
            (f"cat_{i}", rows, lookups, facts["dim"])
            for i, (rows, lookups) in enumerate(zip(facts["rows"], facts["lookups"], strict=True))
        ]
    columns = (facts["groups"][key] for key in ("count", "rows", "lookups", "dim"))
    groups = enumerate(zip(*columns, strict=True))
    return [
        (f"g{group}_{i}", rows, lookups, dim) for group, (count, rows, lookups, dim) in groups for i in range(count)
    ]


def _facts(name: str) -> dict[str, Any]:
    if name not in PUBLIC_MODELS:
        raise InvalidInput(f"unknown public model {name!r}; known models are {', '.join(PUBLIC_MODELS)}")
    facts: dict[str, Any] = _all_facts()[PUBLIC_MODELS[name]]
    return facts


@cache
def _all_facts() -> Any:
    return json.loads((files("shardwright.workload") / "data" / "public_models.json").read_text())
