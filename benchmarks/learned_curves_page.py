"""Tables and pictures of `learned_curves.py`."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from experiments.learned.policy_training import LEARNERS
from experiments.pages import COLOURS

from benchmarks import plots
from benchmarks.learned_journal import Row
from benchmarks.learned_training import heuristic_ms
from shardwright.task import Task

Floats = npt.NDArray[np.float64]

COLUMNS = ("strategy", "version", "seed", "round", "rounds", "figure", "value")
VALIDATION = "validation_ms"
SHOWN = (VALIDATION, "reward", "cost_error", "entropy", "latency_ms")
"""Figures in the pictures; figures that a learner does not have are left out."""
_TITLES = {
    VALIDATION: "mean cost of validation tasks, ms",
    "reward": "reward",
    "cost_error": "relative error of the cost network",
    "entropy": "entropy",
    "latency_ms": "mean cost of placements drawn, ms",
}


def curve(rows: list[Row], figure: str) -> Floats:
    """`(seeds, rounds)` values of a figure."""
    by_seed: dict[int, dict[int, float]] = {}
    for row in rows:
        if row["figure"] == figure:
            by_seed.setdefault(int(row["seed"]), {})[int(row["round"])] = float(row["value"])
    return np.array([[values[number] for number in sorted(values)] for _, values in sorted(by_seed.items())])


def tables(
    rows: list[Row], validation: Sequence[Task], tested: str, trained: str
) -> list[tuple[str, tuple[str, ...], list[tuple[str, ...]]]]:
    """Return the table of first, best and last values of every strategy."""
    heads: tuple[str, ...] = (
        "strategy", "seeds", "rounds", "first", "best", "last, mean over seeds", "last, least to most", "best heuristic",
        "within 1% of the last from round", "training s, mean", "longest",
    )  # fmt: skip
    found: list[tuple[str, ...]] = []
    for strategy in dict.fromkeys(row["strategy"] for row in rows):
        own = [row for row in rows if row["strategy"] == strategy]
        values, seconds = curve(own, VALIDATION), curve(own, "seconds")[:, -1]
        mean, last = values.mean(axis=0), values[:, -1]
        found.append(
            (
                strategy, str(len(values)), str(values.shape[1]), f"{mean[0]:.3f}", f"{mean.min():.3f}", f"{last.mean():.3f}",
                f"{last.min():.3f} to {last.max():.3f}", f"{heuristic_ms(strategy, validation):.3f}", str(settled(mean)),
                f"{seconds.mean():.0f}", f"{seconds.max():.0f}",
            )
        )  # fmt: skip
    caption = (
        f"Mean cost in ms ({'; '.join(f'{name}: {learner.cost_name}' for name, learner in LEARNERS.items())}) of {tested}, tables that no "
        f"training saw, by the policy after each round. Trained on {trained}, costs from the bundled CPU model. Seconds are those of "
        "training alone, without validation."
    )
    return [(caption, heads, found)]


def settled(values: Floats) -> int:
    """Return the first round from which all values are at most 1% above the last."""
    above = np.flatnonzero(values > 1.01 * values[-1])
    return int(above[-1]) + 2 if above.size else 1


def plot(rows: list[Row], strategy: str, validation: Sequence[Task], name: str) -> None:
    """Draw a panel for each figure: mean over the seeds, each seed, and the range between them."""
    shown = [figure for figure in SHOWN if curve(rows, figure).size]
    figure, axes = plots.panels([[_TITLES[each] for each in shown]], width=3.0, height=2.7)
    for axis, each in zip(axes[0], shown, strict=True):
        values = curve(rows, each)
        rounds = np.arange(1, values.shape[1] + 1)
        axis.fill_between(
            rounds, values.min(axis=0), values.max(axis=0), color=COLOURS[strategy], alpha=0.2, linewidth=0
        )
        axis.plot(rounds, values.T, color=COLOURS[strategy], alpha=0.4, linewidth=0.7)
        axis.plot(rounds, values.mean(axis=0), color=COLOURS[strategy], label=f"{strategy}, {len(values)} seeds")
        if each == VALIDATION:
            axis.axhline(
                heuristic_ms(strategy, validation), color=COLOURS["size"], linestyle="--", label="best heuristic"
            )
            axis.legend(frameon=False, fontsize=7)
        axis.set_xlabel("round")
    plots.save(figure, name)
