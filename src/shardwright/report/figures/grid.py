"""The matrix of tables × devices."""

from __future__ import annotations

from typing import Literal, TypeAlias

import numpy as np
from matplotlib.colors import LinearSegmentedColormap, PowerNorm
from matplotlib.figure import Figure

from shardwright.cost.choice import model_behind
from shardwright.cost.model import CostModel
from shardwright.report.figures.style import axes, label, shown_name
from shardwright.report.marginal import Floats, marginals
from shardwright.report.palette import LIGHT, Palette
from shardwright.sharding.memory import shard_bytes
from shardwright.sharding.plan import Plan

Colour: TypeAlias = Literal["memory", "time"]
_NAMED = 60  # tables whose names have room


def matrix(
    plan: Plan,
    *,
    colour: Colour = "memory",
    cost_model: CostModel | None = None,
    title: str = "Which table lies where",
    palette: Palette = LIGHT,
) -> Figure:
    """Tables in rows, the largest first, devices in columns.

    Args:
        plan: the plan.
        colour: "memory" (GB of a table on a device) or "time" (ms that the device would save without it; not additive).
        cost_model: prices the times; by default the bundled model of the plan's device.
        title: what to write above.
        palette: colours.

    Raises:
        InvalidInput: there is no cost model for the plan's device, and times are wanted.
    """
    values = memory_matrix(plan) / 1e9 if colour == "memory" else _times(plan, cost_model)
    order = np.argsort(-np.nansum(values, axis=1), kind="stable")
    tables, devices = values.shape
    named = tables <= _NAMED
    height = float(np.clip(0.16 * tables + 1, 2.4, 8.0)) if named else 6.0
    figure, one = axes(palette, width=max(5.2, 0.05 * devices + 2.5), height=height)
    one.grid(visible=False)
    ramp = LinearSegmentedColormap.from_list("ramp", list(palette.ramp))
    top = float(np.nanmax(values))
    image = one.imshow(
        values[order], aspect="auto", interpolation="nearest", cmap=ramp, norm=PowerNorm(0.5, 0, top if top > 0 else 1)
    )
    bar = figure.colorbar(image, ax=one, shrink=0.7)
    bar.ax.tick_params(labelsize=7, colors=palette.muted)
    bar.set_label("GB" if colour == "memory" else "ms saved without the table", fontsize=8, color=palette.muted)
    one.set_yticks(range(tables) if named else [])
    if named:
        one.set_yticklabels([shown_name(plan.task.tables[row].name) for row in order], fontsize=6.5)
    label(one, palette, title, x="device", y="" if named else f"{tables:,} tables")
    return figure


def memory_matrix(plan: Plan) -> Floats:
    """`(tables, devices)` bytes, NaN where a device holds nothing of a table."""
    number = {table.name: index for index, table in enumerate(plan.task.tables)}
    result = np.full((len(number), plan.task.topology.devices), np.nan)
    for shard in plan.shards:
        place = (number[shard.table], list(shard.devices))
        result[place] = np.nan_to_num(result[place]) + shard_bytes(plan.task, shard)
    return result


def _times(plan: Plan, cost_model: CostModel | None) -> Floats:
    found = marginals(plan, cost_model or model_behind(plan))
    result = np.full((len(plan.task.tables), plan.task.topology.devices), np.nan)
    result[found.cells[:, 0], found.cells[:, 1]] = np.maximum(found.cell_ms.sum(axis=1), 0.0)
    return result
