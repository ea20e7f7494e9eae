"""What a plan that was made from another one moves, and what that gains."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import RenderableType

from shardwright.cli.output import ms, percent, table
from shardwright.cost import CostModel
from shardwright.cost.score import score
from shardwright.sharding import Plan
from shardwright.sharding.carry import carry
from shardwright.sharding.diff import PlanDiff
from shardwright.task.units import format_bytes

_MOST_TABLES = 20
_COLUMNS = ("table", "before", "after", "moves", "stays")


@dataclass(frozen=True)
class Base:
    """What a newer plan is compared with.

    Attributes:
        step_ms: predicted step time, for the newer plan's task and by the same cost model.
        moved_bytes: bytes that have to move for it.
    """

    step_ms: float
    moved_bytes: int


@dataclass(frozen=True)
class Change:
    """From an older plan to a newer one.

    Attributes:
        source: file of the older plan.
        diff: what moves.
        step_ms: predicted step time of the newer plan.
        base: the older plan, or where it does not apply one that moves only what must.
        why_not: why the older plan does not apply; None if it does.
        move_cost: ms per GB that the search was given.
    """

    source: Path
    diff: PlanDiff
    step_ms: float
    base: Base
    why_not: str | None
    move_cost: float

    @property
    def gain_ms(self) -> float:
        """By how much a step is shorter than that of the base."""
        return self.base.step_ms - self.step_ms

    @property
    def gain(self) -> float:
        """The same as a share of the base's step."""
        return self.gain_ms / self.base.step_ms if self.base.step_ms else 0.0


def change_from(
    older: Plan, source: Path, newer: Plan, cost_model: CostModel, move_cost: float, staying: Callable[[], Plan]
) -> Change:
    """Compare a scored plan with the plan it was made from.

    Args:
        older: the plan it was made from.
        source: its file.
        newer: the plan.
        cost_model: the model that scored it.
        move_cost: ms per GB that the search was given.
        staying: finds a plan of the same task that moves only what must.
    """
    assert newer.cost is not None
    carried, diff = carry(older, newer.task), older.diff(newer)
    why_not = carried.why_no_plan(newer.task)
    if why_not is None:
        base = Base(score(newer.task, carried.all_shards(), cost_model).step_ms, 0)
    elif diff.moved_bytes and math.isfinite(move_cost):
        still = staying()
        assert still.cost is not None
        base = Base(still.cost.step_ms, older.diff(still).moved_bytes)
    else:
        base = Base(newer.cost.step_ms, diff.moved_bytes)
    return Change(source, diff, newer.cost.step_ms, base, why_not, move_cost)


def change_to_dict(change: Change) -> dict[str, Any]:
    """The change as plain data."""
    diff, applies = change.diff, change.why_not is None
    return {
        "from": str(change.source),
        "move_cost": change.move_cost,
        "old_step_ms": change.base.step_ms if applies else None,
        "why_old_does_not_apply": change.why_not,
        "least_moving": None if applies else asdict(change.base),
        "gain_ms": change.gain_ms,
        "gain": change.gain,
        "moved_bytes": diff.moved_bytes,
        "kept_bytes": diff.kept_bytes,
        "made_bytes": diff.made_bytes,
        "added": list(diff.added),
        "removed": list(diff.removed),
        "changed": list(diff.changed),
        "new_devices": diff.new_devices,
        "gone_devices": diff.gone_devices,
        "tables": [asdict(one) for one in diff.tables if one.moved_bytes],
        "moves": [{"table": move.table, "device": move.device, "bytes": move.bytes} for move in diff.moves],
    }


def change_views(change: Change) -> list[RenderableType]:
    """The change for people: a row for each table that moves, and lines of totals."""
    moving = sorted((one for one in change.diff.tables if one.moved_bytes), key=lambda one: -one.moved_bytes)
    shown = moving[:_MOST_TABLES]
    rows = [
        [
            one.table,
            one.before,
            one.after,
            format_bytes(one.moved_bytes),
            f"{format_bytes(one.kept_bytes)} ({percent(one.kept_bytes / (one.kept_bytes + one.moved_bytes))})",
        ]
        for one in shown
    ]
    caption = None if len(shown) == len(moving) else f"the largest {len(shown)} of {len(moving)} tables that move"
    lines = "\n".join([_moved(change.diff), *_made(change.diff), _gained(change)])
    return [table("what moves", _COLUMNS, rows, caption), lines] if rows else [lines]


def _moved(diff: PlanDiff) -> str:
    if not diff.tables:
        return "no table of the old plan is in this task: everything is new, nothing moves"
    total = diff.moved_bytes + diff.kept_bytes
    count = len(diff.moved_tables)
    return (
        f"moves {format_bytes(diff.moved_bytes)} of {format_bytes(total)} ({percent(diff.moved_bytes / total)}), of {count} "
        f"table{'s' if count != 1 else ''}; {format_bytes(diff.kept_bytes)} stay where they are"
    )


def _made(diff: PlanDiff) -> list[str]:
    """What is new or gone, where anything is."""
    counts = [
        (len(diff.added), "new", "table"),
        (len(diff.changed), "of another shape", "table"),
        (len(diff.removed), "gone", "table"),
        (diff.new_devices, "new", "device"),
        (diff.gone_devices, "gone", "device"),
    ]
    found = [f"{count} {what}{'s are' if count > 1 else ' is'} {how}" for count, how, what in counts if count]
    made = [f"{format_bytes(diff.made_bytes)} of tables are made anew"] if diff.made_bytes else []
    return ["; ".join([*found, *made])] if found else []


def _gained(change: Change) -> str:
    base, this = change.base, f"this plan: {ms(change.step_ms)} ms"
    more = (change.diff.moved_bytes - base.moved_bytes) / 1e9
    each = f", {change.gain_ms / more:.3g} ms for each GB that moves for it" if more > 0 and change.gain_ms > 0 else ""
    gain = f"gain {ms(change.gain_ms)} ms ({percent(change.gain)}){each}"
    if change.why_not is None:
        return f"step of {change.source}: {ms(base.step_ms)} ms, of {this}; {gain}"
    return (
        f"{change.source} does not apply: {change.why_not}\n"
        f"step if only what must moves ({format_bytes(base.moved_bytes)}): {ms(base.step_ms)} ms, of {this}; {gain}"
    )
