"""What comes after a profile: a task file to start from, and the command to run next, ready to paste."""

from __future__ import annotations

import json
import math
import os
import shlex
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import typer

from shardwright.files import dump_document, write_atomically
from shardwright.sharding.memory import optimizer_bytes
from shardwright.task import PRESETS, Table, Topology

PRESET = "h100-8"
_SAMPLES = 1024  # a device and step
_ROOM = 2.0  # the tables take half of the memory: buffers, and tables that grow, need some


@dataclass(frozen=True)
class FirstTask:
    """A task of profiled tables, on devices that are guessed.

    Attributes:
        preset: the kind of hosts.
        hosts: as many as the tables need.
        batch_size: samples a step.
        tables: the file of the tables.
    """

    preset: str
    hosts: int
    batch_size: int
    tables: Path

    @classmethod
    def of(cls, tables: Sequence[Table], file: Path, preset: str) -> FirstTask:
        """Choose as many hosts as leave half of their memory free.

        Raises:
            InvalidInput: there is no such preset.
        """
        host = Topology.preset(preset)
        needed = sum(one.weight_bytes + optimizer_bytes("rowwise_adagrad", one.rows, one.dim) for one in tables)
        hosts = max(1, math.ceil(_ROOM * needed / sum(host.memory_bytes)))
        return cls(preset, hosts, _SAMPLES * host.devices * hosts, file)

    def text(self, path: Path) -> str:
        """The content of the task file at a path; in YAML its comments say what is to be edited."""
        tables = os.path.relpath(self.tables.absolute(), path.absolute().parent)
        if path.suffix.lower() == ".json":
            topology = {"preset": self.preset, "hosts": self.hosts}
            document = {"batch_size": self.batch_size, "topology": topology, "tables": {"file": tables}}
            return dump_document(document, path)
        presets = ", ".join(("cpu (this machine)", *(name for name in PRESETS if name != self.preset)))
        return (
            "# A task to start from: set the batch size and the devices that you have.\n"
            f"batch_size: {self.batch_size}  # samples a step, of all devices together\n"
            f"topology: {{preset: {self.preset}, hosts: {self.hosts}}}  # other presets: {presets}\n"
            f"tables: {{file: {json.dumps(tables)}}}\n"
        )

    def save(self, path: Path) -> bool:
        """Write it, unless there is such a file, which somebody may have edited; returns whether it was written.

        Raises:
            InvalidInput: the path cannot be written to.
        """
        if path.is_file():
            return False
        write_atomically(path, self.text(path))
        return True


def planning(task: Path, rank_maps: Path | None) -> str:
    """The command that plans a task."""
    maps = "" if rank_maps is None else f" --rank-maps {shlex.quote(str(rank_maps))}"
    return f"shardwright plan {shlex.quote(str(task))}{maps} -o plan.json"


def writing_and_planning(first: FirstTask, rank_maps: Path | None) -> str:
    """The commands that write the task beside its tables, where no file is, and plan it."""
    names = ("task.yaml", f"{first.tables.stem}-task.yaml")
    paths = [first.tables.with_name(name) for name in names]
    path = next((one for one in paths if not one.exists()), paths[-1])
    return f"cat > {shlex.quote(str(path))} <<'END'\n{first.text(path)}END\n{planning(path, rank_maps)}"


def profiling_again(context: typer.Context, without: Collection[str], *more: str) -> str:
    """The command that was given, without some columns.

    Args:
        context: of the command, for the options as they were given.
        without: the columns.
        *more: further options.
    """
    words = ["shardwright profile", _files(context.params["logs"])]
    for parameter in context.command.params:
        name = str(parameter.name)
        source = context.get_parameter_source(name)
        if name in ("logs", "as_json") or source is None or source.name != "COMMANDLINE":
            continue
        given: Any = context.params[name]
        for value in given if isinstance(given, (list, tuple)) else [given]:
            if name not in ("sequence", "pooled", "column") or value not in without:
                words += [min(parameter.opts, key=len), shlex.quote(str(value))]
    words += [*more, *(f"--exclude {shlex.quote(name)}" for name in without)]
    return " ".join(words)


def _files(paths: Sequence[Path]) -> str:
    """The files as a pattern of the shell where one names just these, else one by one."""
    folders, endings = {path.parent for path in paths}, {path.suffix for path in paths}
    if len(paths) > 1 and len(folders) == len(endings) == 1:
        (folder,), (ending,) = folders, endings
        if ending and set(folder.glob(f"[!.]*{ending}")) == set(paths) and shlex.quote(ending) == ending:
            return f"*{ending}" if folder == Path() else f"{shlex.quote(str(folder))}/*{ending}"
    return shlex.join(map(str, paths))
