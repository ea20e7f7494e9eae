"""Plan files: one document with the task, the shards and the predicted cost, as JSON unless the name asks for YAML.

The rank maps that a plan needs lie in a second file beside it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import msgspec

from shardwright.errors import InvalidInput, InvalidPlan
from shardwright.files import dump_document, is_stream, parse_document, write_atomically
from shardwright.schema import Amount, Place, check_format, convert
from shardwright.sharding.costs import BoundScope, DeviceCost, PlanCost, SearchEnd, Tuning
from shardwright.sharding.plan import Plan
from shardwright.sharding.rank_map import RankMap
from shardwright.sharding.rank_map_files import load_rank_maps, rank_map_bytes, save_rank_maps
from shardwright.sharding.shard import RowLayout, RowOrder, Shard
from shardwright.task.files import task_from_dict, task_to_dict
from shardwright.task.table import Table

FORMAT = 1
ENDING = ".ranks.safetensors"

# hottest ranks kept for each block of a dealt segment: enough to spread lookups evenly
_DEALT_ROUNDS = 64
_ROUNDING = 1e-9  # relative; a bound may equal the step, summed in another order


class _RankMapsFile(msgspec.Struct, forbid_unknown_fields=True):
    """The name of the file of rank maps beside a plan file, and the SHA-256 of its content in hexadecimal digits."""

    file: Annotated[str, msgspec.Meta(pattern=r"\A[^/\0]+\.ranks\.safetensors\Z")]
    sha256: str


def attached(plan: Plan, maps: Mapping[str, RankMap]) -> dict[str, RankMap]:
    """Return the rank maps of the plan's tables in order of hotness, each cut to the ranks that the plan tells apart.

    Raises:
        InvalidInput: a map and its table differ in their number of rows.
    """
    result = {}
    for table in plan.task.tables:
        shards = plan.by_table[table.name]
        if table.name not in maps or shards[0].row_order != "hotness":
            continue
        rank_map = maps[table.name]
        check_rows(rank_map, table)
        result[table.name] = rank_map.trimmed(_told_apart(shards))
    return result


def check_rows(rank_map: RankMap, table: Table) -> None:
    """Check that a rank map covers as many rows as its table has.

    Raises:
        InvalidInput: the numbers differ.
    """
    if rank_map.rows != table.rows:
        raise InvalidInput(
            f"rank map of table '{table.name}': is of {rank_map.rows} rows, the table has {table.rows}; profile the table anew with "
            "--rank-maps, and plan with the rows of that profile"
        )


def _told_apart(shards: Sequence[Shard]) -> int:
    """Number of a table's hottest ranks that the plan tells apart: all before the coldest segment, and 64 a block if that is dealt out."""
    layout = RowLayout.of(shards)
    start, parts = int(layout.starts[-1]), int(layout.parts[-1])
    return start + (_DEALT_ROUNDS * parts if parts > 1 else 0)


def _rank_maps_file(plan: Plan, path: Path) -> _RankMapsFile:
    return _RankMapsFile(_beside(path).name, hashlib.sha256(rank_map_bytes(plan.rank_maps)).hexdigest())


def _save_beside(plan: Plan, path: Path) -> None:
    """Write the rank maps of a plan beside its plan file."""
    if is_stream(path):
        raise InvalidInput(
            f"{path}: is a pipe or device, but a plan with rank maps needs a second file next to it; name a regular file with -o"
        )
    if any("\ud800" <= character <= "\udfff" for character in path.stem):  # bytes that are not UTF-8
        raise InvalidInput(
            f"{path}: its name is not UTF-8, and a plan with rank maps holds it as text; name another file with -o"
        )
    save_rank_maps(plan.rank_maps, _beside(path))


def _load_beside(plan: Plan, path: Path, entry: _RankMapsFile) -> Plan:
    """Return the plan with the rank maps that its plan file names."""
    place = Place(str(path), "rank_maps")
    maps = load_rank_maps(path.with_name(entry.file), entry.sha256)
    with place.naming():
        strangers = sorted(maps.keys() - {shard.table for shard in plan.shards if shard.row_order == "hotness"})
        if strangers:
            raise InvalidInput(
                f"{entry.file} holds a rank map for table '{strangers[0]}', which the plan does not order by hotness; plan again"
            )
        return replace(plan, rank_maps=attached(plan, maps))


def _beside(path: Path) -> Path:
    return path.with_name(path.stem + ENDING)


class _ShardFile(msgspec.Struct, forbid_unknown_fields=True):
    table: str
    rows: tuple[int, int]
    columns: tuple[int, int]
    devices: tuple[int, ...]
    row_order: RowOrder = "id"
    sharding_type: str = ""
    tier: tuple[int, int] | msgspec.UnsetType = msgspec.UNSET


class _PlanFile(msgspec.Struct, forbid_unknown_fields=True):
    format: int
    task: dict[str, Any]
    shards: list[_ShardFile]
    strategy: str = ""
    seed: int = 0
    cost_model: str = ""
    step_ms: float | None = None
    embedding_cost_ms: float | None = None
    bound_ms: Amount | None = None
    bound_scope: BoundScope = "blocks"
    gap: float | None = None
    search_s: float | None = None
    search_end: SearchEnd | None = None
    runs_on: list[str] = []  # for human readers; computed from the shards, not read
    devices: list[DeviceCost] = []
    rank_maps: _RankMapsFile | msgspec.UnsetType = msgspec.UNSET
    tuning: Tuning | msgspec.UnsetType = msgspec.UNSET
    notes: Any = msgspec.UNSET  # added by `shardwright plan --json`, as the next one; not read
    saved: Any = msgspec.UNSET
    change: Any = msgspec.UNSET  # added by `shardwright plan --from --json`; not read
    sharding_group_sizes: Any = msgspec.UNSET  # added by `--sharding-group-size`; not read
    balance: Any = msgspec.UNSET  # added by `--balance-memory`; not read


_SAME = ("strategy", "seed", "cost_model", "bound_ms", "bound_scope", "search_s", "search_end")
"""Fields that a plan and its file both have, with the same values."""


def plan_to_dict(plan: Plan, path: Path | None = None) -> dict[str, Any]:
    """Return the plan as plain data, in the layout of a plan file.

    Args:
        plan: the plan.
        path: file of the plan, so that it can name its file of rank maps; None if it is not saved.
    """
    kinds = {table.name: plan.sharding_type(table.name) for table in plan.task.tables}
    cost = plan.cost
    document = _PlanFile(
        format=FORMAT,
        task=task_to_dict(plan.task),
        step_ms=cost.step_ms if cost else None,
        embedding_cost_ms=cost.embedding_cost_ms if cost else None,
        gap=plan.gap,
        runs_on=list(plan.runs_on),
        devices=list(cost.devices) if cost else [],
        shards=[
            _ShardFile(s.table, s.rows, s.columns, s.devices, s.row_order, kinds[s.table], s.tier or msgspec.UNSET)
            for s in plan.shards
        ],
        rank_maps=_rank_maps_file(plan, path) if path is not None and plan.rank_maps else msgspec.UNSET,
        tuning=plan.tuning or msgspec.UNSET,
        **{name: getattr(plan, name) for name in _SAME},
    )
    result = msgspec.to_builtins(document)
    assert isinstance(result, dict)
    return result


def save_plan(plan: Plan, path: Path) -> None:
    """Write the plan as JSON, or as YAML if the name ends so. Its rank maps are written first, to a file beside it. Both writes are atomic.

    Raises:
        InvalidInput: a file cannot be written, or the plan has rank maps and `path` is a pipe or device.
    """
    if plan.rank_maps:
        _save_beside(plan, path)
    write_atomically(path, dump_document(plan_to_dict(plan, path), path, otherwise=".json"))


def load_plan(path: Path) -> Plan:
    """Read a plan file and check the plan against the task inside it.

    Raises:
        InvalidInput: the file cannot be read, has another format version, or breaks a rule; or its file of rank maps is missing,
            damaged or not the one saved with the plan.
    """
    document = parse_document(path, "plan file")
    place = Place(str(path))
    if isinstance(document, dict) and "format" not in document:
        raise InvalidInput(f"{path}: the field 'format' is missing; name a plan file written by shardwright plan")
    check_format(document, place, "plan file", FORMAT)
    content = convert(document, _PlanFile, place)
    task = task_from_dict(content.task, str(place.at("task")))
    with place.naming():
        _check_text(content)
        shards = tuple(
            Shard(s.table, s.rows, s.columns, s.devices, s.row_order, s.tier or None) for s in content.shards
        )
        cost = _cost(content, task.topology.devices)
        _check_bound(content.bound_ms, cost)
        tuning = None if content.tuning is msgspec.UNSET else content.tuning
        if tuning is not None:
            tuning.check(task.topology.devices)
        same = {name: getattr(content, name) for name in _SAME}
        plan = Plan(task, shards, cost=cost, tuning=tuning, **same)
        plan.check()
    return plan if content.rank_maps is msgspec.UNSET else _load_beside(plan, path, content.rank_maps)


def _cost(content: _PlanFile, devices: int) -> PlanCost | None:
    if not content.devices:
        return None
    if [device.rank for device in content.devices] != list(range(devices)):
        raise InvalidPlan(f"devices must list the costs of ranks 0 to {devices - 1} in order")
    return PlanCost(tuple(content.devices))


def _check_bound(bound_ms: float | None, cost: PlanCost | None) -> None:
    if bound_ms is not None and cost is not None and bound_ms > cost.step_ms * (1 + _ROUNDING):
        raise InvalidPlan(f"bound_ms is {bound_ms}, above the step of {cost.step_ms} ms of its devices; plan again")


def _check_text(content: _PlanFile) -> None:
    """Refuse control characters in texts that are shown on terminals."""
    for name in ("strategy", "cost_model"):
        value = getattr(content, name)
        if not value.isprintable():
            raise InvalidPlan(f"{name} is {value!r}, must be printable text; correct it or plan again")
