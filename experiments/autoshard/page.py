"""The page of `autoshard-transfer`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from experiments.autoshard.kinds import Scale
from experiments.autoshard.matrix import Costs, Loss, Matrix, balance_table, matrix
from experiments.experiment import Page, ResultTable, Row
from experiments.learned.policy_training import LEARNERS
from experiments.learned.tasks import BATCH, DIM, POOL
from experiments.pages import panels
from experiments.summaries import NOTHING, REDESIGNS, cell, conditions

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Matrices = Mapping[str, Sequence[Matrix]]
_DARKEST = 5.0
"""Loss in percent at which the picture's colour scale ends."""


def page(rows: Sequence[Row], scale: Scale, seeds: int, quick: bool) -> Page:
    """Make the page of the rows.

    Args:
        rows: rows planned so far.
        scale: kinds, numbers of tasks, and training options.
        seeds: number of trainings of each policy.
        quick: whether it is a quick run, whose policies are hardly trained.
    """
    matrices = {strategy: [matrix(Costs(rows, strategy), part) for part in scale.parts] for strategy in LEARNERS}
    tables = [summary_table(matrices)]
    tables += [matrix_table(strategy, each) for strategy, of_strategy in matrices.items() for each in of_strategy]
    tables += [balance_table(rows, scale.parts), training_table(rows)]
    return Page(
        "Transfer of learned policies without fine-tuning",
        text(scale, seeds, quick),
        tables,
        {"": picture(matrices)},
        conditions(rows),
    )


def text(scale: Scale, seeds: int, quick: bool) -> list[str]:
    """Paragraphs on the setting, and on the limits of its figures."""
    hardly = (
        "**Quick: policies are hardly trained and tested on few tasks. This page shows that everything runs; its losses say nothing about "
        "the strategies.**"
    )
    return [
        *([hardly] if quick else []),
        f"Each kind of tasks trains a policy, on {scale.training_tasks} tasks of tables from one half of the pool {POOL} (dim {DIM}, "
        f"batch {BATCH:,}, every table whole). Tests without fine-tuning use {scale.tasks} tasks of each kind, of tables from the other "
        "half. A cell is a loss: the mean cost of the row's policy over that of the policy trained on the column's kind, minus 1, over "
        "the tasks that both placed, with its 95% bootstrap interval over tasks. The cost is the paper's objective: the step for "
        "DreamShard, the kernels of the slowest device for AutoShard. The lines below a matrix show the bundled policy, the column's best "
        "sorted heuristic, random placement, `certified`, and the gap of the target's policy to the proven bound.",
        "**How policies are trained here.** They read prices, as the bundled ones do; all minimise the step. Prices come from the CPU cost "
        f"model bundled then, and {scale.dreamshard.perturbed:.0%} of the tasks are priced as on a synthetic device. AutoShard learns for "
        f"{scale.autoshard.rounds:,} rounds, DreamShard for {scale.dreamshard.rounds:,}. The bundled policies learned from 244 tasks of "
        f"mixed sizes, priced by one processor and six GPUs. Policies of {seeds} seed{'s' if seeds > 1 else ''}; the interval is over "
        "tasks alone, and trainings with other seeds differ as well.",
        "**What differs from the papers.** They measure on GPUs, with other batch sizes and kernels, so their losses and these compare "
        "only qualitatively. DreamShard claims transfer to other numbers of devices, from 2 to 8; 16 are beyond this claim. "
        + REDESIGNS,
    ]


def summary_table(matrices: Matrices) -> ResultTable:
    """A table with one line for each matrix."""
    heads = (
        "strategy", "what changes", "policies off their target", "mean loss", "worst loss", "where", "better than the best heuristic",
    )  # fmt: skip
    body: list[tuple[object, ...]] = []
    for strategy, of_strategy in matrices.items():
        for shown in of_strategy:
            off = shown.off_target
            worst = max(off, key=lambda each: each[2].share, default=None)
            mean = float(np.mean([each[2].share for each in off])) if off else None
            where = f"{worst[0]}, tested on {worst[1]}" if worst else NOTHING
            better = [own.share < heuristic.share for _, _, own, heuristic in off if heuristic.tasks]
            body.append(
                (
                    strategy, shown.part.name, len(off), cell(mean, "+.1%"), cell(worst[2].share if worst else None, "+.1%"), where,
                    f"{sum(better)} of {len(better)}",
                )
            )  # fmt: skip
    caption = (
        "Cells of policies trained on another kind than the column's. Better than the best heuristic: cells with a lower mean cost than "
        "the column's best heuristic."
    )
    return ResultTable(caption, heads, body)


def matrix_table(strategy: str, own: Matrix) -> ResultTable:
    """The table of a matrix, with lines to compare it with."""
    others: tuple[tuple[str, Sequence[Loss]], ...] = (
        ("*bundled policy*", own.bundled), ("*best heuristic*", own.heuristic), ("*random*", own.random), ("*certified*", own.certified),
        ("*target's policy above the bound*", own.above_bound),
    )  # fmt: skip
    body: list[tuple[object, ...]] = [
        (label, *map(_shown, row)) for (_, label), row in zip(own.part.trained, own.losses, strict=True)
    ]
    body += [(label, *map(_shown, row)) for label, row in others]
    body.append(("*target's policy, mean ms*", *(cell(ms, ".3f") for ms in own.target)))
    caption = f"{strategy}, {own.part.name} ({own.part.fixed}): loss in mean cost ({LEARNERS[strategy].cost_name})."
    return ResultTable(caption, ("trained on", *(f"tested on {label}" for _, label in own.part.tested)), body)


def _shown(loss: Loss) -> str:
    if not loss.tasks:
        return NOTHING
    spread = "" if loss.low == loss.high else f" ({100 * loss.low:+.1f} to {100 * loss.high:+.1f})"
    return f"{loss.share:+.1%}{spread}"


def training_table(rows: Sequence[Row]) -> ResultTable:
    """A table of training times."""
    body: list[tuple[object, ...]] = []
    for strategy in LEARNERS:
        times = {
            row["policy"]: float(row["training_s"])
            for row in rows
            if row["strategy"] == strategy and row["training_s"] is not None
        }
        shown = (
            (f"{np.median(list(times.values())):.0f}", f"{max(times.values()):.0f}") if times else (NOTHING, NOTHING)
        )
        body.append((strategy, len(times), *shown))
    return ResultTable(
        "Training, one thread, simulated costs.", ("strategy", "policies", "median s", "longest s"), body
    )


def picture(matrices: Matrices) -> Figure:
    """A heat map for each strategy and part."""
    titles = [[f"{strategy}: {shown.part.name}" for shown in of_strategy] for strategy, of_strategy in matrices.items()]
    figure, axes = panels(titles, width=4.4, height=3.4)
    for row, of_strategy in zip(axes, matrices.values(), strict=True):
        for axis, shown in zip(row, of_strategy, strict=True):
            _heat_map(axis, shown)
    figure.suptitle("loss against the policy trained on the target, %", fontsize=9)
    return figure


def _heat_map(axis: Axes, cells: Matrix) -> None:
    losses = 100 * cells.shares
    axis.imshow(np.ma.masked_invalid(losses), cmap="RdYlGn_r", vmin=-_DARKEST, vmax=_DARKEST, aspect="auto")
    axis.grid(visible=False)
    axis.set_xticks(range(losses.shape[1]), [label for _, label in cells.part.tested], rotation=45, fontsize=7)
    axis.set_yticks(range(losses.shape[0]), [label for _, label in cells.part.trained], fontsize=7)
    axis.set_xlabel("tested on")
    axis.set_ylabel("trained on")
    for (i, j), value in np.ndenumerate(losses):
        shown = NOTHING if np.isnan(value) else f"{value:+.1f}"
        axis.text(j, i, shown, ha="center", va="center", fontsize=7)
