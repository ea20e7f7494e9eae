"""Several plans beside each other, against the bound."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure

from shardwright.errors import InvalidInput
from shardwright.report.bottleneck import PHASE_NAMES
from shardwright.report.entry import phase_ms
from shardwright.report.figures.devices import cost_of
from shardwright.report.figures.style import axes, label, legend, shown_name
from shardwright.report.palette import LIGHT, Palette
from shardwright.sharding.plan import Plan


def comparison(
    plans: Sequence[Plan],
    names: Sequence[str],
    *,
    title: str = "Step time against the proven bound",
    palette: Palette = LIGHT,
) -> Figure:
    """One bar a plan: the maxima over devices of the four phases, which add up to the step; a mark where a bound is proven.

    Args:
        plans: plans with predicted costs.
        names: what to call them.
        title: what to write above.
        palette: colours.

    Raises:
        InvalidInput: there is no plan, not one name for each, or a plan has no predicted cost.
    """
    if not plans or len(plans) != len(names):
        raise InvalidInput(f"{len(plans)} plans and {len(names)} names: give at least one plan, and one name for each")
    maxima = np.array([np.max(phase_ms(cost_of(plan)), axis=1) for plan in plans])
    figure, one = axes(palette, height=0.42 * len(plans) + 1.9)
    one.grid(axis="y", visible=False)
    one.grid(axis="x", color=palette.line, linewidth=0.8)
    places, left = np.arange(len(plans)), np.zeros(len(plans))
    for values, name, colour in zip(maxima.T, PHASE_NAMES, palette.phases, strict=True):
        one.barh(places, values, 0.6, left=left, color=colour, label=name, edgecolor=palette.panel, linewidth=0.6)
        left += values
    bounds = [(place, plan.bound_ms) for place, plan in zip(places, plans, strict=True) if plan.bound_ms is not None]
    for number, (place, bound) in enumerate(bounds):
        for width, colour in ((4.5, palette.panel), (2.0, palette.ink)):
            text = "proven bound" if number == 0 and width == 2.0 else "_nolegend_"
            one.vlines(bound, place - 0.42, place + 0.42, color=colour, linewidth=width, label=text)
    one.set_yticks(places, [shown_name(name) for name in names])
    one.invert_yaxis()
    label(one, palette, title, x="ms")
    legend(figure, palette)
    return figure
