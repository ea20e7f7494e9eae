"""What a page needs to price other plans of a task itself: what every block adds to its device, and the head of the cost model.

A *kind* is a block of a table as costs see it: so many of its rows and columns on so many devices. A page holds the kinds of the plan,
and those that cutting and joining its blocks leads to, as far as there is room. From sums over kinds, the head of the cost model and the
links a browser computes the very costs of `cost.score`. Blocks on some devices, and tiers, stay as they are: their traffic is one sum.
"""

from __future__ import annotations

import base64
import gzip
import heapq
import json
from collections.abc import Collection, Iterator, Sequence
from dataclasses import asdict
from itertools import pairwise, takewhile
from math import lcm
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from shardwright.arrays import Floats
from shardwright.cost.groups import with_groups
from shardwright.cost.model import CostModel, Pricing
from shardwright.cost.sequences import asked_bytes, traffic_by_kind
from shardwright.sharding.files import plan_to_dict
from shardwright.sharding.memory import block_parts
from shardwright.sharding.plan import Plan
from shardwright.sharding.shard import COLUMN_UNIT, Shard
from shardwright.sharding.work import ShardWorks, numbered_calls
from shardwright.task.task import Task

ROOM = 700_000
"""Bytes of a page, over all of its plans, for kinds that no plan has yet."""
_MOST = 1_700_000  # for all kinds
_STEPS = 3  # cuts, or joins, from a plan's own kinds to the farthest that are offered
_BESIDE = 80  # bytes of a kind besides its numbers in double precision

Size: TypeAlias = tuple[int, int, int]
"""Place of a table in its task, rows and columns of a block."""


def what_if(
    plan: Plan, shards: Sequence[Shard], model: CostModel, worth: Sequence[float], *, name: str, plans: int = 1
) -> dict[str, Any] | None:
    """What one plan's page needs to price its changes; None where the plan's own kinds would take too much room.

    Args:
        plan: the plan.
        shards: its shards, in the order in which the page has them.
        model: prices kernels.
        worth: of each table, what a step would gain without it; room goes to the costliest first.
        name: of the plan's file, without its ending: rank maps lie beside it.
        plans: how many plans share the page.
    """
    task, works = plan.task, ShardWorks(plan.task)
    model = with_groups(model, task)
    bytes_each = _BESIDE + (model.pricing.linear.shape[1] + 4) * 8 * 4 // 3
    own = {id(works.of(shard)): shard for shard in shards}
    if len(own) * bytes_each > _MOST / plans:
        return None
    number = {table.name: index for index, table in enumerate(task.tables)}
    known = {_size(number, shard): shard for shard in own.values() if _may_be_cut(shard)}
    room = int(min(ROOM / plans, _MOST / plans - len(own) * bytes_each) / bytes_each)
    everyone = range(task.topology.devices)
    copies = {
        Shard.whole(task.tables[at], *everyone): None for at in _to_copy(plan, worth, room // 4)
    }  # in their order
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
            "memory": [block_parts(task, work, len(one.devices)) for work, one in zip(done, every, strict=True)],
            "codes": _packed(model.encode(done)),
            "asked": _packed([asked_bytes(task, work, 1) for work in done]),
            "halves": [_places(at, _halves(task, _size(number, one))) if _may_be_cut(one) else [] for one in every],
        },
        "copied": copied,
        "reduced": _packed([_traffic(task, [shard])[1, :, :, 0] for shard in copies]),
        "pricing": _pricing(model.pricing),
        "fixed": _packed(_traffic(task, fixed)),
        "links": [[task.topology.intra_latency_ms, task.topology.inter_latency_ms], list(task.topology.link_bandwidth)],
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
    """Places of the halves by columns and by rows; empty where there are none, or the page lacks one."""
    return [[known[half] for half in cut] if all(half in known for half in cut) else [] for cut in cuts]


def _halves(task: Task, size: Size) -> tuple[tuple[Size, ...], tuple[Size, ...]]:
    """A block in two by columns and in two by rows; the first is the larger. Empty where it cannot be cut so."""
    table, rows, dim = size
    unit = lcm(COLUMN_UNIT, task.constraints.of(task.tables[table].name).column_multiple or 1)
    wide, high = -(-dim // (2 * unit)) * unit, -(-rows // 2)
    return (
        ((table, rows, wide), (table, rows, dim - wide)) if wide < dim else (),
        ((table, high, dim), (table, rows - high, dim)) if high < rows else (),
    )


def _reached(plan: Plan, own: Collection[Size], worth: Sequence[float], most: int) -> list[Size]:
    """Kinds that cutting and joining leads to, at most so many: those nearest to the plan first, and of them the costliest tables'."""
    queue = [(steps, -worth[size[0]], size) for steps, size in [*((0, size) for size in own), *_joined(plan)]]
    heapq.heapify(queue)
    found: dict[Size, None] = {}
    while queue and len(found) < most + len(own):
        steps, less, size = heapq.heappop(queue)
        if size not in found:
            found[size] = None
            halves = [half for cut in _halves(plan.task, size) for half in cut] if steps < _STEPS else []
            for half in halves:
                heapq.heappush(queue, (steps + 1, less, half))
    return [size for size in found if size not in own]


def _joined(plan: Plan) -> Iterator[tuple[int, Size]]:
    """How many joins lead to a kind, and the kind: whole tables, and runs of blocks that lie side by side."""
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
    """Tables that the page can copy to all devices: those that lie so, then the costliest up to a limit."""
    tables, devices = range(len(plan.task.tables)), plan.task.topology.devices
    shards = [plan.by_table[table.name] for table in plan.task.tables]
    copied = [at for at in tables if shards[at] == [Shard.whole(plan.task.tables[at], *range(devices))]]
    whole = [at for at in tables if all(map(_may_be_cut, shards[at]))]
    costliest = sorted(whole, key=lambda at: -worth[at])[:most]
    return sorted(copied + costliest) if devices > 1 else []  # as the keys of an object are in a browser


def _traffic(task: Task, replicated: Sequence[Shard]) -> Floats:
    """`(2, 2, 2, devices)` bytes of what several devices hold, by pass, sent or received, and class of link."""
    total = np.zeros((2, 2, 2, task.topology.devices))
    for (phase, _), flow in traffic_by_kind(task, replicated).items():
        total[int(phase == "backward")] += (flow.sent, flow.received)
    return total


def _pricing(pricing: Pricing) -> dict[str, Any]:
    parts = {name: getattr(pricing, name) for name in ("hidden", "hidden_bias", "mix", "linear", "bias", "once")}
    return {"width": pricing.linear.shape[1], "units": len(pricing.hidden_bias)} | {
        name: _packed(values) for name, values in parts.items()
    }


def _file(plan: Plan, name: str) -> str:
    """The part of the plan's file that no change of its blocks alters, compressed."""
    document = plan_to_dict(plan, Path(f"{name}.json"))
    kept = {field: document[field] for field in ("format", "task", "rank_maps") if field in document}
    return base64.b64encode(gzip.compress(json.dumps(kept, allow_nan=False).encode(), mtime=0)).decode("ascii")


def _packed(values: npt.ArrayLike) -> str:
    """Numbers in double precision, little-endian, in base64."""
    return base64.b64encode(np.asarray(values, dtype="<f8").tobytes()).decode("ascii")
