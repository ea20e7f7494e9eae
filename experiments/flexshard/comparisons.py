"""Comparisons of plans of `flexshard-traffic`, in bytes and in speed, and the pictures."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from experiments.experiment import Row
from experiments.flexshard.sequence_models import CLUSTERS, EVERY, LINES, MODELS, PER_DEVICE, PER_HOST, SHAPES, SWEEP
from experiments.pages import mark, panels
from experiments.summaries import grouped

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Compared:
    """A plan compared with another plan of the same model.

    Attributes:
        saved: share of the other plan's bytes between hosts that this plan saves; NaN if the other sends none.
        faster: the other plan's communication time divided by this plan's.
    """

    saved: float
    faster: float


class Plans:
    """The experiment's rows, by setting and case.

    Args:
        rows: rows of all pieces or of some.
    """

    def __init__(self, rows: Sequence[Row]) -> None:
        self.rows = rows
        self._by_case = {(*_setting(row), row["exchange"], row["memory"], row["strategy"]): row for row in rows}

    def against(
        self, row: Row, exchange: str = EVERY, memory: float = 1.0, strategy: str = "row_wise"
    ) -> Compared | None:
        """Compare a row with another plan of its setting; None if one of the two is missing or does not fit the memory."""
        other = self._by_case.get((*_setting(row), exchange, memory, strategy))
        own_ms = row["communication_ms"]
        if other is None or own_ms is None or (other_ms := other["communication_ms"]) is None:
            return None
        own, others = float(row["bytes_between"] or 0.0), float(other["bytes_between"] or 0.0)
        return Compared(1 - own / others if others else float("nan"), float(other_ms) / float(own_ms))

    def of(self, **values: object) -> list[Row]:
        """Rows with these values in their columns."""
        return [row for row in self.rows if all(row[name] == value for name, value in values.items())]


def _setting(row: Row) -> tuple[object, ...]:
    return tuple(row[name] for name in ("part", "accesses", "tables", "hosts", "gbits", "seed", "batch"))


def gained(plans: Plans, row: Row, rival: str) -> float | None:
    """Speed of a row's plan relative to a rival's with the same exchange; `two_tiers` has the same memory, `row_wise` 1×."""
    memory = 1.0 if rival == "row_wise" else float(row["memory"] or 0.0)
    compared = plans.against(row, str(row["exchange"]), memory, rival)
    return compared.faster if compared else None


def some(compared: Iterable[Compared | None]) -> list[Compared]:
    """The comparisons that are not None."""
    return [each for each in compared if each is not None]


def gap(row: Row, column: str = "bound_ms") -> float | None:
    """(communication − bound) / bound, with the bound in this column; None without a time or a bound."""
    ms, bound = row["communication_ms"], row[column]
    return float(ms) / float(bound) - 1 if ms is not None and bound else None


_EXCHANGES = {EVERY: "every lookup", PER_DEVICE: "distinct per device", PER_HOST: "distinct per host"}
_BARS = {"row_wise": (1.0, "#999999"), "two_tiers": (1.25, "#4062bb"), "flexshard": (1.25, "#0b6e4f")}
"""Memory factor and colour of each strategy's bars."""
_COLOURS = ("#777777", "#4062bb", "#0b6e4f", "#d9a441", "#c1440e")
_CLAIM = 15.0  # % of the traffic that is left by the paper's claim


def draw(plans: Plans) -> Figure:
    """Draw a column of panels for each range of Zipf exponents: models above, clusters below."""
    gbits = min((int(row["gbits"] or 0) for row in plans.of(part=CLUSTERS)), default=100)
    titles = [[f"models, {shape}" for shape in SHAPES], [f"clusters, {shape}, {gbits} Gbit/s" for shape in SHAPES]]
    figure, axes = panels(titles, width=4.6)
    for column, shape in enumerate(SHAPES):
        draw_traffic(axes[0][column], plans, shape)
        draw_clusters(axes[1][column], plans, shape, gbits)
    axes[0][0].set_ylabel("traffic between hosts,\n% of row_wise")
    axes[1][0].set_ylabel("communication, ms a step")
    for axis in (axes[0][0], axes[1][0]):
        if axis.get_legend_handles_labels()[0]:
            axis.legend(fontsize=6, frameon=False)
    return figure


def draw_sweep(plans: Plans) -> Figure:
    """Draw the gain of tiers over the batch, a column for each link: above with rows de-duplicated by host, below with all lookups sent."""
    rows = plans.of(part=SWEEP, strategy="flexshard")
    gbits = sorted({int(row["gbits"] or 0) for row in rows}) or [100]
    above = [f"distinct per host, against row_wise, {count} Gbit/s" for count in gbits]
    below = [f"every lookup, against two_tiers, {count} Gbit/s" for count in gbits]
    figure, axes = panels([above, below], width=3.4, height=2.5)
    for line, (exchange, rival) in zip(axes, ((PER_HOST, "row_wise"), (EVERY, "two_tiers")), strict=True):
        for axis, link in zip(line, gbits, strict=True):
            of_link = [row for row in rows if (row["exchange"], row["gbits"]) == (exchange, link)]
            for colour, ((accesses,), group) in zip(
                _COLOURS, sorted(grouped(of_link, "accesses").items()), strict=False
            ):
                points = sorted((int(row["batch"] or 0), gained(plans, row, rival) or np.nan) for row in group)
                axis.plot(*zip(*points, strict=True), marker="o", markersize=3, color=colour, label=accesses)
            axis.axhline(1.0, color="#c1440e", linestyle="--", linewidth=1)
            axis.set_xscale("log", base=2)
            axis.set_xlabel("samples of a device")
        line[0].set_ylabel("times as fast with tiers")
    if axes[0][0].get_legend_handles_labels()[0]:
        axes[0][0].legend(fontsize=6, frameon=False)
    return figure


def draw_traffic(axis: Axes, plans: Plans, shape: str) -> None:
    """Draw bars by exchange and strategy: the median over the models, with a line from least to most."""
    for index, (strategy, (memory, colour)) in enumerate(_BARS.items()):
        for place, exchange in enumerate(_EXCHANGES):
            rows = plans.of(part=MODELS, accesses=shape, exchange=exchange, memory=memory, strategy=strategy)
            left = [100 * (1 - compared.saved) for compared in some(plans.against(row) for row in rows)]
            if left:
                middle = float(np.median(left))
                spread = [[middle - min(left)], [max(left) - middle]]
                label = f"{strategy}, {memory}× memory" if place == 0 else None
                look: dict[str, Any] = {"color": colour, "label": label, "error_kw": {"lw": 0.8}, "zorder": 3}
                axis.bar(place + 0.27 * (index - 1), middle, 0.25, yerr=spread, **look)
    axis.axhline(_CLAIM, color="#c1440e", linestyle="--", linewidth=1, zorder=4, label="what the paper's claim leaves")
    axis.set_xticks(range(len(_EXCHANGES)), list(_EXCHANGES.values()), fontsize=7)


def draw_clusters(axis: Axes, plans: Plans, shape: str, gbits: int) -> None:
    """Draw communication time over the number of GPUs, a line for each strategy and exchange."""
    rows = plans.of(part=CLUSTERS, accesses=shape, gbits=gbits)
    if not any(row["communication_ms"] is not None for row in rows):
        return  # a logarithmic axis needs a point
    for (name, (strategy, exchange)), colour in zip(LINES.items(), _COLOURS, strict=True):
        points = sorted(
            (8 * int(row["hosts"] or 0), float(row["communication_ms"]))
            for row in rows
            if (row["strategy"], row["exchange"]) == (strategy, exchange) and row["communication_ms"] is not None
        )
        axis.plot([x for x, _ in points], [y for _, y in points], marker="o", markersize=3, color=colour, label=name)
    axis.set_xscale("log", base=2)
    axis.set_yscale("log")
    mark(axis, sorted({8 * int(row["hosts"] or 0) for row in rows}))
    axis.set_xlabel("GPUs")
