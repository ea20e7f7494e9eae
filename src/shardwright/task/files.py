"""Read and write task files and tables files: YAML, or JSON if the name ends in .json."""

from __future__ import annotations

import reprlib
from collections.abc import Iterable, Sequence
from dataclasses import asdict, fields, replace
from pathlib import Path
from types import UnionType
from typing import Any, cast, get_args, get_type_hints

import numpy as np
from msgspec import UNSET, Struct, UnsetType, defstruct, to_builtins

from shardwright.arrays import Floats
from shardwright.errors import InvalidInput
from shardwright.files import dump_document, parse_document, write_atomically
from shardwright.schema import Place, check_format, convert, given
from shardwright.task.access import AccessProfile
from shardwright.task.constraints import Constraints, TableConstraint
from shardwright.task.link_files import load_links
from shardwright.task.links import links_to_dict
from shardwright.task.quantities import LEAST_BARE, check_unit, parse_count, parse_number
from shardwright.task.sharding_groups import ShardingGroups
from shardwright.task.table import Dtype, Table
from shardwright.task.task import Optimizer, Task
from shardwright.task.topology import DenseTime, Exchange, Topology

FORMAT = 1

_ACCESS_FORMS = "uniform, {zipf: <exponent>} or {rows: [0, …], share: [0, …, 1]}"


class _TableFile(Struct, forbid_unknown_fields=True):
    name: str
    rows: int | float | str
    dim: int | float | str
    pooling: float | str | list[float | str] = 1.0
    pooled: bool = True
    access: str | dict[str, Any] = "uniform"
    dtype: str = "fp32"
    weighted: bool = False
    id_shares: list[float] = []


class _AccessFile(Struct, forbid_unknown_fields=True):
    zipf: float | UnsetType = UNSET
    rows: list[float] | UnsetType = UNSET
    share: list[float] | UnsetType = UNSET


def table_from_dict(document: object, place: Place) -> Table:
    """Return the table in one item of `tables`.

    Raises:
        InvalidInput: a rule is broken; the message begins with the place.
    """
    content = convert(document, _TableFile, place)
    with place.naming():
        table = Table(
            content.name,
            parse_count(content.rows, "rows"),
            parse_count(content.dim, "dim"),
            _pooling(content.pooling),
            content.pooled,
            dtype=cast(Dtype, content.dtype),
            weighted=content.weighted,
            id_shares=content.id_shares,
        )
    if content.access == "uniform":
        return table
    if isinstance(content.access, str):
        raise InvalidInput(f"{place.at('access')}: {content.access!r} must be {_ACCESS_FORMS}")
    access = convert(content.access, _AccessFile, place.at("access"))
    with place.naming():
        return replace(table, access=_profile(access, table.rows))


def _pooling(given: float | str | list[float | str]) -> float | list[float]:
    if isinstance(given, list):
        return [parse_number(each, f"pooling[{index}]") for index, each in enumerate(given)]
    return parse_number(given, "pooling")


def table_to_dict(table: Table) -> dict[str, Any]:
    """Return the table as plain data, without fields at their default."""
    document: dict[str, Any] = {"name": table.name, "rows": table.rows, "dim": table.dim}
    document["pooling"] = _plain_list(table.poolings) if len(table.poolings) > 1 else plain(table.pooling)
    if not table.pooled:
        document["pooled"] = False
    if (access := _access_to_dict(table)) is not None:
        document["access"] = access
    if table.dtype != "fp32":
        document["dtype"] = table.dtype
    if table.weighted:
        document["weighted"] = True
    if table.id_shares:
        document["id_shares"] = _plain_list(table.id_shares)
    return document


def _profile(content: _AccessFile, rows: int) -> AccessProfile:
    zipf, points, share = content.zipf, content.rows, content.share
    if not isinstance(zipf, UnsetType) and points is UNSET and share is UNSET:
        return AccessProfile.zipf(rows, zipf)
    if zipf is UNSET and not isinstance(points, UnsetType) and not isinstance(share, UnsetType):
        return AccessProfile(np.array(points), np.array(share))
    raise InvalidInput(f"access: fields are {', '.join(given(content)) or 'missing'}; it must be {_ACCESS_FORMS}")


def _access_to_dict(table: Table) -> dict[str, Any] | None:
    access = table.access
    if access == AccessProfile.uniform(table.rows):
        return None
    if access.exponent is not None and access == AccessProfile.zipf(table.rows, access.exponent):
        return {"zipf": plain(access.exponent)}
    return {"rows": _plain_list(access.rows), "share": _plain_list(access.share)}


def plain(number: float) -> int | float:
    """Return a number in its shortest exact form: 1.0 as 1."""
    return int(number) if float(number).is_integer() and abs(number) < 2**53 else float(number)


def _plain_list(numbers: Floats | Sequence[float]) -> list[int | float]:
    return [plain(number) for number in numbers]


class _ExchangeFile(Struct, forbid_unknown_fields=True, frozen=True):
    deduplicate: str | UnsetType = UNSET
    replica_gradients: str | UnsetType = UNSET
    values: str | UnsetType = UNSET
    gradients: str | UnsetType = UNSET
    pipeline: str | UnsetType = UNSET
    conversion: str | UnsetType = UNSET
    collectives: str | UnsetType = UNSET
    dense_ms: float | DenseTime | UnsetType = UNSET


class _TopologyFile(Struct, forbid_unknown_fields=True):
    preset: str | UnsetType = UNSET
    hosts: int | float | str | UnsetType = UNSET
    devices_per_host: int | float | str | list[Any] | UnsetType = UNSET
    device: str | UnsetType = UNSET
    memory: int | float | str | list[int | float | str] | UnsetType = UNSET
    intra_bandwidth: int | float | str | UnsetType = UNSET
    inter_bandwidth: int | float | str | UnsetType = UNSET
    intra_latency_ms: float | UnsetType = UNSET
    inter_latency_ms: float | UnsetType = UNSET
    links: dict[str, Any] | str | UnsetType = UNSET


def _topology_from_dict(content: str | dict[str, Any], place: Place, folder: Path | None) -> Topology:
    """Return the topology in a task file: a preset's name, or a mapping that may name a preset and change some of its fields."""
    if isinstance(content, str):
        content = {"preset": content}
    fields = given(convert(content, _TopologyFile, place))
    preset = fields.pop("preset", None)
    links = fields.pop("links", None)
    if isinstance(links, str) and folder is None:
        raise InvalidInput(
            f"{place}: links names the file {links!r}, which only a task file may do; state the links here"
        )
    with Place(place.file).naming():
        if isinstance(fields.get("devices_per_host"), list):
            raise InvalidInput(
                f"topology: devices_per_host is {fields['devices_per_host']}, but all hosts must have equally many devices; state one "
                "number, and plan larger hosts as several of that size"
            )
        _check_units(fields)
        fields |= {
            name: parse_count(fields[name], f"topology: {name}")
            for name in ("hosts", "devices_per_host")
            if name in fields
        }
        file = folder / links if isinstance(links, str) and folder is not None else None
        measured = None if file is None else load_links(file)
        fields["links"] = links if measured is None else measured.links
        topology = Topology(**fields) if preset is None else Topology.preset(preset, **fields)
        if measured is not None:
            measured.check_cluster(topology, str(file))
    return topology


def _check_units(fields: dict[str, Any]) -> None:
    sizes = fields.get("memory")
    for size in sizes if isinstance(sizes, list) else [sizes]:
        check_unit(size, "topology: memory")
    for field in ("intra_bandwidth", "inter_bandwidth"):
        check_unit(fields.get(field), f"topology: {field}", per_second=True)


def _topology_to_dict(topology: Topology) -> dict[str, Any]:
    """Return the topology as plain data, with a single memory size if all devices have the same."""
    memory = [size if size >= LEAST_BARE else f"{size} B" for size in topology.memory_bytes]
    intra, inter = (plain(speed) if speed >= LEAST_BARE else f"{speed!r} B/s" for speed in topology.link_bandwidth)
    return {
        "hosts": topology.hosts,
        "devices_per_host": topology.devices_per_host,
        "device": topology.device,
        "memory": memory[0] if len(set(memory)) == 1 else memory,
        "intra_bandwidth": intra,
        "inter_bandwidth": inter,
        "intra_latency_ms": plain(topology.intra_latency_ms),
        "inter_latency_ms": plain(topology.inter_latency_ms),
        **({"links": links_to_dict(topology.links)} if topology.links is not None else {}),
    }


def _limits() -> Iterable[tuple[str, Any, Any]]:
    """Name, type and default of each limit of a table, as a constraint in a file states it."""
    for name, kind in get_type_hints(TableConstraint).items():
        stated = [part for part in get_args(kind) if part is not type(None)] if isinstance(kind, UnionType) else [kind]
        yield name, stated[0] | UnsetType, UNSET


_ConstraintFile: Any = defstruct(
    "_ConstraintFile",
    [
        ("table", str | UnsetType, UNSET),
        *_limits(),
        ("colocate", list[str] | UnsetType, UNSET),
        ("apart", list[str] | UnsetType, UNSET),
    ],
    forbid_unknown_fields=True,
)


def _constraints_from_list(items: list[Any], place: Place) -> Constraints:
    tables: dict[str, TableConstraint] = {}
    groups: dict[str, list[tuple[str, ...]]] = {"colocate": [], "apart": []}
    for index, item in enumerate(items):
        at = place.at(f"[{index}]")
        fields = given(convert(item, _ConstraintFile, at))
        kind = _subject(fields, at)
        subject = fields.pop(kind)
        if kind != "table":
            groups[kind].append(tuple(subject))
        elif subject in tables:
            raise InvalidInput(f"{at}: table '{subject}' has a constraint already; put all its limits into one")
        else:
            with at.naming(instead_of="constraints: "):
                tables[subject] = TableConstraint(**fields)
    with Place(place.file).naming():
        return Constraints(tables, tuple(groups["colocate"]), tuple(groups["apart"]))


def _subject(fields: dict[str, Any], place: Place) -> str:
    """Return the kind of a constraint: "table", "colocate" or "apart"."""
    named = [kind for kind in ("table", "colocate", "apart") if kind in fields]
    if len(named) != 1:
        kinds = " and ".join(named) or "none"
        raise InvalidInput(f"{place}: names {kinds} of table, colocate and apart; a constraint names exactly one")
    if named != ["table"] and len(fields) > 1:
        other = next(field for field in fields if field not in named)
        raise InvalidInput(
            f"{place}: {other} does not go with {named[0]}; write {{table: <name>, {other}: …}} for each table"
        )
    return named[0]


def _constraints_to_list(constraints: Constraints) -> list[dict[str, Any]]:
    items = [_ConstraintFile(name, **_without_defaults(limit)) for name, limit in constraints.tables.items()]
    items += [_ConstraintFile(colocate=list(group)) for group in constraints.colocate]
    items += [_ConstraintFile(apart=list(group)) for group in constraints.apart]
    return [to_builtins(item) for item in items]


class _TaskFile(Struct, forbid_unknown_fields=True):
    tables: list[Any] | dict[str, Any]
    batch_size: int | float | str | UnsetType = UNSET
    topology: str | dict[str, Any] | UnsetType = UNSET
    optimizer: str = "rowwise_adagrad"
    constraints: list[Any] = []
    exchange: _ExchangeFile = _ExchangeFile()
    sharding_groups: ShardingGroups | UnsetType = UNSET
    format: int = FORMAT


class _TablesFile(Struct, forbid_unknown_fields=True):
    tables: list[Any] | dict[str, Any]
    format: int = FORMAT


class _TablesElsewhere(Struct, forbid_unknown_fields=True):
    file: str


def load_task(path: str | Path, *, topology: Topology | None = None, batch_size: int | None = None) -> Task:
    """Read a task file; or a tables file, with the cluster and the batch size from elsewhere.

    Args:
        path: the file.
        topology: the cluster, instead of the file's.
        batch_size: samples of a step, instead of the file's.

    Raises:
        InvalidInput: the file cannot be read or breaks a rule; the message names file, field, value and rule.
    """
    document = parse_document(path, "task file")
    return task_from_dict(document, str(path), Path(path).parent, topology=topology, batch_size=batch_size)


def save_task(task: Task, path: str | Path) -> None:
    """Write a task file; atomic. Reading it gives an equal task."""
    write_atomically(path, dump_document(task_to_dict(task), path))


def load_tables(path: str | Path) -> tuple[Table, ...]:
    """Read a tables file, as `shardwright profile` writes it.

    Raises:
        InvalidInput: the file cannot be read or breaks a rule.
    """
    document, place = parse_document(path, "tables file"), Place(str(path))
    check_format(document, place, "tables file", FORMAT)
    tables, place = convert(document, _TablesFile, place).tables, place.at("tables")
    return _tables(tables, place) if isinstance(tables, list) else _tables_by_name(tables, place)


def save_tables(tables: Iterable[Table], path: str | Path) -> None:
    """Write a tables file; atomic. Reading it gives equal tables."""
    document = {"format": FORMAT, "tables": [table_to_dict(table) for table in tables]}
    write_atomically(path, dump_document(document, path))


def task_from_dict(
    document: object,
    where: str = "task",
    folder: Path | None = None,
    *,
    topology: Topology | None = None,
    batch_size: int | None = None,
) -> Task:
    """Return the task in the content of a task file.

    Args:
        document: the content.
        where: the file's path, for messages.
        folder: the folder to which `tables: {file: …}` and `links: FILE` are relative; None if the document itself must hold them.
        topology: the cluster, instead of the document's.
        batch_size: samples of a step, instead of the document's.

    Raises:
        InvalidInput: a rule is broken.
    """
    place = Place(where)
    if isinstance(document, dict) and "shards" in document:
        raise InvalidInput(
            f"{place}: is a plan, not a task; price it with 'shardwright plan --check {where}', or start from it with "
            f"'shardwright plan TASK --from {where}'"
        )
    check_format(document, place, "task file", FORMAT)
    content = convert(document, _TaskFile, place)
    for field, own, other, option in (
        ("batch_size", content.batch_size, batch_size, "--batch 64Ki"),
        ("topology", content.topology, topology, "--devices h100-8"),
    ):
        if own is UNSET and other is None:
            raise InvalidInput(
                f"{place}: the field '{field}' is missing; add it, or give {option} to 'shardwright plan'"
            )
    if topology is None:
        assert not isinstance(content.topology, UnsetType)
        topology = _topology_from_dict(content.topology, place.at("topology"), folder)
    tables = _tables_or_file(content.tables, place.at("tables"), folder)
    constraints = _constraints_from_list(content.constraints, place.at("constraints"))
    groups = content.sharding_groups if isinstance(content.sharding_groups, ShardingGroups) else None
    with place.naming():
        return Task(
            tables,
            topology,
            parse_count(content.batch_size if batch_size is None else batch_size, "batch_size"),
            cast(Optimizer, content.optimizer),
            constraints,
            Exchange(**given(content.exchange)),
            groups,
        )


def task_to_dict(task: Task) -> dict[str, Any]:
    """Return the task as plain data, in the layout of a task file."""
    document: dict[str, Any] = {
        "format": FORMAT,
        "batch_size": task.batch_size,
        "optimizer": task.optimizer,
        "topology": _topology_to_dict(task.topology),
        "tables": [table_to_dict(table) for table in task.tables],
    }
    if constraints := _constraints_to_list(task.constraints):
        document["constraints"] = constraints
    if task.exchange != Exchange():
        document["exchange"] = _without_defaults(task.exchange)
    if task.groups is not None:
        document["sharding_groups"] = _without_defaults(task.groups)
    return document


def _without_defaults(content: Exchange | ShardingGroups | TableConstraint) -> dict[str, Any]:
    changed = (
        (field.name, value) for field in fields(content) if (value := getattr(content, field.name)) != field.default
    )
    plain = ((name, asdict(value) if isinstance(value, DenseTime) else value) for name, value in changed)
    return {name: list(value) if isinstance(value, tuple) else value for name, value in plain}


def _tables_or_file(content: list[Any] | dict[str, Any], place: Place, folder: Path | None) -> tuple[Table, ...]:
    if isinstance(content, list):
        return _tables(content, place)
    if not isinstance(content.get("file"), str):
        return _tables_by_name(content, place)
    file = convert(content, _TablesElsewhere, place).file
    if folder is None:
        raise InvalidInput(f"{place}: names the file {file!r}, which only a task file may do; list the tables here")
    with place.naming():
        return load_tables(folder / file)


def _tables_by_name(content: dict[str, Any], place: Place) -> tuple[Table, ...]:
    """Return the tables of a mapping from a table's name to its other fields."""
    for name, table in content.items():
        if not isinstance(table, dict) or "name" in table:
            shown = reprlib.repr(table)
            raise InvalidInput(
                f"{place.at(name)}: {shown} is not a table: write a mapping without 'name' under the table's name, "
                "{user_id: {rows: 1000, dim: 64}, …}, or a list, [{name: user_id, rows: 1000, dim: 64}, …], or {file: <a tables file>}"
            )
    return tuple(table_from_dict({"name": name, **table}, place.at(name)) for name, table in content.items())


def _tables(items: list[Any], place: Place) -> tuple[Table, ...]:
    return tuple(table_from_dict(item, place.at(f"[{index}]")) for index, item in enumerate(items))
