"""The page of `neuroshard-published`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from experiments.entrants import SORTED, Limits
from experiments.experiment import Page, ResultTable, Row, Value
from experiments.neuroshard.comparisons import compared, settings_of, with_cases
from experiments.neuroshard.networks import EPOCHS, OURS, THEIRS
from experiments.neuroshard.production_page import PUBLISHED as PAPER
from experiments.summaries import NOTHING, cell, in_order, with_interval

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PRODUCTION, SCORES, NETWORKS = "production", "scores", "networks"
PUBLISHED, BY_STEP = "neuroshard", "neuroshard by step"
RIVALS = ("random", *SORTED, "greedy", PUBLISHED, BY_STEP, "certified")
LIMITS = Limits(seconds=20.0)

_COST, _STEP = "embedding_cost_ms", "step_ms"
CONDITIONS = (
    "Batch 1,024 over all devices, row-wise Adagrad, CPU kernels; the paper: 65,536, SGD, GPUs. Memory: weights, optimizer state and "
    "buffers must fit a device; the paper counts weights."
)


def made_page(rows: Sequence[Row]) -> Page:
    """Make the page of the rows found so far."""
    of_part = {
        part: with_cases([row for row in rows if row["part"] == part], ("devices", "max_dim"))
        for part in (PRODUCTION, SCORES, NETWORKS)
    }
    networks = of_part[NETWORKS]
    tables = [
        _production(of_part[PRODUCTION]), _scores(of_part[SCORES]), _errors([row for row in networks if row["network"]]),
        _plans([row for row in networks if not row["network"]]),
    ]  # fmt: skip
    shown = [table for table in tables if table.rows]
    return Page("NeuroShard as published", _text(), shown, {"": _figure(of_part[PRODUCTION])}, CONDITIONS)


def _text() -> list[str]:
    return [
        "One aid of the strategy `neuroshard` is off here: cuts of tables that fit no device, which come before its beam and do "
        "not count among its ten splits (`free_cuts=False`). All tables of the tasks fit a device, so ten halvings can suffice. "
        "docs/concepts/search.md lists the other differences from the paper. Its score is the paper's, the embedding cost: the largest, "
        "over devices, of kernels and both exchanges together. "
        f"`{BY_STEP}` is the same search by the step: the sum over the phases of the slowest device of each.",
        "The paper's three networks predict the kernels of a device, the forward and the backward all-to-all. They were trained on this "
        f"machine with {EPOCHS} epochs. The kernels are those of `data/costs`; the collectives were measured for this page among "
        "processes of one machine while other programs ran. So repeats of a collective differ much: compare each network's error with "
        "that of its repeats. Everything else is predicted by the bundled CPU model and stated bandwidths.",
    ]


def _production(rows: Sequence[Row]) -> ResultTable:
    names = in_order((row["strategy"] for row in rows), RIVALS)
    costs, steps = compared(rows, _COST, names), compared(rows, _STEP, names)
    cells = []
    for name in names:
        own = [row for row in rows if row["strategy"] == name]
        placed = [row for row in own if row["failure"] is None]
        paper = PAPER.get(name, (None, None))[0]
        ratios = (
            [costs[name][case] / costs["random"][case] for case in costs.get(name, {})] if "random" in costs else []
        )
        cut = np.mean([float(row["cut"] or 0) for row in placed]) if placed else None
        cells.append(
            (name, f"{len(placed)} of {len(own)}", cell(paper and paper / PAPER["random"][0], ".3f"),
             with_interval(ratios, ".3f") if ratios else NOTHING,
             with_interval([*costs[name].values()]) if name in costs else NOTHING,
             with_interval([*steps[name].values()]) if name in steps else NOTHING,
             cell(None if cut is None else float(cut), ".0f"))
        )  # fmt: skip
    return ResultTable(
        "The production tasks: 856 tables on 128 devices of 16 GB; a table that would fit no device has fewer rows, and fits one. "
        "Embedding cost divided by that of `random`, in the paper and here; embedding cost and step in ms, means with 95% bootstrap "
        f"intervals; tables that were cut. `certified` has {LIMITS.seconds:g} s.",
        ("strategy", "placed", "paper, ratio", "here, ratio", "embedding cost", "step", "cut"),
        cells,
    )


def _figure(rows: Sequence[Row]) -> Figure:
    """Bars of the embedding cost over that of `random` on the production tasks, in the paper and here."""
    from experiments.pages import COLOURS, panels

    names = in_order((row["strategy"] for row in rows), RIVALS)
    costs = compared(rows, _COST, names)
    figure, axes = panels([["embedding cost / random, the paper (white) and here"]], width=7.5, height=2.8)
    axis = axes[0][0]
    for place, name in enumerate(names):
        paper = PAPER.get(name, (None, None))[0]
        if paper is not None:
            axis.bar(place - 0.2, paper / PAPER["random"][0], 0.38, color="white", edgecolor="#444444", linewidth=0.6)
        if name in costs and "random" in costs:
            mean = float(np.mean([costs[name][case] / costs["random"][case] for case in costs[name]]))
            axis.bar(place + 0.2, mean, 0.38, color=COLOURS.get(name, COLOURS["neuroshard"]))
    axis.set_xticks(range(len(names)), names, rotation=30, ha="right")
    axis.set_axisbelow(True)
    return figure


def _scores(rows: Sequence[Row]) -> ResultTable:
    """A table of plans searched by the embedding cost over plans searched by the step, judged by both costs."""
    cells = [
        (*setting, *_judged(of_setting)) for setting, of_setting in settings_of(rows, ("devices", "max_dim")).items()
    ]
    if cells:
        cells.append(("all", "all", *_judged(rows)))
    return ResultTable(
        "The benchmark's tasks, those without a table too large for a device: plans searched by the embedding cost, divided by plans of "
        "the same task searched by the step. Below 1 the published score is better. Means with 95% bootstrap intervals.",
        ("devices", "max dim", "tasks", "embedding cost", "step"),
        cells,
    )


def _judged(rows: Sequence[Row]) -> tuple[object, ...]:
    names = (PUBLISHED, BY_STEP)
    by_cost = []
    for column in (_COST, _STEP):
        values = compared(rows, column, names)
        by_cost.append([values[PUBLISHED][case] / values[BY_STEP][case] for case in values[PUBLISHED]])
    return (len(by_cost[0]), *(with_interval(ratios, ".4f") for ratios in by_cost))


def _errors(rows: Sequence[Row]) -> ResultTable:
    names = ("mean_error", "median_error", "repeat_error")
    cells = [(row["network"], row["samples"], *(_share(row[name]) for name in names)) for row in rows]
    return ResultTable(
        "Errors of the three networks on held-out data: sets of tables for the compute network, times of single devices for the others "
        "(4 processes). Repeats: mean difference between two measurements of the same thing, a lower limit for every model.",
        ("network", "held out", "mean error", "median", "repeats"),
        cells,
    )


def _share(value: Value) -> str:
    return NOTHING if value is None else f"{float(value):.1%}"


def _plans(rows: Sequence[Row]) -> ResultTable:
    cells = []
    for name in (OURS, THEIRS):
        own = [row for row in rows if row["strategy"] == name and row["failure"] is None]
        if own:
            values = [[float(row[column] or 0.0) for row in own] for column in (_COST, "judged_networks_ms", _STEP)]
            cells.append((name, len(own), *(with_interval(costs_ms) for costs_ms in values)))
    return ResultTable(
        "Plans of `neuroshard` on tasks of 10 to 59 tables on 4 devices (max dim 128), priced by the bundled model and by the three "
        "networks, both judged by both, ms. The networks know the exchanges of processes on one machine, the bundled model stated links: "
        "compare within a column.",
        ("priced by", "tasks", "embedding cost, bundled model", "embedding cost, networks", "step, bundled model"),
        cells,
    )
