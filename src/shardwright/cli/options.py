"""Arguments and options that several commands share. Values are checked by the parts that use them, not here."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer


def option(*names: str, metavar: str, text: str) -> Any:
    """An option of which the help needs no default value."""
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
    option("--model", metavar="FILE", text="Cost model; by default the one calibrated here, or the bundled one."),
]
Seed = Annotated[int, typer.Option("--seed", min=0, help="Same seed, same result.")]
TimeLimit = Annotated[
    float | None, option("--time-limit", metavar="SECONDS", text="A search returns its best plan after this time.")
]
RunsOn = Annotated[
    str,
    typer.Option(
        "--runs-on",
        metavar="shardwright|torchrec",
        help="What is to run the plan: TorchRec has no tiers and equal row blocks only.",
    ),
]
Rounds = Annotated[
    int, typer.Option("--rounds", min=1, help="How often everything is measured; the shortest time counts.")
]
Device = Annotated[str, typer.Option("--device", metavar="cpu|cuda", help="What to measure on.")]
OtherHardware = Annotated[
    bool, typer.Option("--allow-other-hardware", help="Accept samples that were measured on other hardware.")
]
HardwareName = Annotated[
    str | None,
    option(
        "--hardware",
        metavar="NAME",
        text="Take what was measured on the processor, or by the backend, with this in its name. (default: the only one there is)",
    ),
]
BackendName = Annotated[
    str | None,
    option(
        "--backend",
        metavar="NAME",
        text="fbgemm, embedding_bag, or your own as package.module:ClassName. (default fbgemm, or embedding_bag where it is absent)",
    ),
]
