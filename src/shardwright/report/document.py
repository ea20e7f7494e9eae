"""Everything a report shows, as one JSON document."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from shardwright.cost.flows import Kind, LinkTraffic
from shardwright.cost.sequences import traffic_by_kind
from shardwright.report.blocks import block_data, cell_data, task_data
from shardwright.report.bottleneck import Bottleneck, bottlenecks
from shardwright.report.entry import Entry, phase_ms, renamed
from shardwright.report.measured import not_comparable
from shardwright.report.numbers import short, shorts
from shardwright.report.tiers import tiered_tables, tiers_of
from shardwright.report.verdict import verdict
from shardwright.sharding.costs import BOUND_SCOPES
from shardwright.sharding.plan import Plan
from shardwright.task.table import row_bytes

_LINKS = ("inside a host", "between hosts")


def document(entries: Sequence[Entry]) -> dict[str, Any]:
    """The report's data: tasks (each once), plans, and what changes from the first plan to each of the others."""
    shown = renamed(entries)
    tasks = list({id(entry.plan.task): entry.plan.task for entry in shown}.values())
    tasks = [task for index, task in enumerate(tasks) if task not in tasks[:index]]
    first = shown[0].plan
    return {
        "tasks": [task_data(task) for task in tasks],
        "plans": [{"task": tasks.index(entry.plan.task), **plan_data(entry)} for entry in shown],
        "changes": [None, *(change_data(first, entry.plan) for entry in shown[1:])],
    }


def plan_data(entry: Entry) -> dict[str, Any]:
    """One plan as plain data."""
    plan, cost, memory = entry.plan, entry.cost, entry.plan.memory
    measured = entry.measured
    return {
        "name": entry.name,
        "verdict": verdict(entry),
        "notes": list(entry.notes),
        "strategy": plan.strategy,
        "seed": plan.seed,
        "costModel": plan.cost_model,
        "searchS": plan.search_s,
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
        "bottlenecks": [_bottleneck(found) for found in bottlenecks(entry)],
        "traffic": traffic_data(plan),
        "tiered": [tier_data(plan, name) for name in tiered_tables(plan)],
        "measured": measured and [shorts(measured.forward_ms), shorts(measured.backward_ms)],
        "tuning": tuning_data(plan),
        "notComparable": measured and not_comparable(plan.task.topology.device, measured.device),
    }


def tuning_data(plan: Plan) -> dict[str, Any] | None:
    """What a tuned plan was measured to take, and the plans that were measured on the way, in their order."""
    found = plan.tuning
    if found is None:
        return None
    return {
        "measuredMs": short(found.measured_ms),
        "intervalMs": shorts(found.interval_ms),
        "firstMs": short(found.first_ms),
        "firstIntervalMs": shorts(found.first_interval_ms),
        "floorMs": short(found.floor_ms),
        "trials": [
            [one.name, one.round, short(one.promised_ms), short(one.measured_ms), int(one.accepted)]
            for one in found.history
        ],
    }


def _bottleneck(found: Bottleneck) -> dict[str, Any]:
    return {
        "rank": found.rank,
        "ms": short(found.ms),
        "meanMs": short(found.mean_ms),
        "aloneMs": short(found.alone_ms),
        "tables": [[one.table, short(one.device_ms), short(one.phase_ms)] for one in found.tables],
    }


def traffic_data(plan: Plan) -> list[dict[str, Any]]:
    """Bytes over each link class in each pass: sent by all devices together, by kind, and the busier direction of every device."""
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
    latency = (topology.intra_latency_ms, topology.inter_latency_ms)[link]
    bandwidth = topology.link_bandwidth[link]
    most = float(busiest.max())
    return {
        "sent": short(float(np.sum(sent))),
        "kinds": {kind: short(float(flow.sent[link].sum())) for kind, flow in kinds.items()},
        "busiest": shorts(busiest),
        "bandwidth": bandwidth,
        "ms": short(latency + most / bandwidth * 1e3 if most else 0.0),
    }


def tier_data(plan: Plan, name: str) -> dict[str, Any]:
    """The access curve of a table and the tiers that its rows are placed in."""
    table = plan.task.table_by_name[name]
    return {
        "table": plan.task.tables.index(table),
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
    """What moves when one plan replaces another; tables by their place in the newer plan's task."""
    diff = older.diff(newer)
    number = {table.name: index for index, table in enumerate(newer.task.tables)}
    moving = sorted((one for one in diff.tables if one.moved_bytes), key=lambda one: -one.moved_bytes)
    return {
        "movedBytes": diff.moved_bytes,
        "keptBytes": diff.kept_bytes,
        "madeBytes": diff.made_bytes,
        "added": list(diff.added),
        "removed": list(diff.removed),
        "changed": list(diff.changed),
        "newDevices": diff.new_devices,
        "goneDevices": diff.gone_devices,
        "tables": [[number[one.table], one.before, one.after, one.moved_bytes, one.kept_bytes] for one in moving],
        "moves": [[number[move.table], move.device, move.bytes] for move in diff.moves],
    }
