"""Data with which a page prices other plans of a task: the encoding of every block, and the head of the cost model.

A *kind* is a block of a table as costs see it: a number of rows and columns on a number of devices. A page holds the plan's kinds and,
as far as there is room, the kinds that cutting and joining its blocks leads to. A browser sums over kinds; with the model's head and the
links it computes exactly the costs of `cost.score`. Tiers and blocks on only some devices stay fixed: their traffic is one sum.
"""

from __future__ import annotations

import base64
import gzip
import heapq
import json
from collections.abc import Collection, Iterator, Sequence
from dataclasses import asdict, astuple
from itertools import pairwise, takewhile
from math import lcm
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from shardwright.arrays import Floats
from shardwright.cost.collectives import prices_of
from shardwright.cost.flows import asked_bytes, traffic_by_kind
from shardwright.cost.for_task import for_task
from shardwright.cost.model import CostModel, Pricing
from shardwright.cost.score import passes_of
from shardwright.sharding.files import plan_to_dict
from shardwright.sharding.memory import block_parts
from shardwright.sharding.plan import Plan
from shardwright.sharding.shard import COLUMN_UNIT, Shard
from shardwright.sharding.work import ShardWorks, numbered_calls
from shardwright.task.task import Task

ROOM = 700_000
"""Bytes of a page, over all its plans, for kinds that no plan has yet."""
_MOST = 1_700_000  # bytes of a page for all kinds
_STEPS = 3  # most cuts, or joins, between a plan's own kind and an offered kind
_BESIDE = 80  # bytes of a kind besides its double-precision numbers

Size: TypeAlias = tuple[int, int, int]
"""Index of a table in its task, and the numbers of rows and columns of a block."""


def what_if(
    plan: Plan, shards: Sequence[Shard], model: CostModel, worth: Sequence[float], *, name: str, plans: int = 1
) -> dict[str, Any] | None:
    """The data with which a page prices changes of one plan; None if the plan's own kinds would take too much room.

    Args:
        plan: the plan.
        shards: its shards, in the page's order.
        model: prices kernels.
        worth: time that a step would save without each table; the costliest tables get room first.
        name: name of the plan's file without its ending; rank maps lie beside that file.
        plans: how many plans share the page.
    """
    task, works = plan.task, ShardWorks(plan.task)
    model = for_task(model, task)
    bytes_each = _BESIDE + (model.pricing.linear.shape[1] + 4) * 8 * 4 // 3
    own = {id(works.of(shard)): shard for shard in shards}
    if len(own) * bytes_each > _MOST / plans:
        return None
    number = task.table_number
    known = {_size(number, shard): shard for shard in own.values() if _may_be_cut(shard)}
    room = int(min(ROOM / plans, _MOST / plans - len(own) * bytes_each) / bytes_each)
    everyone = range(task.topology.devices)
    copies = {
        Shard.whole(task.tables[at], *everyone): None for at in _to_copy(plan, worth, room // 4)
    }  # in table order
    fixed = [shard for shard in shards if len(shard.devices) > 1 and shard not in copies]
    new = _reached(plan, known.keys(), worth, room - len(copies))
    every = [*own.values(), *(Shard(task.tables[at].name, (0, rows), (0, dim), (0,)) for at, rows, dim in new)]
    every += [shard for shard in copies if id(works.of(shard)) not in own]
    done = [works.of(shard) for shard in every]
    place = {id(work): index for index, work in enumerate(done)}
    copied = {number[shard.table]: place[id(works.of(shard))] for shard in copies}
    at = {_size(number, shard): index for index, shard in enumerate(every) if _may_be_cut(shard)}
    return {
        "costModel": model.name,
        "kindOf": [place[id(works.of(shard))] for shard in shards],
        "kinds": {
            "size": [_size(number, shard) for shard in every],
            "call": numbered_calls(done),
            "memory": [block_parts(task, work, len(shard.devices)) for work, shard in zip(done, every, strict=True)],
            "codes": _packed(model.encode(done)),
            "asked": _packed([asked_bytes(task, work, 1) for work in done]),
            "halves": [
                _places(at, _halves(task, _size(number, shard))) if _may_be_cut(shard) else [] for shard in every
            ],
        },
        "copied": copied,
        "reduced": _packed([_reduced(task, [shard])[:, :, 0] for shard in copies]),
        "pricing": _pricing(model.pricing),
        "fixed": _packed(_asked(task, fixed)),
        "fixedReduced": _packed(_reduced(task, fixed)),
        "collectives": _collectives(task),
        "pooled": [table.pooled for table in task.tables],
        "proxies": [int(task.exchange.deduplicate == "host" and not table.pooled) for table in task.tables],
        "limits": {number[table]: asdict(limit) for table, limit in task.constraints.tables.items()},
        "colocate": [sorted(number[table] for table in group) for group in task.constraints.colocated_groups()],
        "apart": [sorted({number[table] for table in group}) for group in task.constraints.apart],
        "file": _file(plan, name),
    }


def _may_be_cut(shard: Shard) -> bool:
    return len(shard.devices) == 1 and shard.row_order == "id"


def _size(number: dict[str, int], shard: Shard) -> Size:
    return number[shard.table], shard.row_count, shard.dim


def _places(known: dict[Size, int], cuts: Sequence[tuple[Size, ...]]) -> list[list[int]]:
    """Indices of the halves by columns and of those by rows; empty if the block has none or the page lacks one."""
    return [[known[half] for half in cut] if all(half in known for half in cut) else [] for cut in cuts]


def _halves(task: Task, size: Size) -> tuple[tuple[Size, ...], tuple[Size, ...]]:
    """Cut a block in two by columns, and in two by rows, the larger half first. Empty if it cannot be cut that way."""
    table, rows, dim = size
    unit = lcm(COLUMN_UNIT, task.constraints.of(task.tables[table].name).column_multiple or 1)
    wide, high = -(-dim // (2 * unit)) * unit, -(-rows // 2)
    return (
        ((table, rows, wide), (table, rows, dim - wide)) if wide < dim else (),
        ((table, high, dim), (table, rows - high, dim)) if high < rows else (),
    )


def _reached(plan: Plan, own: Collection[Size], worth: Sequence[float], most: int) -> list[Size]:
    """At most `most` new kinds from cutting and joining. Kinds nearest to the plan come first, then those of the costliest tables."""
    queue = [(steps, -worth[size[0]], size) for steps, size in [*((0, size) for size in own), *_joined(plan)]]
    heapq.heapify(queue)
    kinds: dict[Size, None] = {}
    while queue and len(kinds) < most + len(own):
        steps, less, size = heapq.heappop(queue)
        if size not in kinds:
            kinds[size] = None
            halves = [half for cut in _halves(plan.task, size) for half in cut] if steps < _STEPS else []
            for half in halves:
                heapq.heappush(queue, (steps + 1, less, half))
    return [size for size in kinds if size not in own]


def _joined(plan: Plan) -> Iterator[tuple[int, Size]]:
    """Kinds from joining, each with its number of joins: whole tables, and runs of adjacent blocks."""
    for index, table in enumerate(plan.task.tables):
        shards = [shard for shard in plan.by_table[table.name] if _may_be_cut(shard)]
        if (
            len(shards) == len(plan.by_table[table.name])
            or Shard.whole(table, *range(plan.task.topology.devices)) in plan.by_table[table.name]
        ):
            yield 1, (index, table.rows, table.dim)
        for along, across in (("rows", "columns"), ("columns", "rows")):
            order = sorted(shards, key=lambda shard: (getattr(shard, across), getattr(shard, along)))
            spans = [(getattr(shard, across), *getattr(shard, along)) for shard in order]
            for start, (line, first, _) in enumerate(spans):
                run = list(
                    takewhile(
                        lambda pair: pair[0][0] == pair[1][0] and pair[0][2] == pair[1][1],
                        pairwise(spans[start : start + 1 + _STEPS]),
                    )
                )
                for joins, (_, (_, _, stop)) in enumerate(run, 1):
                    long, wide = stop - first, line[1] - line[0]
                    yield joins, (index, *((long, wide) if along == "rows" else (wide, long)))


def _to_copy(plan: Plan, worth: Sequence[float], most: int) -> list[int]:
    """Tables that the page can copy to all devices: those already copied, and the costliest `most` of the others."""
    tables, devices = range(len(plan.task.tables)), plan.task.topology.devices
    shards = [plan.by_table[table.name] for table in plan.task.tables]
    copied = [at for at in tables if shards[at] == [Shard.whole(plan.task.tables[at], *range(devices))]]
    whole = [at for at in tables if all(map(_may_be_cut, shards[at]))]
    costliest = sorted(whole, key=lambda at: -worth[at])[:most]
    return sorted(copied + costliest) if devices > 1 else []  # a browser orders an object's keys like this


def _asked(task: Task, shards: Sequence[Shard]) -> Floats:
    """`(3, 2, 2, devices)` bytes of the all-to-alls of blocks on several devices, by direction (sent, received) and link class.

    First those of the forward pass, then those of the backward pass, then the ids alone.
    """
    flows = traffic_by_kind(task, shards)
    return np.array([[flow.sent, flow.received] for flow in (*passes_of(task, flows), flows["forward", "ids"])])


def _reduced(task: Task, shards: Sequence[Shard]) -> Floats:
    """`(2, 2, devices)` bytes of the gradients that blocks on several devices exchange, by direction and link class."""
    flow = traffic_by_kind(task, shards)["backward", "replicas"]
    return np.stack([flow.sent, flow.received])


def _collectives(task: Task) -> dict[str, Any]:
    """Prices of a byte, latencies (forward, backward, of ids), and ms hidden behind dense layers, as in `cost.collectives`."""
    prices = prices_of(task)
    return {
        "asked": [prices.forward.tolist(), prices.backward.tolist()],
        "mean": prices.mean[0].tolist(),
        "dealt": prices.dealt.tolist(),
        "reduced": [1e3 / speed for speed in task.topology.bandwidth_of("all_reduce")],
        "sets": np.column_stack([prices.sets, prices.inputs]).tolist(),
        "hidden": list(astuple(task.exchange.hidden)),
        "shared": task.exchange.collectives == "shared",
        "sequenceRows": task.exchange.as_torchrec,
    }


def _pricing(pricing: Pricing) -> dict[str, Any]:
    parts = {name: getattr(pricing, name) for name in ("hidden", "hidden_bias", "mix", "linear", "bias", "once")}
    return {"width": pricing.linear.shape[1], "units": len(pricing.hidden_bias), "gates": pricing.gates} | {
        name: _packed(values) for name, values in parts.items()
    }


def _file(plan: Plan, name: str) -> str:
    """The part of the plan's file that stays the same if its blocks change, compressed."""
    document = plan_to_dict(plan, Path(f"{name}.json"))
    kept = {field: document[field] for field in ("format", "task", "rank_maps") if field in document}
    return base64.b64encode(gzip.compress(json.dumps(kept, allow_nan=False).encode(), mtime=0)).decode("ascii")


def _packed(values: npt.ArrayLike) -> str:
    """Encode numbers as little-endian doubles, in base64."""
    return base64.b64encode(np.asarray(values, dtype="<f8").tobytes()).decode("ascii")
