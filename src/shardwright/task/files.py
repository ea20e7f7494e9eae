"""Task files and table files: YAML, or JSON where the name ends in .json."""

from __future__ import annotations

import reprlib
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any, cast

from msgspec import UNSET, Struct, UnsetType, structs, to_builtins

from shardwright.errors import InvalidInput
from shardwright.files import dump_document, parse_document, write_atomically
from shardwright.schema import Place, check_format, convert
from shardwright.task.exchange import Deduplication, Exchange, ReplicaGradients
from shardwright.task.file_constraints import constraints_from_list, constraints_to_list
from shardwright.task.file_tables import table_from_dict, table_to_dict
from shardwright.task.file_topology import topology_from_dict, topology_to_dict
from shardwright.task.groups import ShardingGroups
from shardwright.task.table import Table
from shardwright.task.task import Optimizer, Task

__all__ = [
    "load_tables",
    "load_task",
    "save_tables",
    "save_task",
    "table_from_dict",
    "table_to_dict",
    "task_from_dict",
    "task_to_dict",
]

FORMAT = 1


class _ExchangeFile(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    deduplicate: Deduplication = "none"
    replica_gradients: ReplicaGradients = "whole"


class _GroupsFile(Struct, forbid_unknown_fields=True, omit_defaults=True):
    size: int
    hosts: int
    devices_per_host: int
    sync_interval: int = 1
    inter_host_allreduce: bool = False
    fully_sharded: bool = False


class _TaskFile(Struct, forbid_unknown_fields=True):
    batch_size: int
    topology: str | dict[str, Any]
    tables: list[Any] | dict[str, Any]
    optimizer: str = "rowwise_adagrad"
    constraints: list[Any] = []
    exchange: _ExchangeFile = _ExchangeFile()
    sharding_groups: _GroupsFile | UnsetType = UNSET
    format: int = FORMAT


class _TablesFile(Struct, forbid_unknown_fields=True):
    tables: list[Any] | dict[str, Any]
    format: int = FORMAT


class _TablesElsewhere(Struct, forbid_unknown_fields=True):
    file: str


def load_task(path: str | Path) -> Task:
    """Read a task file.

    Raises:
        InvalidInput: the file cannot be read or breaks a rule; the message names file, field, value and rule.
    """
    return task_from_dict(parse_document(path, "task file"), str(path), Path(path).parent)


def save_task(task: Task, path: str | Path) -> None:
    """Write a task file; atomic. Reading it gives an equal task."""
    write_atomically(path, dump_document(task_to_dict(task), path))


def load_tables(path: str | Path) -> tuple[Table, ...]:
    """Read a file of tables, as `shardwright profile` writes it.

    Raises:
        InvalidInput: the file cannot be read or breaks a rule.
    """
    document, place = parse_document(path, "tables file"), Place(str(path))
    check_format(document, place, "tables file", FORMAT)
    tables, place = convert(document, _TablesFile, place).tables, place.at("tables")
    return _tables(tables, place) if isinstance(tables, list) else _tables_by_name(tables, place)


def save_tables(tables: Iterable[Table], path: str | Path) -> None:
    """Write a file of tables; atomic. Reading it gives equal tables."""
    document = {"format": FORMAT, "tables": [table_to_dict(table) for table in tables]}
    write_atomically(path, dump_document(document, path))


def task_from_dict(document: object, where: str = "task", folder: Path | None = None) -> Task:
    """The task in the content of a task file.

    Args:
        document: the content.
        where: what to call it in messages: the file's path.
        folder: what `tables: {file: …}` is relative to; None if the tables must be in the document itself.

    Raises:
        InvalidInput: a rule is broken.
    """
    place = Place(where)
    check_format(document, place, "task file", FORMAT)
    content = convert(document, _TaskFile, place)
    topology = topology_from_dict(content.topology, place.at("topology"))
    tables = _tables_or_file(content.tables, place.at("tables"), folder)
    constraints = constraints_from_list(content.constraints, place.at("constraints"))
    exchange = Exchange(content.exchange.deduplicate, content.exchange.replica_gradients)
    with place.naming():
        given = content.sharding_groups
        groups = ShardingGroups(**structs.asdict(given)) if isinstance(given, _GroupsFile) else None
        return Task(
            tables, topology, content.batch_size, cast(Optimizer, content.optimizer), constraints, exchange, groups
        )


def task_to_dict(task: Task) -> dict[str, Any]:
    """The task as plain data, in the layout of a task file."""
    document: dict[str, Any] = {
        "format": FORMAT,
        "batch_size": task.batch_size,
        "optimizer": task.optimizer,
        "topology": topology_to_dict(task.topology),
        "tables": [table_to_dict(table) for table in task.tables],
    }
    if constraints := constraints_to_list(task.constraints):
        document["constraints"] = constraints
    if task.exchange != Exchange():
        document["exchange"] = to_builtins(_ExchangeFile(task.exchange.deduplicate, task.exchange.replica_gradients))
    if task.groups is not None:
        document["sharding_groups"] = to_builtins(_GroupsFile(**asdict(task.groups)))
    return document


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
    """The tables of a mapping of names to what a list would say of each."""
    for name, fields in content.items():
        if not isinstance(fields, dict) or "name" in fields:
            shown = reprlib.repr(fields)
            raise InvalidInput(
                f"{place.at(name)}: {shown} is no table under its name; "
                "write tables as a list, [{name: user_id, rows: 1000, dim: 64}, …], "
                "by name, {user_id: {rows: 1000, dim: 64}, …}, or as {file: <path of a tables file>}"
            )
    return tuple(table_from_dict({"name": name, **fields}, place.at(name)) for name, fields in content.items())


def _tables(items: list[Any], place: Place) -> tuple[Table, ...]:
    return tuple(table_from_dict(item, place.at(f"[{index}]")) for index, item in enumerate(items))
