"""The access curve of a table, with its tiers."""

from __future__ import annotations

from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from shardwright.errors import InvalidInput
from shardwright.report.figures.style import axes, label
from shardwright.report.palette import LIGHT, Palette
from shardwright.report.tiers import tiered_tables, tiers_of
from shardwright.sharding.plan import Plan


def access_curve(plan: Plan, table: str, *, title: str | None = None, palette: Palette = LIGHT) -> Figure:
    """Which part of the lookups the hottest rows take, and the tiers of a table whose rows are placed by hotness.

    Args:
        plan: the plan.
        table: name of a table of it.
        title: what to write above; by default the table's name.
        palette: colours.

    Raises:
        InvalidInput: the plan's task has no such table.
    """
    one_table = plan.task.table_by_name.get(table)
    if one_table is None:
        raise InvalidInput(f"the plan's task has no table {table!r}; name one of its {len(plan.task.tables)} tables")
    figure, one = axes(palette)
    access = one_table.access
    start = min(1.0, float(access.rows[1]))
    fills = (palette.phases[1], palette.phases[0], palette.memory[1], palette.kinds[5], palette.kinds[6])
    if table in tiered_tables(plan):
        for number, tier in enumerate(tiers_of(plan, table)):
            low, high = max(tier.rows[0], start), tier.rows[1]
            one.axvspan(low, high, color=fills[number % len(fills)], alpha=0.22, linewidth=0)
            one.text((low * high) ** 0.5, 0.03, tier.name, ha="center", fontsize=8, color=palette.ink)
            if number:
                one.axvline(low, color=palette.muted, linestyle=":", linewidth=1)
    one.plot(access.rows[1:], access.share[1:], color=palette.ink, linewidth=1.6)
    one.set_xscale("log")
    one.set_xlim(start, max(access.total_rows, start * 1.01))
    one.set_ylim(0, 1.02)
    one.yaxis.set_major_formatter(PercentFormatter(1.0))
    label(one, palette, title or f"Lookups that the hottest rows of {table} take", x="rows, hottest first")
    return figure
