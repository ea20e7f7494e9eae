"""Time and memory of every device, as stacked bars."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

from shardwright.errors import InvalidInput
from shardwright.report.bottleneck import PHASE_NAMES
from shardwright.report.entry import phase_ms
from shardwright.report.figures.style import axes, label, legend
from shardwright.report.palette import LIGHT, MEMORY_PARTS, Palette
from shardwright.sharding.costs import PlanCost
from shardwright.sharding.plan import Plan
from shardwright.task.units import format_bytes

_NEAR = 0.2  # a limit is drawn where the fullest device holds more than this part of it


def time_bars(plan: Plan, *, title: str = "Predicted time of each device", palette: Palette = LIGHT) -> Figure:
    """The four phases of every device, ms.

    Raises:
        InvalidInput: the plan has no predicted cost.
    """
    figure, one = axes(palette, width=_width(plan))
    stacked_bars(one, np.array(phase_ms(cost_of(plan))), PHASE_NAMES, palette.phases)
    label(one, palette, title, x="device", y="ms")
    legend(figure, palette)
    return figure


def memory_bars(plan: Plan, *, title: str = "Memory of each device", palette: Palette = LIGHT) -> Figure:
    """Weights, optimizer state and buffers of every device, against its limit where that is near."""
    figure, one = axes(palette, width=_width(plan))
    memory, limits = plan.memory, np.array(plan.task.topology.memory_bytes)
    stacked_bars(one, np.stack([memory.weights, memory.optimizer, memory.buffers]), MEMORY_PARTS, palette.memory)
    fullest = float((memory.total / limits).max())
    if fullest > _NEAR:
        edges = np.arange(len(limits) + 1) - 0.5
        one.stairs(limits, edges, color=palette.warn, linestyle="--", linewidth=1.2, label="limit", baseline=None)
    else:
        title += " (below 1% of the limit)" if fullest < 0.01 else f" (at most {100 * fullest:.0f}% of the limit)"
    one.yaxis.set_major_formatter(FuncFormatter(lambda value, _: format_bytes(value) if value else "0"))
    label(one, palette, title, x="device")
    legend(figure, palette)
    return figure


def stacked_bars(one: Axes, values: npt.NDArray[np.generic], names: tuple[str, ...], colours: tuple[str, ...]) -> None:
    """`(series, devices)` values stacked on each other."""
    places = np.arange(values.shape[1])
    base = np.zeros(values.shape[1])
    width = 0.82 if values.shape[1] <= 256 else 1.0
    for row, name, colour in zip(values.astype(np.float64), names, colours, strict=True):
        one.bar(places, row, width, bottom=base, color=colour, label=name, linewidth=0)
        base += row
    one.set_xlim(-0.6, values.shape[1] - 0.4)
    one.xaxis.set_major_locator(MaxNLocator(integer=True))


def cost_of(plan: Plan) -> PlanCost:
    """The plan's predicted cost.

    Raises:
        InvalidInput: it has none.
    """
    if plan.cost is None:
        raise InvalidInput(
            "the plan holds no predicted cost; score it first: shardwright.cost.scored(plan, cost_model)"
        )
    return plan.cost


def _width(plan: Plan) -> float:
    return max(5.2, 0.06 * plan.task.topology.devices + 2)
