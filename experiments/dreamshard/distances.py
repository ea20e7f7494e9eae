"""Distances of strategies from the best heuristic and from the bound, over the tasks of one setting; and their pictures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from experiments.entrants import SORTED
from experiments.experiment import Row, Value
from experiments.learned.tasks import NAMES, Setting
from experiments.pages import COLOURS, panels
from experiments.summaries import common_tasks, resampled, values_by_task

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Floats = npt.NDArray[np.float64]
BOUNDS = {"step_ms": "bound_ms", "compute_ms": "compute_bound_ms"}
"""Column of the proven bound for each cost that has one."""
_PROVER = "certified"


class Costs:
    """Costs of one kind in one setting, by strategy and task.

    Args:
        rows: rows of the setting; the rows of `certified` hold the bound.
        kind: column of the cost, ms.

    Attributes:
        of: ms by strategy and task, for tasks that were placed.
        bound: proven bound in ms by task.
    """

    def __init__(self, rows: Sequence[Row], kind: str) -> None:
        self.of = values_by_task(rows, kind)
        column = BOUNDS.get(kind)
        proofs = [row for row in rows if row["strategy"] == _PROVER] if column else []
        self.bound = values_by_task(proofs, str(column)).get(_PROVER, {})

    @property
    def heuristics(self) -> list[str]:
        """The sorted heuristics that placed anything."""
        return [name for name in SORTED if self.of.get(name)]

    @property
    def best_heuristic(self) -> str | None:
        """The heuristic with the lowest mean over the tasks that all heuristics placed; None without such tasks."""
        names, tasks = self.heuristics, self.common(self.heuristics)
        return min(names, key=lambda name: float(np.mean(self.at(name, tasks)))) if tasks else None

    def common(self, names: Sequence[str]) -> list[Value]:
        """The tasks that all of these strategies placed."""
        return common_tasks({name: self.of.get(name, {}) for name in names})

    def at(self, name: str, tasks: Sequence[Value]) -> Floats:
        """A strategy's costs of these tasks."""
        return np.array([self.of[name][task] for task in tasks])

    def above_bound(self, name: str) -> Floats:
        """Excess of a strategy over the bound, as shares of the bound, over tasks that it placed and that have a bound."""
        tasks = [task for task in self.of.get(name, {}) if task in self.bound]
        return self.at(name, tasks) / np.array([self.bound[task] for task in tasks]) - 1 if tasks else np.zeros(0)

    def from_best_heuristic(self, name: str, *, each: bool = False) -> tuple[Floats, Floats]:
        """Distances of a strategy and of the bound below the best heuristic, in ms by task; empty without common tasks.

        Args:
            name: the strategy.
            each: whether to measure from each task's own best heuristic, not from the heuristic that is best on average.
        """
        best = self.best_heuristic
        tasks = [task for task in self.common([name, *self.heuristics]) if task in self.bound]
        if best is None or not tasks:
            return np.zeros(0), np.zeros(0)
        start = np.min([self.at(other, tasks) for other in self.heuristics], axis=0) if each else self.at(best, tasks)
        return start - self.at(name, tasks), start - np.array([self.bound[task] for task in tasks])


def closed(gained: Floats, possible: Floats) -> float:
    """The share of the possible gain that was gained, both summed over tasks; NaN if no gain was possible."""
    total = possible.sum()
    return float(gained.sum() / total) if total > 0 else float("nan")


def closed_interval(gained: Floats, possible: Floats) -> tuple[float, float]:
    """The 95% bootstrap interval of `closed` over tasks; NaN if no gain was possible."""
    if not gained.size or possible.max() <= 0:
        return float("nan"), float("nan")
    shares = [closed(gained[row], possible[row]) for row in resampled(gained.size)]
    low, high = np.nanpercentile(shares, (2.5, 97.5))
    return float(low), float(high)


_ACROSS = 5
_LINES = ("autoshard", "dreamshard", "greedy", "certified")


def above_bound_picture(groups: Mapping[tuple[Setting, str], Sequence[Row]], kind: str) -> Figure:
    """Draw how far strategies lie above the bound, tasks sorted by that distance; one panel for each setting of unseen tables."""
    chosen = {setting: rows for (setting, half), rows in groups.items() if half == "unseen"}
    titles = [setting.name for setting in chosen] or ["no tasks"]
    figure, axes = panels([titles[first : first + _ACROSS] for first in range(0, len(titles), _ACROSS)], width=3.0)
    flat = [axis for row in axes for axis in row]
    for axis, rows in zip(flat, chosen.values(), strict=False):
        costs = Costs(rows, kind)
        best = costs.best_heuristic
        for name in (shown for shown in NAMES if shown in costs.of and (shown == best or shown not in SORTED)):
            label, colour = ("best heuristic", COLOURS["best sorted"]) if name == best else (name, COLOURS[name])
            axis.plot(sorted(100 * costs.above_bound(name)), label=label, color=colour)
        axis.set_yscale("symlog", linthresh=1.0)
        axis.set_xlabel("tasks, sorted")
    for row in axes:
        row[0].set_ylabel(f"{'step' if kind == 'step_ms' else 'kernels'} above the bound, %")
    _legend(figure, flat[0])
    return figure


def halves_picture(groups: Mapping[tuple[Setting, str], Sequence[Row]]) -> Figure:
    """Draw the share of the distance to the bound that strategies close, by numbers of tables and devices, for both halves of the pool."""
    devices = sorted({setting.devices for setting, _ in groups}) or [4]
    figure, axes = panels([[f"{count} devices" for count in devices]], width=3.8, height=3.0)
    for axis, count in zip(axes[0], devices, strict=True):
        for name in _LINES:
            for half, style in (("unseen", "-"), ("seen", "--")):
                points = [
                    (setting.tables, 100 * closed(*Costs(rows, "step_ms").from_best_heuristic(name)))
                    for (setting, of), rows in groups.items()
                    if setting.devices == count and of == half
                ]
                known = np.array([point for point in points if not np.isnan(point[1])]).reshape(-1, 2)
                label = name if half == "unseen" else None
                axis.plot(known[:, 0], known[:, 1], style, marker=".", color=COLOURS[name], label=label)
        axis.set_xlabel("tables")
    axes[0][0].set_ylabel("distance to the bound closed, step, %")
    figure.suptitle("solid: unseen tables, dashed: seen tables", fontsize=8)
    _legend(figure, axes[0][0])
    return figure


def _legend(figure: Figure, axis: Axes) -> None:
    """Add a legend of an axis' lines beside all axes."""
    handles, labels = axis.get_legend_handles_labels()
    if handles:
        figure.legend(handles, labels, loc="outside right upper", frameon=False, fontsize=7)
