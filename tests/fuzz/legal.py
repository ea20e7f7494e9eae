"""Odd but legal tasks as plain data, and the rules of a plan written down once more, from the documentation and not from the code."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import combinations
from random import Random
from typing import Any

KINDS = ("table_wise", "column_wise", "row_wise", "data_parallel", "table_row_wise", "grid", "tiered")
PHASES = ("forward_ms", "forward_communication_ms", "backward_communication_ms", "backward_ms")


def odd_task(rng: Random) -> dict[str, Any]:
    """A task file's content: tiny or lopsided, mixed with sequences, slow links, constraints of every kind; it may have no plan."""
    hosts, each = rng.choice([(1, 1), (1, 2), (1, 4), (2, 2), (2, 4), (4, 2), (3, 1), (1, 9)])
    names = [
        f"{rng.choice(['t', 'é☃', 'a b', '-x', '%s', '{0}'])}{number}"
        for number in range(rng.choice([1, 1, 2, 3, 5, 8, 13]))
    ]
    tables = [_table(rng, name) for name in names]
    weights = sum(table["rows"] * table["dim"] * 4 for table in tables)
    most = max(table["rows"] * table["dim"] * 4 for table in tables)
    memory = int(rng.choice([100 * weights + 10**9, weights / (hosts * each) * 1.5 + 10**6, most + 2e6]))
    topology = {
        "hosts": hosts, "devices_per_host": each, "device": rng.choice(["cpu", "h100", "a100"]),
        "memory": memory if rng.random() < 0.8 else [int(memory * rng.uniform(0.3, 2)) for _ in range(hosts * each)],
        "intra_bandwidth": rng.choice([1e6, 1e9, 4.5e11]), "inter_bandwidth": rng.choice([1e6, 1e9, 5e10]),
        "intra_latency_ms": rng.choice([0, 0.02, 5, 50]), "inter_latency_ms": rng.choice([0, 0.05, 5, 50]),
    }  # fmt: skip
    document = {
        "batch_size": rng.choice([1, 3, 256, 1024, 65_536]),
        "optimizer": rng.choice(["sgd", "rowwise_adagrad", "adagrad", "adam"]),
        "topology": topology,
        "tables": tables,
    }
    if rng.random() < 0.6:
        document["constraints"] = list(_constraints(rng, names, hosts * each))
    if rng.random() < 0.3:
        document["exchange"] = {
            "deduplicate": rng.choice(["none", "device", "host"]),
            "replica_gradients": rng.choice(["whole", "touched"]),
        }
    return document


def _table(rng: Random, name: str) -> dict[str, Any]:
    access = rng.choice(["uniform", {"zipf": rng.choice([0, 0.5, 1, 1.3, 3])}])
    return {
        "name": name, "rows": rng.choice([1, 2, 7, 1000, 50_000, 2_000_000]), "dim": rng.choice([1, 3, 4, 16, 64, 128, 500]),
        "pooling": rng.choice([0.001, 0.5, 1, 1, 10, 80]), "pooled": rng.random() < 0.7, "access": access,
        "dtype": rng.choice(["fp32", "fp32", "fp16", "int8"]),
    }  # fmt: skip


def _constraints(rng: Random, names: list[str], devices: int) -> Iterator[dict[str, Any]]:
    for name in rng.sample(names, rng.randint(0, len(names))):
        limits = {
            "sharding_types": rng.sample(KINDS, rng.randint(1, 5)),
            "devices": sorted(rng.sample(range(devices), rng.randint(1, devices))),
            "max_shards": rng.choice([1, 2, 4, 50]),
            "min_columns": rng.choice([1, 4, 32]),
            "column_multiple": rng.choice([1, 4, 8]),
            "equal_rows": True,
            "equal_columns": True,
        }
        yield {"table": name, **{key: limits[key] for key in rng.sample(sorted(limits), rng.choice([1, 1, 2]))}}
    for way in ("colocate", "apart"):
        if len(names) > 1 and rng.random() < 0.3:
            yield {way: rng.sample(names, rng.choice([2, min(3, len(names))]))}


def broken_rules(task: dict[str, Any], plan: dict[str, Any]) -> list[str]:
    """The rules that a plan file breaks, given the content of its task file."""
    devices = task["topology"]["hosts"] * task["topology"]["devices_per_host"]
    shards = {table["name"]: [s for s in plan["shards"] if s["table"] == table["name"]] for table in task["tables"]}
    strangers = len(plan["shards"]) - sum(map(len, shards.values()))
    broken = [f"{strangers} shards are not of tables of the task"] if strangers else []
    for table in task["tables"]:
        broken += [f"table {table['name']!r}: {text}" for text in _tiling(table, shards[table["name"]], devices)]
    if broken:
        return broken
    return [*_memory(task, plan, shards, devices), *_limits(task, shards), *_costs(plan)]


def _tiling(table: dict[str, Any], shards: list[dict[str, Any]], devices: int) -> Iterator[str]:
    for shard in shards:
        (top, bottom), (left, right), ranks = shard["rows"], shard["columns"], shard["devices"]
        if not (0 <= top < bottom <= table["rows"] and 0 <= left < right <= table["dim"]):
            yield f"block {shard} lies outside"
        if not ranks or sorted(set(ranks)) != ranks or not 0 <= ranks[0] <= ranks[-1] < devices:
            yield f"ranks {ranks} of {devices}"
    if sum(_area(shard) for shard in shards) != table["rows"] * table["dim"]:
        yield "its blocks do not add up to it"
    for one, other in combinations(shards, 2):
        if all(max(one[way][0], other[way][0]) < min(one[way][1], other[way][1]) for way in ("rows", "columns")):
            yield f"blocks {one} and {other} overlap"


def _area(shard: dict[str, Any]) -> int:
    return (shard["rows"][1] - shard["rows"][0]) * (shard["columns"][1] - shard["columns"][0])


def _memory(task: dict[str, Any], plan: dict[str, Any], shards: dict[str, Any], devices: int) -> Iterator[str]:
    """Weights and state to the byte; buffers too, except for the lookups of rows in order of hotness."""
    used = [0] * devices
    whole = task.get("exchange", {}).get("replica_gradients", "whole") == "whole"
    for table in task["tables"]:
        for shard in shards[table["name"]]:
            rows, width, holders = (
                shard["rows"][1] - shard["rows"][0],
                shard["columns"][1] - shard["columns"][0],
                len(shard["devices"]),
            )
            state = {"sgd": 0, "rowwise_adagrad": 4 * rows, "adagrad": 4 * rows * width, "adam": 8 * rows * width}
            samples = -(-task["batch_size"] // holders)
            share = rows / table["rows"] if shard.get("row_order", "id") == "id" else rows == table["rows"]
            lookups = math.floor(task["batch_size"] * table["pooling"] * share / holders * (1 - 1e-12))
            values = 8 * width * (samples if table.get("pooled", True) else lookups)
            row = {"fp32": 4 * width, "fp16": 2 * width, "int8": width + 8}[table.get("dtype", "fp32")]
            size = rows * row + state[task["optimizer"]]
            if holders > 1 and (table.get("pooled", True) or whole):
                size += (2 if table.get("pooled", True) and table.get("dtype") == "fp16" else 4) * rows * width
            for rank in shard["devices"]:
                used[rank] += size + 8 * lookups + 8 * (samples + 1) + values
    limits = task["topology"]["memory"]
    limits = limits if isinstance(limits, list) else [limits] * devices
    for rank, (bytes_used, limit) in enumerate(zip(used, limits, strict=True)):
        if bytes_used > limit:
            yield f"rank {rank} needs {bytes_used} bytes and has {limit}"
        if plan["devices"] and plan["devices"][rank]["memory_bytes"] < bytes_used:
            yield f"rank {rank} needs {bytes_used} bytes, the plan says {plan['devices'][rank]['memory_bytes']}"


def _kind(task: dict[str, Any], table: dict[str, Any], shards: list[dict[str, Any]]) -> str:
    topology = task["topology"]
    if any(shard.get("row_order") == "hotness" for shard in shards):
        return "tiered"
    if len(shards) == 1:
        return "table_wise" if len(shards[0]["devices"]) == 1 else "data_parallel"
    if any(len(shard["devices"]) > 1 for shard in shards):
        return "tiered"
    if all(shard["rows"] == [0, table["rows"]] for shard in shards):
        return "column_wise"
    if any(shard["columns"] != [0, table["dim"]] for shard in shards):
        return "grid"
    hosts = {shard["devices"][0] // topology["devices_per_host"] for shard in shards}
    return "table_row_wise" if len(hosts) == 1 and topology["hosts"] > 1 else "row_wise"


def _limits(task: dict[str, Any], shards: dict[str, list[dict[str, Any]]]) -> Iterator[str]:
    tables = {table["name"]: table for table in task["tables"]}
    held = {name: {rank for shard in parts for rank in shard["devices"]} for name, parts in shards.items()}
    for limit in task.get("constraints", []):
        if "colocate" in limit and len({frozenset(held[name]) for name in limit["colocate"]}) > 1:
            yield f"{limit} is broken"
        if any(held[one] & held[other] for one, other in combinations(limit.get("apart", []), 2)):
            yield f"{limit} is broken"
        if "table" not in limit:
            continue
        table, parts = tables[limit["table"]], shards[limit["table"]]
        kind, cut = (
            _kind(task, table, parts),
            [s["columns"][1] - s["columns"][0] for s in parts if s["columns"] != [0, table["dim"]]],
        )
        if (
            kind not in limit.get("sharding_types", KINDS)
            or not held[table["name"]] <= set(limit.get("devices", held[table["name"]]))
            or len(parts) > limit.get("max_shards", len(parts))
            or any(width < limit.get("min_columns", 1) or width % limit.get("column_multiple", 1) for width in cut)
            or (limit.get("equal_columns") and len({s["columns"][1] - s["columns"][0] for s in parts}) > 1)
        ):
            yield f"{limit} is broken by {kind} {parts}"


def _costs(plan: dict[str, Any]) -> Iterator[str]:
    step = sum(max(device[phase] for device in plan["devices"]) for phase in PHASES)
    if not math.isclose(step, plan["step_ms"], rel_tol=1e-9) or not 0 <= step < math.inf:
        yield f"step_ms is {plan['step_ms']}, its devices say {step}"
    if plan["bound_ms"] is not None and plan["bound_ms"] > step * (1 + 1e-9):
        yield f"the bound {plan['bound_ms']} is above the step {step}"
