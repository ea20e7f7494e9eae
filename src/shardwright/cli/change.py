"""The report of `shardwright plan --from`: moves from the older plan to the newer one, and the gain of a step."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import RenderableType

from shardwright.cli.output import ms, percent, table
from shardwright.cost import CostModel
from shardwright.cost.score import score
from shardwright.errors import counted, some_of
from shardwright.sharding import Plan
from shardwright.sharding.diff import PlanDiff, carry
from shardwright.sharding.runtimes import crossing
from shardwright.task.quantities import format_bytes

if TYPE_CHECKING:
    from shardwright.cli.documents import planning

_MOST_TABLES = 20
_COLUMNS = ("table", "before", "after", "moves", "stays")


@dataclass(frozen=True)
class PlanChange:
    """A comparison of an older plan with a newer one.

    The newer plan is compared with a base: the older plan, or, if that does not apply, a plan that moves only what must move.

    Attributes:
        source: file of the older plan.
        diff: the moves.
        step_ms: predicted step time of the newer plan.
        base_ms: step time of the base, for the newer plan's task and by the same cost model.
        base_bytes: bytes that must move to reach the base.
        why_not: why the older plan does not apply; None if it does.
        move_cost: ms per GB that the search was given.
        crossing: tables that gain or lose replicas, for which TorchRec loads no optimizer state.
    """

    source: Path
    diff: PlanDiff
    step_ms: float
    base_ms: float
    base_bytes: int
    why_not: str | None
    move_cost: float
    crossing: list[str]

    @property
    def gain_ms(self) -> float:
        """Step time of the base minus that of the newer plan."""
        return self.base_ms - self.step_ms

    @property
    def gain(self) -> float:
        """The gain as a share of the base's step time."""
        return self.gain_ms / self.base_ms if self.base_ms else 0.0


def change_from(
    older: Plan,
    source: Path,
    newer: Plan,
    cost_model: CostModel,
    move_cost: float,
    staying: Callable[[], Plan],
    runs_on: str,
) -> PlanChange:
    """Compare a scored plan with the plan that its search started from.

    Args:
        older: the plan that the search started from.
        source: file of the older plan.
        newer: the scored plan.
        cost_model: the model that scored it.
        move_cost: ms per GB that the search was given.
        staying: finds a plan of the same task that moves only what must move.
        runs_on: the runtime that trains both.
    """
    assert newer.cost is not None
    carried, diff = carry(older, newer.task), older.diff(newer)
    why_not = carried.why_no_plan(newer.task)
    if why_not is None:
        base_ms, base_bytes = score(newer.task, carried.all_shards(), cost_model).step_ms, 0
    elif diff.moved_bytes and math.isfinite(move_cost):
        still = staying()
        assert still.cost is not None
        base_ms, base_bytes = still.cost.step_ms, older.diff(still).moved_bytes
    else:
        base_ms, base_bytes = newer.cost.step_ms, diff.moved_bytes
    crosses = crossing(older, newer) if runs_on in ("auto", "torchrec") and "torchrec" in newer.runs_on else []
    return PlanChange(source, diff, newer.cost.step_ms, base_ms, base_bytes, why_not, move_cost, crosses)


def change_document(change: PlanChange) -> planning.Change:
    """The change as a part of the JSON document."""
    diff, applies = change.diff, change.why_not is None
    return {
        "from": str(change.source),
        "move_cost": change.move_cost,
        "old_step_ms": change.base_ms if applies else None,
        "why_old_does_not_apply": change.why_not,
        "least_moving": None if applies else {"step_ms": change.base_ms, "moved_bytes": change.base_bytes},
        "gain_ms": change.gain_ms,
        "gain": change.gain,
        "crossing": change.crossing,
        "moves": [{"table": move.table, "device": move.device, "bytes": move.bytes} for move in diff.moves],
        "tables": [moved for moved in diff.tables if moved.moved_bytes],
        "added": list(diff.added),
        "removed": list(diff.removed),
        "changed": list(diff.changed),
        "made_bytes": diff.made_bytes,
        "new_devices": diff.new_devices,
        "gone_devices": diff.gone_devices,
        "moved_bytes": diff.moved_bytes,
        "kept_bytes": diff.kept_bytes,
    }


def change_views(change: PlanChange) -> list[RenderableType]:
    """The change for people: a row for each table that moves, and lines of totals."""
    moving = sorted((moved for moved in change.diff.tables if moved.moved_bytes), key=lambda moved: -moved.moved_bytes)
    shown = moving[:_MOST_TABLES]
    rows = [
        [
            moved.table,
            moved.before,
            moved.after,
            format_bytes(moved.moved_bytes),
            f"{format_bytes(moved.kept_bytes)} ({percent(moved.kept_bytes / (moved.kept_bytes + moved.moved_bytes))})",
        ]
        for moved in shown
    ]
    caption = None if len(shown) == len(moving) else f"the largest {len(shown)} of {len(moving)} tables that move"
    lines = "\n".join([_moved(change.diff), *_made(change.diff), *_crossed(change), _gained(change)])
    return [table("what moves", _COLUMNS, rows, caption), lines] if rows else [lines]


def _moved(diff: PlanDiff) -> str:
    if not diff.tables:
        return "no table of the old plan is in this task: everything is new, nothing moves"
    total = diff.moved_bytes + diff.kept_bytes
    return (
        f"moves {format_bytes(diff.moved_bytes)} of {format_bytes(total)} ({percent(diff.moved_bytes / total)}), of "
        f"{counted(len(diff.moved_tables), 'table')}; {format_bytes(diff.kept_bytes)} stay where they are"
    )


def _made(diff: PlanDiff) -> list[str]:
    """A line about added and removed tables and devices; no line without them."""
    counts = [
        (len(diff.added), "new", "table"),
        (len(diff.changed), "of another shape", "table"),
        (len(diff.removed), "gone", "table"),
        (diff.new_devices, "new", "device"),
        (diff.gone_devices, "gone", "device"),
    ]
    parts = [f"{count} {what}{'s are' if count > 1 else ' is'} {how}" for count, how, what in counts if count]
    made = [f"{format_bytes(diff.made_bytes)} of tables are made anew"] if diff.made_bytes else []
    return ["; ".join([*parts, *made])] if parts else []


def _crossed(change: PlanChange) -> list[str]:
    """A line about optimizer state that TorchRec will not load; no line if it loads all."""
    names = change.crossing
    return [f"optimizer state that TorchRec does not load, as replicas come or go: {some_of(names)}"] if names else []


def _gained(change: PlanChange) -> str:
    base, planned = ms(change.base_ms), f"this plan: {ms(change.step_ms)} ms"
    more = (change.diff.moved_bytes - change.base_bytes) / 1e9
    each = f", {change.gain_ms / more:.3g} ms for each GB that moves for it" if more > 0 and change.gain_ms > 0 else ""
    gain = f"gain {ms(change.gain_ms)} ms ({percent(change.gain)}){each}"
    if change.why_not is None:
        return f"step of {change.source}: {base} ms, of {planned}; {gain}"
    return (
        f"{change.source} does not apply: {change.why_not}\n"
        f"step if only what must moves ({format_bytes(change.base_bytes)}): {base} ms, of {planned}; {gain}"
    )
