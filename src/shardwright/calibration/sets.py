"""The sets that a calibration measures: random sets, devices of found plans and their neighbours, and the same tables whole and cut.

A search exploits the model's errors, so its plans differ from random sets: more shards, more cuts, similar devices. A model that prices
such plans needs such devices in its training data. Plans also cut different tables, so some sets are measured in variants (see
`shardwright.modelling.dataset`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TypeAlias

import numpy as np

from shardwright.cost.model import CostModel
from shardwright.errors import ShardwrightError
from shardwright.measure.device_work import DeviceWork, Job, device_works
from shardwright.modelling.dataset import pair_label
from shardwright.search import plan
from shardwright.sharding.shard import Shard
from shardwright.sharding.work import ShardWork, shard_work
from shardwright.task import Task
from shardwright.task.quantities import format_bytes

STRATEGIES = ("size_lookup", "greedy", "neuroshard", "certified")
_SEARCH_S = 5.0
_MOST_DEVICES = 8  # plans of up to this many devices are measured whole, so that they can be compared
_CUT_SHARE = 0.4
_NARROWEST = 8  # fewest columns of each half when a block is halved
_FILL = 0.5  # share of the room that an even share of the tables may fill


Group: TypeAlias = tuple[Job, ...]
"""Sets that are worth measuring together."""


def task_sets(task: Task, count: int, rng: np.random.Generator) -> Iterator[Job]:
    """Sets of random tables of a task, about as many as a device gets; some tables are cut to a block of their columns or rows."""
    for _ in range(count):
        works, seeds = _some_tables(task, rng)
        blocks = [_random_block(work, rng) if rng.random() < _CUT_SHARE else work for work in works]
        yield Job(DeviceWork(tuple(blocks), tuple(seeds), task.optimizer), "task")


def heavy_sets(task: Task) -> Iterator[Job]:
    """Each table with more than half of a device's even share of lookups, whole and halved: the slowest device may hold nothing else."""
    works = [shard_work(task, Shard.whole(table, 0)) for table in task.tables]
    share = [work.lookups * work.dim for work in works]
    for place in np.argsort(share)[::-1][: task.topology.devices].tolist():
        if share[place] * 2 * task.topology.devices > sum(share):
            dim = works[place].dim
            for width in (dim, dim // 8 * 4) if dim >= 2 * _NARROWEST else (dim,):
                yield Job(DeviceWork((replace(works[place], dim=width),), (place,), task.optimizer), "task")


def cut_pair(task: Task, name: str, rng: np.random.Generator) -> Group:
    """A pair of up to four variants of the same tables: whole or with cuts, on one device or on two."""
    works, seeds = _some_tables(task, rng)
    whole = list(zip(works, seeds, strict=True))
    cuts = [work.dim >= 2 * _NARROWEST and rng.random() < _CUT_SHARE for work in works]
    cut: list[list[tuple[ShardWork, int]]] = [[], []]
    for place, ((work, seed), halved) in enumerate(zip(whole, cuts, strict=True)):
        if halved:
            half = work.dim // 8 * 4
            for side, dim in enumerate((half, work.dim - half)):
                cut[side].append((replace(work, dim=dim), seed))
        else:
            cut[place % 2].append((work, seed))
    variants = [[whole], [whole[::2], whole[1::2]]]
    if any(cuts):
        variants += [[[*cut[0], *cut[1]]], cut]
    return _pair(name, [[_device(held, task.optimizer) for held in variant if held] for variant in variants], "pair")


def plan_sets(task: Task, model: CostModel, name: str, seed: int) -> tuple[Group, Group]:
    """The devices of the plans that strategies find, as variants of one pair, and neighbours: the last plan's devices after a few moves.

    A strategy that finds no plan is left out.
    """
    variants, rng = [], np.random.default_rng([seed, 1])
    for strategy in STRATEGIES:
        try:
            made = plan(task, strategy=strategy, cost_model=model, seed=seed, time_limit=_SEARCH_S, runs_on=None)
        except ShardwrightError:
            continue
        variants.append([work for work in device_works(made, seed) if work.works])
    if not variants:
        return (), ()
    moved = tuple(Job(work, "neighbour") for work in _moved(variants[-1], rng))
    distinct = [variant for place, variant in enumerate(variants) if variant not in variants[:place]]
    if task.topology.devices > _MOST_DEVICES:
        few = ((some, rng.choice(len(some), min(len(some), _MOST_DEVICES // 2), replace=False)) for some in distinct)
        return tuple(Job(some[place], "policy") for some, places in few for place in places), moved
    return _pair(name, distinct, "policy"), moved


def fitted_task(task: Task, room_bytes: int) -> tuple[Task, str | None]:
    """The task, with fewer rows if this machine has too little room for it, and a note about it (None if it fits)."""
    total, largest = (find(table.weight_bytes for table in task.tables) for find in (sum, max))
    needed = max(total / task.topology.devices, largest / 2) / _FILL
    if needed <= room_bytes:
        return task, None
    scale = room_bytes / needed
    memory = [max(1, int(size * scale)) for size in task.topology.memory_bytes]
    fewer = replace(
        task,
        tables=[table.scaled_rows(scale) for table in task.tables],
        topology=replace(task.topology, memory=memory),
    )
    return fewer, (
        f"the tables of a device do not fit the {format_bytes(room_bytes)} that this machine has for them: "
        f"all tables are measured with {scale:.2g} of their rows"
    )


def _pair(name: str, variants: Sequence[Sequence[DeviceWork]], kind: str) -> Group:
    return tuple(
        Job(work, kind, pair_label(name, number, len(variant)))
        for number, variant in enumerate(variants)
        for work in variant
    )


def _some_tables(task: Task, rng: np.random.Generator) -> tuple[list[ShardWork], list[int]]:
    mean = len(task.tables) / task.topology.devices
    count = int(np.clip(round(mean * rng.uniform(0.5, 1.7)), min(2, len(task.tables)), len(task.tables)))
    chosen = rng.choice(len(task.tables), count, replace=False)
    works = [shard_work(task, Shard.whole(task.tables[place], 0)) for place in chosen]
    return works, [int(place) for place in chosen]


def _random_block(work: ShardWork, rng: np.random.Generator) -> ShardWork:
    """A random part of a shard's columns, or half of its rows if it has few columns."""
    if work.dim >= 2 * _NARROWEST:
        return replace(work, dim=4 * int(rng.integers(1, work.dim // 4)))
    rows = max(1, work.rows // 2)
    return replace(work, rows=rows, lookups=work.lookups * rows / work.rows, access=work.access.thinned(rows))


def _moved(devices: Sequence[DeviceWork], rng: np.random.Generator) -> Iterator[DeviceWork]:
    """The devices that change when two to four random shards move to another device."""
    if len(devices) < 2:
        return
    held = [list(zip(device.works, device.seeds, strict=True)) for device in devices]
    changed = set()
    for _ in range(int(rng.integers(2, 5))):
        origin, target = rng.choice(len(held), 2, replace=False).tolist()
        if len(held[origin]) > 1:
            held[target].append(held[origin].pop(int(rng.integers(len(held[origin])))))
            changed |= {origin, target}
    for place in sorted(changed):
        yield _device(held[place], devices[place].optimizer)


def _device(held: Sequence[tuple[ShardWork, int]], optimizer: str) -> DeviceWork:
    works, seeds = zip(*held, strict=True)
    return DeviceWork(works, seeds, optimizer)
