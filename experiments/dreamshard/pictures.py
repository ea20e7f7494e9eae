"""The pictures of `dreamshard-tables`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from experiments.dreamshard.distances import Costs, closed
from experiments.entrants import SORTED
from experiments.experiment import Row
from experiments.learned.entrants import NAMES
from experiments.learned.tasks import Setting
from experiments.pictures import COLOURS, panels

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_ACROSS = 5
_LINES = ("autoshard", "dreamshard", "greedy", "certified")


def above_bound_picture(groups: Mapping[tuple[Setting, str], Sequence[Row]], kind: str) -> Figure:
    """For each setting with unseen tables: how far strategies lie above the bound, tasks sorted by that."""
    chosen = {setting: rows for (setting, half), rows in groups.items() if half == "unseen"}
    titles = [setting.name for setting in chosen] or ["no tasks"]
    figure, axes = panels([titles[first : first + _ACROSS] for first in range(0, len(titles), _ACROSS)], width=3.0)
    flat = [axis for row in axes for axis in row]
    for axis, rows in zip(flat, chosen.values(), strict=False):
        costs = Costs(rows, kind)
        best = costs.best_heuristic
        for name in (one for one in NAMES if one in costs.of and (one == best or one not in SORTED)):
            label, colour = ("best heuristic", COLOURS["best sorted"]) if name == best else (name, COLOURS[name])
            axis.plot(sorted(100 * costs.above_bound(name)), label=label, color=colour)
        axis.set_yscale("symlog", linthresh=1.0)
        axis.set_xlabel("tasks, sorted")
    for row in axes:
        row[0].set_ylabel(f"{'step' if kind == 'step_ms' else 'kernels'} above the bound, %")
    _legend(figure, flat[0])
    return figure


def halves_picture(groups: Mapping[tuple[Setting, str], Sequence[Row]]) -> Figure:
    """What part of the distance to the bound strategies close, by numbers of tables and devices, on both halves of the pool."""
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
                axis.plot(
                    known[:, 0],
                    known[:, 1],
                    style,
                    marker=".",
                    color=COLOURS[name],
                    label=name if half == "unseen" else None,
                )
        axis.set_xlabel("tables")
    axes[0][0].set_ylabel("distance to the bound closed, step, %")
    figure.suptitle("solid: unseen tables, dashed: seen tables", fontsize=8)
    _legend(figure, axes[0][0])
    return figure


def _legend(figure: Figure, axis: Axes) -> None:
    """The names of an axis' lines, beside all axes."""
    handles, labels = axis.get_legend_handles_labels()
    if handles:
        figure.legend(handles, labels, loc="outside right upper", frameon=False, fontsize=7)
