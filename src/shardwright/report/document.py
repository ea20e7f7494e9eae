"""Everything a report shows, as one JSON document: columns of plain numbers with few digits, tiers, blocks, and texts about them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from importlib.metadata import version as version_of
from itertools import groupby
from typing import Any

import numpy as np

from shardwright.cost.files import provenance
from shardwright.cost.flows import SHARED, Kind, LinkTraffic, traffic_by_kind
from shardwright.cost.score import all_to_all_ms
from shardwright.report.entry import Entry, not_comparable, phase_ms, renamed
from shardwright.report.verdict import Bottleneck, bottlenecks, verdict
from shardwright.report.whatif import what_if
from shardwright.sharding.costs import BOUND_SCOPES, SEARCH_ENDS
from shardwright.sharding.memory import shard_bytes
from shardwright.sharding.plan import Plan
from shardwright.sharding.shard import Shard
from shardwright.sharding.torchrec_files import constraints_code
from shardwright.task.table import row_bytes
from shardwright.task.task import Task

_MOST_COPIED = 500  # tables up to which a page has lines to copy
EXACT = 6
SHARE = 3


def short(value: float, digits: int = EXACT) -> float | int:
    """Round a value to `digits` significant digits; a whole result becomes an int, to be written without a point."""
    rounded = float(f"{value:.{digits}g}")
    return int(rounded) if rounded.is_integer() else rounded


def shorts(values: Iterable[float], digits: int = EXACT) -> list[float | int]:
    """The values, each rounded by `short`."""
    return [short(value, digits) for value in np.asarray(list(values), dtype=np.float64).tolist()]


@dataclass(frozen=True)
class Tier:
    """Rows of a table that are placed alike.

    Attributes:
        name: "hot" (a copy on every device), "warm" (a copy on every host), "cold" (one copy), else "2 copies" and so on.
        rows: half-open range of rows, hottest first.
        share: share of the table's lookups that fall on these rows.
        copies: how many devices hold each row; the mean if rows differ.
        blocks: number of row ranges that the tier is cut into.
    """

    name: str
    rows: tuple[int, int]
    share: float
    copies: float
    blocks: int


def tiered_tables(plan: Plan) -> tuple[str, ...]:
    """Names of the tables whose rows are placed by hotness."""
    return tuple(
        name for name, shards in plan.by_table.items() if any(shard.row_order == "hotness" for shard in shards)
    )


def tiers_of(plan: Plan, table: str) -> tuple[Tier, ...]:
    """The tiers of a table, hottest first. Neighbouring blocks without a tier become one if they have equally many copies."""
    sharded, topology = plan.task.table_by_name[table], plan.task.topology
    ordered = sorted(plan.by_table[table], key=lambda shard: shard.rows)
    tiers: list[Tier] = []
    dealt_before = True
    for key, group in groupby(ordered, key=lambda shard: shard.tier or shard.rows):
        shards = list(group)
        rows, blocks, dealt = key, len({shard.rows for shard in shards}), shards[0].tier is not None
        copies = sum(shard.area * len(shard.devices) for shard in shards) / (sharded.dim * (rows[1] - rows[0]))
        if not (dealt or dealt_before) and tiers[-1].copies == copies:
            before = tiers.pop()
            rows, blocks = (before.rows[0], rows[1]), before.blocks + blocks
        name = _name(copies, topology.devices, topology.hosts)
        tiers.append(Tier(name, rows, sharded.access.share_of(*rows), copies, blocks))
        dealt_before = dealt
    return tuple(tiers)


def _name(copies: float, devices: int, hosts: int) -> str:
    names = {
        float(devices): "hot",
        float(hosts): "warm",
        1.0: "cold",
    }  # of equal keys the last wins: with one host, one copy is "cold"
    return names.get(copies, f"{copies:g} copies")


def task_data(task: Task) -> dict[str, Any]:
    """The task as plain data, its tables by column."""
    topology, tables = task.topology, task.tables
    return {
        "batch": task.batch_size,
        "optimizer": task.optimizer,
        "hidden": {kind: ms for kind, ms in asdict(task.exchange.hidden).items() if ms},
        "device": topology.device,
        "hosts": topology.hosts,
        "perHost": topology.devices_per_host,
        "limit": list(topology.memory_bytes) if len(set(topology.memory_bytes)) > 1 else topology.memory_bytes[0],
        "tables": {
            "name": [table.name for table in tables],
            "rows": [table.rows for table in tables],
            "dim": [table.dim for table in tables],
            "pooling": [short(table.pooling) for table in tables],
            "features": {index: len(table.poolings) for index, table in enumerate(tables) if len(table.poolings) > 1},
            "pooled": [int(table.pooled) for table in tables],
            "dtype": [table.dtype for table in tables],
        },
    }


def block_data(plan: Plan) -> dict[str, Any]:
    """The blocks of a plan by column: table, rows, columns, bytes on each holder, and the holders (a rank, a list, or "all")."""
    number, devices, shards = plan.task.table_number, plan.task.topology.devices, ordered(plan)
    return {
        "table": [number[shard.table] for shard in shards],
        "rows": [list(shard.rows) for shard in shards],
        "columns": [list(shard.columns) for shard in shards],
        "tier": {index: list(shard.tier) for index, shard in enumerate(shards) if shard.tier},
        "bytes": [shard_bytes(plan.task, shard) for shard in shards],
        "devices": [_holders(shard.devices, devices) for shard in shards],
        "byHotness": sorted({number[shard.table] for shard in shards if shard.row_order == "hotness"}),
        "types": [plan.sharding_type(table.name) for table in plan.task.tables],
    }


def ordered(plan: Plan) -> list[Shard]:
    """The shards in a page's order: by table, rows and columns."""
    return sorted(plan.shards, key=lambda shard: (plan.task.table_number[shard.table], shard.rows, shard.columns))


def cell_data(entry: Entry) -> dict[str, Any] | None:
    """Leave-one-out ms of each table on each of its devices, by phase; cells ascend by table, then device. None without marginals."""
    marginal = entry.marginals
    if marginal is None:
        return None
    counts = np.bincount(marginal.cells[:, 0], minlength=len(entry.plan.task.tables))
    return {
        "costModel": marginal.cost_model,
        "counts": counts.tolist(),
        "devices": marginal.cells[:, 1].tolist(),
        "ms": [shorts(column, SHARE) for column in marginal.cell_ms.T],
        "stepMs": shorts(marginal.phase_ms.sum(axis=1), SHARE),
    }


def _holders(ranks: tuple[int, ...], devices: int) -> Any:
    if len(ranks) == 1:
        return ranks[0]
    return "all" if len(ranks) == devices else list(ranks)


_LINKS = ("inside a host", "between hosts")


def document(entries: Sequence[Entry]) -> dict[str, Any]:
    """The report's data: each task once, the plans, and the changes from the first plan to each other plan."""
    shown = renamed(entries)
    tasks = list({id(entry.plan.task): entry.plan.task for entry in shown}.values())
    tasks = [task for index, task in enumerate(tasks) if task not in tasks[:index]]
    first = shown[0].plan
    return {
        "tasks": [task_data(task) for task in tasks],
        "plans": [{"task": tasks.index(entry.plan.task), **plan_data(entry, len(shown))} for entry in shown],
        "changes": [None, *(change_data(first, entry.plan) for entry in shown[1:])],
    }


def plan_data(entry: Entry, plans: int) -> dict[str, Any]:
    """One plan as plain data, for a page with `plans` plans."""
    plan, cost, memory = entry.plan, entry.cost, entry.plan.memory
    measured = entry.measured
    return {
        "name": entry.name,
        "verdict": verdict(entry),
        "notes": list(entry.notes),
        "strategy": plan.strategy,
        "seed": plan.seed,
        "costModel": plan.cost_model,
        "modelOrigin": _origin(entry),
        "made": f"Shardwright {version_of('shardwright')}, {datetime.now(UTC).date().isoformat()}",
        "torchrec": _torchrec(plan),
        "searchS": plan.search_s,
        "searchEnd": SEARCH_ENDS[plan.search_end] if plan.search_end else "",
        "stepMs": cost.step_ms,
        "embeddingMs": cost.embedding_cost_ms,
        "boundMs": plan.bound_ms,
        "boundScope": BOUND_SCOPES[plan.bound_scope],
        "runsOn": list(plan.runs_on),
        "gap": plan.gap,
        "phases": [shorts(times) for times in phase_ms(cost)],
        "memory": [part.tolist() for part in (memory.weights, memory.optimizer, memory.buffers)],
        "blocks": block_data(plan),
        "cells": cell_data(entry),
        "bottlenecks": [_bottleneck(bottleneck) for bottleneck in bottlenecks(entry)],
        "traffic": traffic_data(plan),
        "tiered": [tier_data(plan, name) for name in tiered_tables(plan)],
        "measured": measured and [shorts(measured.forward_ms), shorts(measured.backward_ms)],
        "tuning": tuning_data(plan),
        "whatIf": _what_if(entry, plans),
        "notComparable": measured and not_comparable(plan.task.topology.device, measured.device),
    }


def _origin(entry: Entry) -> str | None:
    """Origin and error of the plan's cost model; None if the model at hand is another one or states no origin."""
    model = entry.cost_model
    return provenance(model.metadata) if model is not None and model.name == entry.plan.cost_model else None


def _torchrec(plan: Plan) -> dict[str, str] | None:
    """How to run the plan in TorchRec, and constraints to copy for its planner; None if it cannot, or there are very many tables."""
    if "torchrec" not in plan.runs_on or len(plan.task.tables) > _MOST_COPIED:
        return None
    how = (
        "shardwright plan --check PLAN --export torchrec saves this plan as a sharding plan, with the lines that load it. For TorchRec's "
        "own planner, these constraints give it the plan's sharding types; it chooses the ranks."
    )
    return {"how": how, "code": constraints_code(plan)}


def _what_if(entry: Entry, plans: int) -> dict[str, Any] | None:
    if entry.cost_model is None or entry.marginals is None:
        return None
    worth = entry.marginals.phase_ms.sum(axis=1).tolist()
    return what_if(entry.plan, ordered(entry.plan), entry.cost_model, worth, name=entry.name, plans=plans)


def tuning_data(plan: Plan) -> dict[str, Any] | None:
    """The measured times of a tuned plan, and the plans measured on the way, in order; None if the plan was not tuned."""
    tuning = plan.tuning
    if tuning is None:
        return None
    return {
        "measuredMs": short(tuning.measured_ms),
        "intervalMs": shorts(tuning.interval_ms),
        "firstMs": short(tuning.first_ms),
        "firstIntervalMs": shorts(tuning.first_interval_ms),
        "floorMs": short(tuning.floor_ms),
        "trials": [
            [trial.name, trial.round, short(trial.promised_ms), short(trial.measured_ms), int(trial.accepted)]
            for trial in tuning.history
        ],
    }


def _bottleneck(bottleneck: Bottleneck) -> dict[str, Any]:
    return {
        "rank": bottleneck.rank,
        "ms": short(bottleneck.ms),
        "meanMs": short(bottleneck.mean_ms),
        "aloneMs": short(bottleneck.alone_ms),
        "tables": [[culprit.table, short(culprit.device_ms), short(culprit.phase_ms)] for culprit in bottleneck.tables],
    }


def traffic_data(plan: Plan) -> list[dict[str, Any]]:
    """Bytes over each link class in each pass: the sum over devices, the sum by kind, and each device's busier direction."""
    if plan.task.topology.devices == 1:
        return []
    flows = traffic_by_kind(plan.task, plan.shards)
    links = range(2 if plan.task.topology.hosts > 1 else 1)
    result = []
    for phase in ("forward", "backward"):
        kinds = {kind: flow for (of, kind), flow in flows.items() if of == phase}
        result += [{"pass": phase, "link": _LINKS[link], **_link(kinds, link, plan)} for link in links]
    return result


def _link(kinds: Mapping[Kind, LinkTraffic], link: int, plan: Plan) -> dict[str, Any]:
    topology = plan.task.topology
    sent, received = (sum(getattr(flow, way)[link] for flow in kinds.values()) for way in ("sent", "received"))
    busiest = np.maximum(sent, received)
    shared = LinkTraffic(topology.devices)
    for kind in SHARED & kinds.keys():
        shared.sent[link] += kinds[kind].sent[link]
        shared.received[link] += kinds[kind].received[link]
    apart = sum(flow.apart for flow in kinds.values())
    return {
        "sent": short(float(np.sum(sent))),
        "kinds": {kind: short(float(flow.sent[link].sum())) for kind, flow in kinds.items()},
        "busiest": shorts(busiest),
        "bandwidth": topology.alone_of(plan.task.exchange.collective)[link],
        "ms": short(float(np.max(all_to_all_ms(plan.task, shared) + apart))) if busiest.any() else 0.0,
    }


def tier_data(plan: Plan, name: str) -> dict[str, Any]:
    """The access curve of a table, and its tiers."""
    table = plan.task.table_by_name[name]
    return {
        "table": plan.task.table_number[name],
        "rows": shorts(table.access.rows),
        "share": shorts(table.access.share),
        "tiers": [
            {
                "name": tier.name,
                "rows": list(tier.rows),
                "share": short(tier.share),
                "copies": short(tier.copies),
                "blocks": tier.blocks,
                "bytes": (tier.rows[1] - tier.rows[0]) * row_bytes(table.dtype, table.dim),
            }
            for tier in tiers_of(plan, name)
        ],
    }


def change_data(older: Plan, newer: Plan) -> dict[str, Any]:
    """The moves when one plan replaces another. Tables are indices into the newer plan's task."""
    diff, number = older.diff(newer), newer.task.table_number
    moving = sorted((change for change in diff.tables if change.moved_bytes), key=lambda change: -change.moved_bytes)
    return {
        "movedBytes": diff.moved_bytes,
        "keptBytes": diff.kept_bytes,
        "madeBytes": diff.made_bytes,
        "added": list(diff.added),
        "removed": list(diff.removed),
        "changed": list(diff.changed),
        "newDevices": diff.new_devices,
        "goneDevices": diff.gone_devices,
        "tables": [
            [number[change.table], change.before, change.after, change.moved_bytes, change.kept_bytes]
            for change in moving
        ],
        "moves": [[number[move.table], move.device, move.bytes] for move in diff.moves],
    }
