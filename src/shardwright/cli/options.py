"""Arguments and options that several commands share. The code that uses the values checks them, not this module."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from shardwright.errors import InvalidInput
from shardwright.task.quantities import parse_bytes

if TYPE_CHECKING:
    from shardwright.cost import CostModel
    from shardwright.task import Task


def option(*names: str, metavar: str, text: str) -> Any:
    """An option whose help shows no default value."""
    return typer.Option(*names, metavar=metavar, help=text, show_default=False)


AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document on stdout; all else goes to stderr.")]
TaskFile = Annotated[Path, typer.Argument(metavar="TASK", help="Task file, YAML or JSON.", show_default=False)]
SamplesFolders = Annotated[
    list[Path],
    typer.Argument(
        metavar="SAMPLES...", help="Folders that 'shardwright collect' made, or Parquet files.", show_default=False
    ),
]
ModelFile = Annotated[
    Path | None,
    option(
        "--model",
        metavar="FILE|NAME",
        text="Cost model, by its file or the name that 'shardwright models' lists; by default the one calibrated here, or the bundled one.",
    ),
]
STRATEGIES = (
    "Strategy. 'auto' keeps the best plan of all that the time allows. By name: certified, greedy, neuroshard, autoshard, dreamshard, "
    "dreamshard+, flexshard, random, size, dim, lookup, size_lookup; exact for a handful of tables, rnn, two_tiers, mip, and torchrec "
    "(its own planner)."
)
Seed = Annotated[int, typer.Option("--seed", min=0, help="Same seed, same result.")]
TimeLimit = Annotated[
    float | None,
    option(
        "--time-limit",
        metavar="SECONDS",
        text="A search returns its best plan after this time; by default, once it finds no better plan for a while.",
    ),
]
Gap = Annotated[
    float | None,
    option(
        "--gap",
        metavar="PART",
        text="End the search once the plan is proven this close to the best: 0.01 is 1%; with --time-limit, only this ends it earlier.",
    ),
]
OnRuntime = Annotated[
    str,
    typer.Option(
        "--runs-on",
        metavar="auto|torchrec|shardwright",
        help="Runtime of the plan: TorchRec, or shardwright.runtime, which has tiers and uneven blocks; auto prefers TorchRec.",
    ),
]
Rounds = Annotated[int, typer.Option("--rounds", min=1, help="Undisturbed measurements per device; the median counts.")]
Device = Annotated[str, typer.Option("--device", metavar="cpu|cuda", help="Device to measure on.")]
OtherHardware = Annotated[
    bool, typer.Option("--allow-other-hardware", help="Accept samples that were measured on other hardware.")
]
HardwareName = Annotated[
    str | None,
    option(
        "--hardware",
        metavar="NAME",
        text="Use the samples of the processor or backend with this in its name. (default: the only one in the store)",
    ),
]
BackendName = Annotated[
    str | None,
    option(
        "--backend",
        metavar="NAME",
        text="fbgemm, embedding_bag, a plug-in's name, or package.module:ClassName. (default fbgemm, or embedding_bag if it is absent)",
    ),
]
RayAddress = Annotated[
    str | None,
    option(
        "--ray",
        metavar="ADDRESS|local",
        text="Work on a Ray cluster: auto, HOST:PORT, ray://HOST:PORT, or local[:N], which starts N workers here.",
    ),
]

Sequences = Annotated[
    list[str] | None, option("--sequence", metavar="NAME", text="List column whose rows stay separate; or a pattern.")
]
Hashed = Annotated[
    list[str] | None,
    option(
        "--hashed", metavar="NAME", text="Column of hashes: negative numbers are ids too; or a pattern, as in 'C*'."
    ),
]
ListSeparator = Annotated[str | None, option("--list-separator", metavar="TEXT", text="Separates ids in a CSV field.")]
NoHeader = Annotated[
    bool, typer.Option("--no-header", help="CSV files have no line of names; columns are column_1, column_2, ….")
]
Columns = Annotated[
    str | None,
    option(
        "--columns",
        metavar="A,B,…",
        text="Names of the columns of CSV files without a header, also as ranges: label,I1..I13,C1..C26.",
    ),
]

_RANGE = re.compile(r"(.*?)([0-9]{1,6})\.\.(.*?)([0-9]{1,6})")

Devices = Annotated[
    str | None,
    option("--devices", metavar="PRESET", text="Type of hosts, such as h100-8, instead of the task's."),
]
Hosts = Annotated[str | None, option("--hosts", metavar="N", text="Number of hosts, instead of the task's.")]
Reserve = Annotated[
    str | None,
    option(
        "--reserve",
        metavar="20%|16 GB",
        text="Memory of each device to leave to dense layers and activations: of the whole card with --devices (which leave 15% by "
        "default), else of the memory that the task gives.",
    ),
]
MostMoved = Annotated[
    str | None,
    option(
        "--most-moved",
        metavar="SIZE",
        text="Take the best step among plans that move at most so many bytes, such as '20 GB'.",
    ),
]
Batch = Annotated[
    str | None, option("--batch", metavar="N", text="Samples of a step over all devices, instead of the task's.")
]


def most_moved_bytes(text: str | None) -> int | None:
    """The value of `--most-moved` in bytes; None without one.

    Raises:
        InvalidInput: it is no size.
    """
    return None if text is None else parse_bytes(text, "most_moved") if text.strip() != "0" else 0


def column_names(columns: str | None) -> list[str]:
    """The names that `--columns` lists, with ranges such as `C1..C26` spelt out.

    Raises:
        InvalidInput: a range has two different words, or runs backwards.
    """
    names: list[str] = []
    for text in columns.split(",") if columns is not None else ():
        name = text.strip()
        match = _RANGE.fullmatch(name)
        if match is None:
            names.append(name)
        elif match[1] == match[3] and int(match[2]) <= int(match[4]):
            names += [f"{match[1]}{number}" for number in range(int(match[2]), int(match[4]) + 1)]
        else:
            raise InvalidInput(f"--columns: {name!r} is no range of names; write one as C1..C26")
    return names


def cost_model_for(given: Path | None, task: Task, task_file: Path) -> CostModel:
    """The cost model of `--model`, or the default one for a task.

    Raises:
        InvalidInput: the file cannot be read, or the task's devices have no model; the message names the file at fault.
    """
    from shardwright.cost import resolve_cost_model
    from shardwright.schema import Place

    with Place(str(given or task_file)).naming():
        return resolve_cost_model(given, task)
