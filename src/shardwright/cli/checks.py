"""Checks that commands make before their work, which may take hours: devices, plans, and the files they will write."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shardwright.errors import InvalidInput, some_of
from shardwright.files import is_stream, parse_document, status

if TYPE_CHECKING:
    import typer

    from shardwright.sharding import Plan
    from shardwright.task import Table, Task

_STORE_FILES = (".sqlite", ".json")
_DOCUMENTS = (".json", ".yaml", ".yml")
_MOST_NAMED = 1000  # files; this also ends the search in a document that names itself
_COMPARED_APART = ("tables", "topology", "constraints")  # fields of a task that have a comparison of their own


def measured_device(kind: str) -> str:
    """The device type that topologies use for this machine's "cpu" or "cuda" device."""
    if kind != "cuda":
        return "cpu"
    from shardwright.cost.files import device_type
    from shardwright.hardware import gpu_model

    return device_type({"device_kind": kind, "processor": gpu_model()})


def other_device(plan_for: str, kind: str) -> str | None:
    """Why times predicted for a device type cannot be compared with this machine's "cpu" or "cuda" times; None if they can."""
    from shardwright.report import not_comparable

    return not_comparable(plan_for, measured_device(kind))


def check_same_task(plan: Plan, plan_file: object, task: Task, task_file: object) -> None:
    """Check that a plan was made for exactly this task, not for an older version of it or for another one.

    Raises:
        InvalidInput: the tasks differ; the message lists the differences.
    """
    if texts := list(differences(plan.task, task)):
        listed = some_of(texts, separator="; ")
        raise InvalidInput(f"{plan_file}: a plan for another task than {task_file} ({listed}); plan this task anew")


def differences(planned: Task, task: Task) -> Iterator[str]:
    """The differences between a plan's task and a given one, in words; the order of tables does not matter."""
    for field in (attribute.name for attribute in fields(task) if attribute.name not in _COMPARED_APART):
        if getattr(planned, field) != getattr(task, field):
            yield f"{field} is {getattr(planned, field)} in the plan, {getattr(task, field)} in the task"
    for field in (attribute.name for attribute in fields(task.topology)):
        if field == "links" and task.topology.links is None:
            continue  # such a task is planned with the links that were measured on its cluster, if any
        if getattr(planned.topology, field) != getattr(task.topology, field):
            yield f"topology: {field} differs"
    for name, table in planned.table_by_name.items():
        if name not in task.table_by_name:
            yield f"the task has no table '{name}'"
        else:
            yield from _table_differences(table, task.table_by_name[name])
    yield from (f"the plan has no table '{name}'" for name in task.table_by_name if name not in planned.table_by_name)
    if planned.constraints != task.constraints:
        yield "constraints differ"


def _table_differences(planned: Table, table: Table) -> Iterator[str]:
    for field in (attribute.name for attribute in fields(table)):
        before, after = getattr(planned, field), getattr(table, field)
        if before != after:
            how = "differs" if field == "access" else f"is {before}, not {after}"
            yield f"table '{table.name}': {field} {how}"


def check_target(path: Path | None, *, inputs: Iterable[Path | None] = (), outputs: Iterable[Path | None] = ()) -> None:
    """Check that a result can be saved, and that saving it overwrites nothing of value.

    Args:
        path: where the result is to be saved; None if it is not saved.
        inputs: files that the command reads, and sample stores; None stands for an option that was not given.
        outputs: the other files that the command writes.

    Raises:
        InvalidInput: the path is a folder, leads nowhere or lies in a folder that does not exist; or it is an input, a file that an
            input names, a file of a sample store, or another output.
    """
    if path is None:
        return
    if _is_folder(path, "cannot be written"):
        raise InvalidInput(f"{path}: is a folder; name a file in it with -o")
    if is_stream(path):
        if status(path) is None:
            raise InvalidInput(f"{path}: no such descriptor is open; name a file with -o")
        return
    if not path.resolve().parent.is_dir():
        raise InvalidInput(f"{path}: its folder does not exist; make it first, or name a file elsewhere with -o")
    for other in inputs:
        if other is None or not _is_there(other):  # the code that reads it reports that it is missing
            continue
        if _same_file(path, other):
            raise InvalidInput(f"{path}: is an input too, which saving would overwrite; name another file to save to")
        if path.is_file() and any(_same_file(path, named) for named in _files_named_in(other) if _is_there(named)):
            raise InvalidInput(
                f"{path}: is named in {other}, and saving would overwrite it; name another file to save to"
            )
        if other.is_dir() and path.suffix in _STORE_FILES and path.resolve().parent.samefile(other):
            raise InvalidInput(
                f"{path}: {other} is a sample store, which owns its {' and '.join(_STORE_FILES)} files; name a file in another folder "
                "with -o"
            )
    for other in outputs:
        if other is not None and _same_file(path, other):
            raise InvalidInput(f"{path}: two results would be saved there, one over the other; name a file for each")


def check_folder(path: Path) -> None:
    """Check that a folder exists or can be made.

    Raises:
        InvalidInput: the path is a file, lies in one, leads nowhere, or may not be written to.
    """
    nearest = path.absolute()
    while not _is_folder(nearest, "cannot be made"):
        if status(nearest) is not None:
            raise InvalidInput(f"{path}: {nearest} is no folder; name a folder elsewhere with -o")
        nearest = nearest.parent
    if not os.access(nearest, os.W_OK | os.X_OK):
        raise InvalidInput(f"{path}: {nearest} may not be written to; name a folder elsewhere with -o")


def make_folder(path: Path, names: Iterable[str] = (), inputs: Iterable[Path | None] = ()) -> None:
    """Make a folder, unless it exists, and check that results can be saved in it.

    Args:
        path: the folder.
        names: names of the files that the command will save there.
        inputs: files that the command reads; None stands for an option that was not given.

    Raises:
        InvalidInput: the folder cannot be made, or a result cannot be saved or would overwrite an input.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InvalidInput(
            f"{path}: the folder cannot be made ({error.strerror}); name one where you may write"
        ) from error
    for name in names:
        check_target(path / name, inputs=inputs)


def given_parameters(context: typer.Context) -> list[Any]:
    """The parameters that the command line names, with any values, in the order of their declaration."""
    sources = [(parameter, context.get_parameter_source(str(parameter.name))) for parameter in context.command.params]
    return [parameter for parameter, source in sources if source is not None and source.name == "COMMANDLINE"]


def check_absent(context: typer.Context, names: Iterable[str], rule: str) -> None:
    """Check that the command line names none of these parameters.

    Args:
        context: the command.
        names: names of parameters.
        rule: why they do not belong to it, and the remedy; follows the option in the message.

    Raises:
        InvalidInput: it names one.
    """
    for parameter in given_parameters(context):
        if parameter.name in names:
            raise InvalidInput(f"{parameter.opts[0]} {rule}")


def _is_folder(path: Path, otherwise: str) -> bool:
    """Whether a path is a folder.

    Raises:
        InvalidInput: nothing can exist there: a name is too long, or a link leads to itself.
    """
    try:
        info = status(path)
    except OSError as error:
        raise InvalidInput(f"{path}: {otherwise} ({error.strerror}); name another with -o") from None
    return info is not None and stat.S_ISDIR(info.st_mode)


def _is_there(path: Path) -> bool:
    try:
        return status(path) is not None
    except OSError:
        return False


def _same_file(first: Path, second: Path) -> bool:
    """Whether two paths lead to one regular file, also through links. Pipes and devices, such as a terminal, can be shared safely."""
    if _is_there(first) and _is_there(second):
        return first.is_file() and first.samefile(second)
    return os.path.realpath(first) == os.path.realpath(second)


def _files_named_in(path: Path) -> list[Path]:
    """The files that a document names with `{file: …}`, relative to its folder, and the files that those name in turn."""
    named, waiting = dict[Path, None](), [path]
    while waiting and len(named) < _MOST_NAMED:
        document = waiting.pop()
        new = [document.parent / name for name in _names(_content(document))]
        waiting += [file for file in new if file not in named]
        named |= dict.fromkeys(new)
    return list(named)


def _content(path: Path) -> object:
    """The content of a YAML or JSON file; None for another file, or one that cannot be read."""
    if path.suffix.lower() not in _DOCUMENTS or not path.is_file():
        return None
    try:
        return parse_document(path)
    except InvalidInput:
        return None


def _names(node: object) -> Iterator[str]:
    if isinstance(node, list):
        for item in node:
            yield from _names(item)
    elif isinstance(node, dict):
        for key, value in node.items():
            if key == "file" and isinstance(value, str):
                yield value
            else:
                yield from _names(value)
