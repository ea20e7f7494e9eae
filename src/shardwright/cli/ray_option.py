"""The option `--ray` of the commands whose work a Ray cluster can do."""

from __future__ import annotations

from typing import Annotated

from shardwright.cli.options import option

RayAddress = Annotated[
    str | None,
    option(
        "--ray",
        metavar="ADDRESS|local",
        text="Work on a Ray cluster: auto, HOST:PORT, ray://HOST:PORT, or local[:N], which starts N workers here.",
    ),
]
