"""The report's figures for papers and notebooks: matplotlib figures, to save as PNG, SVG or PDF. Needs matplotlib.

    from shardwright.report import figures

    figures.save(figures.time_bars(plan), "time.svg")

The same data always give the same bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from shardwright.arrays import Floats
from shardwright.cost.choice import model_behind
from shardwright.cost.model import CostModel
from shardwright.errors import InvalidInput, MissingDependency
from shardwright.report.changes import marginals
from shardwright.report.document import tiered_tables, tiers_of
from shardwright.report.entry import phase_ms
from shardwright.report.page import LIGHT, MEMORY_PARTS, Palette
from shardwright.report.verdict import PHASE_NAMES
from shardwright.sharding.costs import PlanCost
from shardwright.sharding.memory import shard_bytes
from shardwright.sharding.plan import Plan
from shardwright.task.quantities import format_bytes

if find_spec("matplotlib") is None:
    raise MissingDependency(
        "figures need matplotlib, which is not installed; install it with: pip install 'shardwright[report]'"
    )

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap, PowerNorm
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator, PercentFormatter

__all__ = ["access_curve", "comparison", "matrix", "memory_bars", "save", "time_bars"]

_METADATA: dict[str, dict[str, Any]] = {
    ".png": {"Software": None},
    ".svg": {"Date": None, "Creator": None},
    ".pdf": {"CreationDate": None, "Creator": None, "Producer": None},
}
"""The metadata of each format, without what differs from run to run."""

_NARROW, _WIDEST = 6.5, 12.0  # inches
_LONGEST = 40  # characters


def axes(palette: Palette, *, width: float = 6.4, height: float = 3.0) -> tuple[Figure, Axes]:
    """Make a figure with one pair of axes in the palette's colours; sizes are in inches."""
    figure = Figure(figsize=(min(width, _WIDEST), height), layout="constrained", facecolor=palette.panel)
    ax = figure.subplots()
    ax.set_facecolor(palette.panel)
    ax.set_axisbelow(True)
    ax.grid(axis="y", color=palette.line, linewidth=0.8)
    for name, spine in ax.spines.items():
        spine.set_visible(name == "bottom")
        spine.set_color(palette.muted)
    ax.tick_params(colors=palette.muted, labelsize=8, length=0)
    return figure, ax


def label(ax: Axes, palette: Palette, title: str, *, x: str = "", y: str = "") -> None:
    """Set title and axis labels. Names of tables and files appear as they are, dollar signs included."""
    ax.set_title(title, loc="left", fontsize=10, color=palette.ink, parse_math=False)
    ax.set_xlabel(x, fontsize=8.5, color=palette.muted, parse_math=False)
    ax.set_ylabel(y, fontsize=8.5, color=palette.muted, parse_math=False)


def legend(figure: Figure, palette: Palette) -> None:
    """Add a legend without a frame below the axes; it has two columns if the figure is narrow."""
    columns = 5 if figure.get_figwidth() > _NARROW else 2
    figure.legend(loc="outside lower center", ncols=columns, frameon=False, fontsize=8, labelcolor=palette.ink)


def save(figure: Figure, path: str | Path, *, dpi: int = 200) -> Path:
    """Write a figure; the end of the file name decides the format.

    Args:
        figure: a figure that a function of this module returned.
        path: a file name that ends in .png, .svg or .pdf.
        dpi: dots per inch of a PNG file.

    Raises:
        InvalidInput: the name ends otherwise.
    """
    target = Path(path)
    kind = target.suffix.lower()
    if kind not in _METADATA:
        raise InvalidInput(f"{path}: the name must end in one of {', '.join(_METADATA)}, which decides the format")
    style: dict[Any, Any] = {"svg.hashsalt": "shardwright", "svg.fonttype": "none"}
    with mpl.rc_context(style):
        figure.savefig(target, dpi=dpi, metadata=_METADATA[kind])
    return target


def shown_name(text: str) -> str:
    """A name for tick labels: cut if very long, with dollar signs escaped so that matplotlib does not read mathematics."""
    short = text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…"
    return short.replace("$", r"\$")


def access_curve(plan: Plan, table: str, *, title: str | None = None, palette: Palette = LIGHT) -> Figure:
    """Curve of the share of lookups that the hottest rows take; a table placed by hotness also shows its tiers.

    Raises:
        InvalidInput: the plan's task has no such table.
    """
    one_table = plan.task.table_by_name.get(table)
    if one_table is None:
        raise InvalidInput(f"the plan's task has no table {table!r}; name one of its {len(plan.task.tables)} tables")
    figure, ax = axes(palette)
    access = one_table.access
    start = min(1.0, float(access.rows[1]))
    fills = (palette.phases[1], palette.phases[0], palette.memory[1], palette.kinds[5], palette.kinds[6])
    if table in tiered_tables(plan):
        for number, tier in enumerate(tiers_of(plan, table)):
            low, high = max(tier.rows[0], start), tier.rows[1]
            ax.axvspan(low, high, color=fills[number % len(fills)], alpha=0.22, linewidth=0)
            ax.text((low * high) ** 0.5, 0.03, tier.name, ha="center", fontsize=8, color=palette.ink)
            if number:
                ax.axvline(low, color=palette.muted, linestyle=":", linewidth=1)
    ax.plot(access.rows[1:], access.share[1:], color=palette.ink, linewidth=1.6)
    ax.set_xscale("log")
    ax.set_xlim(start, max(access.total_rows, start * 1.01))
    ax.set_ylim(0, 1.02)
    ax.yaxis.set_major_formatter(PercentFormatter(1.0))
    label(ax, palette, title or f"Lookups that the hottest rows of {table} take", x="rows, hottest first")
    return figure


_NEAR = 0.2  # limits are drawn if the fullest device uses more than this share of its limit


def time_bars(plan: Plan, *, title: str = "Predicted time of each device", palette: Palette = LIGHT) -> Figure:
    """Stacked bars of the four phases of every device, in ms.

    Raises:
        InvalidInput: the plan has no predicted cost.
    """
    figure, ax = axes(palette, width=_width(plan))
    stacked_bars(ax, np.array(phase_ms(cost_of(plan))), PHASE_NAMES, palette.phases)
    label(ax, palette, title, x="device", y="ms")
    legend(figure, palette)
    return figure


def memory_bars(plan: Plan, *, title: str = "Memory of each device", palette: Palette = LIGHT) -> Figure:
    """Stacked bars of weights, optimizer state and buffers of every device, with the memory limits if one is near."""
    figure, ax = axes(palette, width=_width(plan))
    memory, limits = plan.memory, np.array(plan.task.topology.memory_bytes)
    stacked_bars(ax, np.stack([memory.weights, memory.optimizer, memory.buffers]), MEMORY_PARTS, palette.memory)
    fullest = float((memory.total / limits).max())
    if fullest > _NEAR:
        edges = np.arange(len(limits) + 1) - 0.5
        ax.stairs(limits, edges, color=palette.warn, linestyle="--", linewidth=1.2, label="limit", baseline=None)
    else:
        title += " (below 1% of the limit)" if fullest < 0.01 else f" (at most {100 * fullest:.0f}% of the limit)"
    ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: format_bytes(value) if value else "0"))
    label(ax, palette, title, x="device")
    legend(figure, palette)
    return figure


def stacked_bars(ax: Axes, values: npt.NDArray[np.generic], names: tuple[str, ...], colours: tuple[str, ...]) -> None:
    """Draw `(series, devices)` values as stacked bars."""
    places = np.arange(values.shape[1])
    base = np.zeros(values.shape[1])
    width = 0.82 if values.shape[1] <= 256 else 1.0
    for row, name, colour in zip(values.astype(np.float64), names, colours, strict=True):
        ax.bar(places, row, width, bottom=base, color=colour, label=name, linewidth=0)
        base += row
    ax.set_xlim(-0.6, values.shape[1] - 0.4)
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))


def cost_of(plan: Plan) -> PlanCost:
    """The plan's predicted cost.

    Raises:
        InvalidInput: the plan has none.
    """
    if plan.cost is None:
        raise InvalidInput(
            "the plan holds no predicted cost; score it first: shardwright.cost.scored(plan, cost_model)"
        )
    return plan.cost


def _width(plan: Plan) -> float:
    return max(5.2, 0.06 * plan.task.topology.devices + 2)


_NAMED = 60  # tables whose names have room


def matrix(
    plan: Plan,
    *,
    colour: Literal["memory", "time"] = "memory",
    cost_model: CostModel | None = None,
    title: str = "Which table lies where",
    palette: Palette = LIGHT,
) -> Figure:
    """Matrix of tables (rows, the largest first) and devices (columns).

    Args:
        plan: the plan.
        colour: "memory" (GB of a table on a device) or "time" (ms that the device would save without the table; not additive).
        cost_model: prices the times; by default the model that priced the plan, or the bundled model of the plan's device.
        title: title of the figure.
        palette: colours.

    Raises:
        InvalidInput: there is no cost model for the plan's device, and times are wanted.
    """
    values = memory_matrix(plan) / 1e9 if colour == "memory" else _times(plan, cost_model)
    order = np.argsort(-np.nansum(values, axis=1), kind="stable")
    tables, devices = values.shape
    named = tables <= _NAMED
    height = float(np.clip(0.16 * tables + 1, 2.4, 8.0)) if named else 6.0
    figure, ax = axes(palette, width=max(5.2, 0.05 * devices + 2.5), height=height)
    ax.grid(visible=False)
    ramp = LinearSegmentedColormap.from_list("ramp", list(palette.ramp))
    top = float(np.nanmax(values))
    image = ax.imshow(
        values[order], aspect="auto", interpolation="nearest", cmap=ramp, norm=PowerNorm(0.5, 0, top if top > 0 else 1)
    )
    bar = figure.colorbar(image, ax=ax, shrink=0.7)
    bar.ax.tick_params(labelsize=7, colors=palette.muted)
    bar.set_label("GB" if colour == "memory" else "ms saved without the table", fontsize=8, color=palette.muted)
    ax.set_yticks(range(tables) if named else [])
    if named:
        ax.set_yticklabels([shown_name(plan.task.tables[row].name) for row in order], fontsize=6.5)
    label(ax, palette, title, x="device", y="" if named else f"{tables:,} tables")
    return figure


def memory_matrix(plan: Plan) -> Floats:
    """`(tables, devices)` bytes, NaN if a device holds nothing of a table."""
    number = plan.task.table_number
    result = np.full((len(number), plan.task.topology.devices), np.nan)
    for shard in plan.shards:
        place = (number[shard.table], list(shard.devices))
        result[place] = np.nan_to_num(result[place]) + shard_bytes(plan.task, shard)
    return result


def _times(plan: Plan, cost_model: CostModel | None) -> Floats:
    marginal = marginals(plan, cost_model or model_behind(plan))
    result = np.full((len(plan.task.tables), plan.task.topology.devices), np.nan)
    result[marginal.cells[:, 0], marginal.cells[:, 1]] = np.maximum(marginal.cell_ms.sum(axis=1), 0.0)
    return result


def comparison(
    plans: Sequence[Plan],
    names: Sequence[str],
    *,
    title: str = "Step time against the proven bound",
    palette: Palette = LIGHT,
) -> Figure:
    """One bar per plan: the four phases' maxima over devices, which add up to the step; a mark shows a proven bound.

    Raises:
        InvalidInput: there is no plan, not one name for each, or a plan has no predicted cost.
    """
    if not plans or len(plans) != len(names):
        raise InvalidInput(f"{len(plans)} plans and {len(names)} names: give at least one plan, and one name for each")
    maxima = np.array([np.max(phase_ms(cost_of(plan)), axis=1) for plan in plans])
    figure, ax = axes(palette, height=0.42 * len(plans) + 1.9)
    ax.grid(axis="y", visible=False)
    ax.grid(axis="x", color=palette.line, linewidth=0.8)
    places, left = np.arange(len(plans)), np.zeros(len(plans))
    for values, name, colour in zip(maxima.T, PHASE_NAMES, palette.phases, strict=True):
        ax.barh(places, values, 0.6, left=left, color=colour, label=name, edgecolor=palette.panel, linewidth=0.6)
        left += values
    bounds = [(place, plan.bound_ms) for place, plan in zip(places, plans, strict=True) if plan.bound_ms is not None]
    for number, (place, bound) in enumerate(bounds):
        for width, colour in ((4.5, palette.panel), (2.0, palette.ink)):
            text = "proven bound" if number == 0 and width == 2.0 else "_nolegend_"
            ax.vlines(bound, place - 0.42, place + 0.42, color=colour, linewidth=width, label=text)
    ax.set_yticks(places, [shown_name(name) for name in names])
    ax.invert_yaxis()
    label(ax, palette, title, x="ms")
    legend(figure, palette)
    return figure
