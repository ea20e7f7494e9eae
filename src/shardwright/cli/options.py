"""Arguments and options that several commands share. The code that uses the values checks them, not this module."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

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
        metavar="FILE",
        text="Cost model, or a plug-in's name; by default the one calibrated here, or the bundled one.",
    ),
]
Seed = Annotated[int, typer.Option("--seed", min=0, help="Same seed, same result.")]
TimeLimit = Annotated[
    float | None, option("--time-limit", metavar="SECONDS", text="A search returns its best plan after this time.")
]
Gap = Annotated[
    float | None,
    option(
        "--gap",
        metavar="PART",
        text="End the search once the plan is proven this close to the best: 0.01 is 1%; with --time-limit, nothing else ends it before.",
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


def cost_model_for(given: Path | None, task: Task, task_file: Path) -> CostModel:
    """The cost model of `--model`, or the default one for a task.

    Raises:
        InvalidInput: the file cannot be read, or the task's devices have no model; the message names the file at fault.
    """
    from shardwright.cost import resolve_cost_model
    from shardwright.schema import Place

    with Place(str(given or task_file)).naming():
        return resolve_cost_model(given, task)
