"""Short displays of a plan: one line for Python's prompt, a small table for notebooks, ranks as ranges."""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from shardwright.errors import counted
from shardwright.sharding.memory import shard_bytes
from shardwright.task.quantities import format_bytes

if TYPE_CHECKING:
    from shardwright.sharding.plan import Plan

_MOST = 20  # most tables shown in a notebook
_NAME = 40  # most characters shown of a strategy's name
_COLUMNS = ("table", "sharded", "rows", "dim", "ranks", "memory")


def ranks_text(ranks: Iterable[int], devices: int) -> str:
    """Ranks in short form: "0-3,8", or "all" for every device of a cluster with several."""
    ascending = sorted(set(ranks))
    if len(ascending) == devices > 1:
        return "all"
    runs: list[list[int]] = []
    for rank in ascending:
        if runs and rank == runs[-1][1] + 1:
            runs[-1][1] = rank
        else:
            runs.append([rank, rank])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)


def plan_line(plan: Plan) -> str:
    """One line that describes a plan, without its arrays."""
    topology = plan.task.topology
    strategy = "".join(
        character for character in plan.strategy if character.isprintable()
    )  # a plan file may hold any text
    facts = [
        strategy[:_NAME] or "no strategy",
        counted(len(plan.task.tables), "table"),
        f"{topology.devices} × {topology.device}",
    ]
    if plan.cost is not None:
        facts.append(f"step {plan.cost.step_ms:.3f} ms")
    if plan.gap is not None:
        facts.append(f"gap {100 * plan.gap:.1f}%")
    return f"<Plan: {', '.join(facts)}>"


def plan_html(plan: Plan) -> str:
    """HTML with the same line and the tables that take most memory. All text is escaped."""
    tables = plan.task.tables
    held = {
        name: sum(shard_bytes(plan.task, shard) * len(shard.devices) for shard in plan.by_table[name])
        for name in plan.by_table
    }
    largest = sorted(tables, key=lambda table: -held[table.name])[:_MOST]
    rows = []
    for table in largest:
        ranks = {rank for shard in plan.by_table[table.name] for rank in shard.devices}
        where = ranks_text(ranks, plan.task.topology.devices)
        size = format_bytes(held[table.name])
        rows.append((table.name, plan.sharding_type(table.name), f"{table.rows:,}", str(table.dim), where, size))
    rest = f"<p>and {counted(len(tables) - _MOST, 'smaller table')}</p>" if len(tables) > _MOST else ""
    body = "".join(_row("td", row) for row in rows)
    return f"<p>{html.escape(plan_line(plan))}</p><table>{_row('th', _COLUMNS)}{body}</table>{rest}"


def _row(kind: str, cells: Sequence[str]) -> str:
    return f"<tr>{''.join(f'<{kind}>{html.escape(cell)}</{kind}>' for cell in cells)}</tr>"
