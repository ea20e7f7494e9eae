"""Options of `shardwright collect`. Values are checked by the parts that use them, not here."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from shardwright.cli.options import option

Output = Annotated[Path, option("--output", "-o", metavar="FOLDER", text="The sample store; an existing one goes on.")]
SampleCount = Annotated[
    int | None,
    option(
        "--samples",
        "-n",
        metavar="N",
        text="Samples the store is to hold in the end. (default 8000, of collectives 2000)",
    ),
]
Collectives = Annotated[
    bool, typer.Option("--collectives", help="Measure collectives between processes, in place of kernels.")
]
BatchSizes = Annotated[
    list[int] | None,
    option(
        "--batch-size",
        metavar="N",
        text="Samples a batch; repeat for several. (default: the space's, for collectives four sizes)",
    ),
]
Space = Annotated[
    str | None,
    option("--space", metavar="NAME", text="How wide to sample: usual, or wide. (default usual, on cuda wide)"),
]
OptimizerName = Annotated[
    str | None, option("--optimizer", metavar="NAME", text="Optimizer inside backward. (default: the space's)")
]
PoolName = Annotated[str, typer.Option("--pool", metavar="NAME", help="Table pool that sets are drawn from.")]
SequenceShare = Annotated[
    float | None,
    option("--sequence-share", metavar="X", text="Share of sets with sequence tables. (default: the space's)"),
]
Memory = Annotated[
    str | None,
    option(
        "--memory",
        metavar="SIZE",
        text="Room for the tables of a sample. (default 4 GB, on cuda 45% of the card, at most 60 GB)",
    ),
]
Seconds = Annotated[
    float | None,
    option(
        "--seconds",
        metavar="N",
        text="Stop after this time; the same command again goes on. (default none, on cuda 1400; inf for none)",
    ),
]
Export = Annotated[
    Path | None,
    option(
        "--export",
        metavar="FILE",
        text="Measure nothing: write the store's kernel samples to a small Parquet file, which train reads.",
    ),
]
World = Annotated[int | None, option("--world", metavar="N", text="With --collectives: ranks to start. (default 2)")]
Hosts = Annotated[
    int | None,
    option("--hosts", metavar="N", text="With --collectives: hosts that the ranks stand for. (default 1)"),
]
Kinds = Annotated[
    list[str] | None,
    option("--kind", metavar="NAME", text="With --collectives: repeat for several. (default all)"),
]
Runs = Annotated[
    int | None,
    option("--runs", metavar="N", text="With --collectives: the median of so many counts. (default 10)"),
]
Timeout = Annotated[
    float | None,
    option(
        "--timeout",
        metavar="SECONDS",
        text="With --collectives: a sample that takes longer is skipped. (default 60)",
    ),
]
