"""Read and write TorchRec's sharding plans, as `save_sharding_plan` writes them, without TorchRec: for planning on another machine.

Writing keeps fields that our plans do not have (context hash, output types, bounds checks).
"""

from __future__ import annotations

import re
from copy import deepcopy
from typing import Any

import msgspec

from shardwright.errors import InvalidInput, InvalidPlan
from shardwright.schema import Place, check_format, convert
from shardwright.sharding.plan import Plan
from shardwright.sharding.runtimes import Pattern, pattern_of
from shardwright.sharding.shard import Shard
from shardwright.task.table import Table
from shardwright.task.task import Task

FORMAT = 1
_PLACEMENT = re.compile(r"rank:(\d{1,9})/(\w{1,40})(?::\d{1,9})?")
_KERNELS = ("dense", "fused")  # other kernels keep rows outside of the device; our plans cannot express that
_TYPES = ("table_wise", "column_wise", "row_wise", "table_row_wise", "table_column_wise", "grid_shard", "data_parallel")


class _ShardFile(msgspec.Struct):
    offsets: tuple[int, int]
    sizes: tuple[int, int]
    placement: str


class _TableFile(msgspec.Struct):
    sharding_type: str
    compute_kernel: str
    shards: list[_ShardFile] | None = None


def is_sharding_plan(document: object) -> bool:
    """Whether the content of a file is a sharding plan of TorchRec."""
    return isinstance(document, dict) and "sharding_plan" in document


def plan_from_sharding_plan(document: dict[str, Any], task: Task, where: str) -> Plan:
    """Return a sharding plan as a plan of a task with the same tables. Its memory is not checked and it is not scored.

    Args:
        document: the content of the file.
        task: tables of the same names, in any order, and the cluster.
        where: the file's path, for messages.

    Raises:
        InvalidInput: the document breaks a rule.
        InvalidPlan: its tables are not those of the task.
    """
    check_format(document, Place(where), "sharding plan file", FORMAT)
    shards: dict[str, list[Shard]] = {}
    for name, content, place in _tables(document, task, where):
        if name not in task.table_by_name:
            raise InvalidPlan(f"{place}: the task has no table '{name}'; name the task that this plan was made for")
        if name in shards:
            raise InvalidPlan(
                f"{place}: table '{name}' occurs twice in this plan; name the task that this plan was made for"
            )
        shards[name] = _shards(convert(content, _TableFile, place), task.table_by_name[name], task, place)
    missing = [table.name for table in task.tables if table.name not in shards]
    if missing:
        raise InvalidPlan(
            f"{where}: table '{missing[0]}' of the task is not in this plan; name the task that this plan was made for"
        )
    return Plan(task, [shard for table in task.tables for shard in shards[table.name]], strategy="torchrec")


def sharding_plan_from_plan(plan: Plan, document: dict[str, Any], where: str) -> dict[str, Any]:
    """Return a copy of a sharding plan in which the blocks of `plan` replace its own; all other fields stay.

    Raises:
        InvalidPlan: TorchRec cannot run the blocks, or a table has a compute kernel that keeps rows outside of its device.
    """
    result = deepcopy(document)
    for name, content, place in _tables(result, plan.task, where):
        if content.get("compute_kernel") not in _KERNELS:
            raise InvalidPlan(
                f"{place}: compute_kernel is {content.get('compute_kernel')!r}, which keeps rows outside of the device; "
                "plan such models with ShardwrightPlanner"
            )
        placed = [shard["placement"] for shard in content.get("shards") or ()]
        pattern = pattern_of(plan.by_table[name], plan.task.table_by_name[name], plan.task.topology, _TYPES)
        content.update(_blocks(pattern, plan, placed))
    return result


def sharding_plan_to_export(plan: Plan) -> dict[str, Any]:
    """Return a plan as a sharding plan whose module has no name, since tasks do not hold the modules of their tables.

    Raises:
        InvalidPlan: TorchRec cannot run the plan.
    """
    tables = {}
    for table in plan.task.tables:
        tables[table.name] = _blocks(pattern_of(plan.by_table[table.name], table, plan.task.topology, _TYPES), plan, [])
    return {"format": FORMAT, "sharding_plan": {"": tables}}


def constraints_code(plan: Plan) -> str:
    """Python lines with `ParameterConstraints` that give TorchRec's planner the sharding types and widths of a plan.

    Raises:
        InvalidPlan: TorchRec cannot run the plan.
    """
    lines = ["CONSTRAINTS = {"]
    for name, entry in sharding_plan_to_export(plan)["sharding_plan"][""].items():
        kind, widths = entry["sharding_type"], [shard["sizes"][1] for shard in entry["shards"] or ()]
        cut = f", min_partition={min(widths)}" if kind in ("column_wise", "table_column_wise", "grid_shard") else ""
        poolings = list(plan.task.table_by_name[name].poolings)
        lines.append(
            f"    {name!r}: ParameterConstraints(sharding_types=[{kind!r}], compute_kernels=[{entry['compute_kernel']!r}]"
            f"{cut}, pooling_factors={poolings}),"
        )
    return "\n".join([*lines, "}"])


def _tables(document: dict[str, Any], task: Task, where: str) -> list[tuple[str, dict[str, Any], Place]]:
    """Name in the task, content and place of each table; a name used in several modules gets its module's path as a prefix."""
    modules = document["sharding_plan"]
    named_tables = []
    for module, tables in modules.items() if isinstance(modules, dict) else ():
        for name, content in tables.items() if isinstance(tables, dict) else ():
            place = Place(where, f"sharding_plan.{module}.{name}")
            if not isinstance(content, dict):
                raise InvalidInput(f"{place}: must be a mapping that describes the sharding of the table")
            named_tables.append((name if name in task.table_by_name else f"{module}.{name}", content, place))
    if not named_tables:
        raise InvalidInput(f"{where}: sharding_plan holds no tables; name a file written by save_sharding_plan")
    return named_tables


def _shards(content: _TableFile, table: Table, task: Task, place: Place) -> list[Shard]:
    devices = task.topology.devices
    if content.sharding_type == "data_parallel":
        return [Shard.whole(table, *range(devices))]
    if not content.shards:
        raise InvalidInput(f"{place}: shards is missing; only data_parallel tables have none")
    shards = []
    for shard in content.shards:
        match = _PLACEMENT.fullmatch(shard.placement)
        if match is None or int(match[1]) >= devices:
            raise InvalidInput(
                f"{place}: placement is {shard.placement!r}, must be one of {devices} ranks, written like rank:0/cuda:0"
            )
        (row, column), (rows, columns) = shard.offsets, shard.sizes
        if rows > 0 and columns > 0:  # TorchRec also writes empty blocks
            shards.append(Shard(table.name, (row, row + rows), (column, column + columns), (int(match[1]),)))
    return shards


def _blocks(pattern: Pattern, plan: Plan, placed: list[str]) -> dict[str, Any]:
    """Return the fields of a table that describe its placement."""
    topology = plan.task.topology
    if pattern.kind == "data_parallel":
        ranks = list(range(topology.devices))
        return {"sharding_type": pattern.kind, "compute_kernel": "dense", "ranks": ranks, "shards": None}
    kinds = [match[2] for text in placed if (match := _PLACEMENT.fullmatch(text))]
    kind = kinds[0] if kinds else topology.compute_device
    shards = [
        {
            "offsets": [rows[0], columns[0]],
            "sizes": [rows[1] - rows[0], columns[1] - columns[0]],
            "placement": f"rank:{rank}/{kind}" + (f":{rank % topology.devices_per_host}" if kind != "cpu" else ""),
        }
        for rows, columns, rank in pattern.blocks
    ]
    ranks = [rank for _, _, rank in pattern.blocks]
    return {"sharding_type": pattern.kind, "compute_kernel": "fused", "ranks": ranks, "shards": shards}
