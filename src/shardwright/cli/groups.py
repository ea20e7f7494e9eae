"""`shardwright plan --sharding-group-size`: 2D parallelism, planned for one size of the sharding groups or for each."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import rich.table
import typer

from shardwright.cli.options import option
from shardwright.cli.output import MISSING, ms, percent, table
from shardwright.errors import InvalidInput
from shardwright.task.units import format_bytes

if TYPE_CHECKING:
    from shardwright.search.groups import GroupSizes

GroupSizeOption = Annotated[
    str | None,
    option(
        "--sharding-group-size",
        metavar="N|auto",
        text="2D parallelism, for TorchRec's DMPCollection: devices of a sharding group, of which the plan is; 'auto' takes the best size.",
    ),
]
SyncInterval = Annotated[
    int, typer.Option("--sync-interval", min=1, help="Steps from one all-reduce of the groups' weights to the next.")
]
InterHost = Annotated[
    bool,
    typer.Option(
        "--inter-host-allreduce",
        help="Ranks of a group are neighbours, as by use_inter_host_allreduce; else replicas are.",
    ),
]
FullySharded = Annotated[
    bool,
    typer.Option("--fully-sharded", help="ShardingStrategy.FULLY_SHARDED: weights travel in every step."),
]

_COLUMNS = ("size", "groups", "step", "sync", "bound", "gap", "memory", "between passes", "why there is no plan")


def size_of(given: str | None, runs_on: str, others: dict[str, bool]) -> int | None:
    """The size that is asked for; None for every size, or where no groups are.

    Args:
        given: the value of `--sharding-group-size`.
        runs_on: the value of `--runs-on`.
        others: which options are given that need groups ("--sync-interval"), or that groups exclude ("--from").

    Raises:
        InvalidInput: the size is no number, or options do not go together.
    """
    if given is None:
        lonely = [name for name, used in others.items() if used and name != "--from"]
        if lonely:
            raise InvalidInput(f"{lonely[0]} is for sharding groups; add --sharding-group-size auto, or a size")
        return None
    if runs_on != "torchrec":
        raise InvalidInput("--sharding-group-size is for TorchRec's DMPCollection; add --runs-on torchrec")
    if others["--from"]:
        raise InvalidInput("--sharding-group-size plans from the start; leave --from out")
    if given == "auto":
        return None
    if not given.isascii() or not given.isdigit() or len(given) > 9 or int(given) < 1:
        raise InvalidInput(f"--sharding-group-size is {given!r}, must be a number of devices of at least 1, or auto")
    return int(given)


def sizes_view(sizes: GroupSizes) -> rich.table.Table:
    """A row for each size; the one taken has a star."""
    rows, best = [], sizes.best
    for one in sizes:
        plan, memory = one.plan, one.memory
        star = " *" if one is best and len(sizes) > 1 else ""
        figures = [MISSING] * 6
        if plan is not None and memory is not None:
            gap = MISSING if plan.gap is None else percent(plan.gap)
            held = [format_bytes(int(bytes_.max())) for bytes_ in (memory.peak, memory.between)]
            figures = [ms(one.step_ms), ms(one.synchronisation_ms), ms(plan.bound_ms), gap, *held]
        rows.append([f"{one.groups.size}{star}", str(one.groups.count), *figures, one.why_not])
    shown = len(_COLUMNS) if any(one.why_not for one in sizes) else len(_COLUMNS) - 1
    cells = [row[:shown] for row in rows]
    return table(
        "sharding groups by size, ms and the fullest device", _COLUMNS[:shown], cells, texts={0, len(_COLUMNS) - 1}
    )
