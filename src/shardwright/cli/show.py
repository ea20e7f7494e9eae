"""`shardwright show`: show a plan in the terminal. Other commands use its tables and lines about plans too."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import typer
from rich.console import RenderableType
from rich.table import Table

from shardwright.cli.options import AsJson, ModelFile
from shardwright.cli.output import MISSING, emit, ms, note, percent, seconds, table
from shardwright.errors import counted
from shardwright.sharding import BOUND_SCOPES, PHASES, SEARCH_ENDS, DeviceCost, Plan
from shardwright.task.quantities import format_bytes

if TYPE_CHECKING:
    from shardwright.cli.documents import planning
    from shardwright.report import Bottleneck, Entry

_MOST_TABLES, _MOST_DEVICES = 20, 32
_CULPRITS = 3
_DEVICES = ("rank", "forward", "fwd comm", "bwd comm", "backward", "total", "tables", "memory", "limit")
_TABLES = ("table", "sharded", "rows", "dim", "ranks", "share", "memory", "step less")
_WAITS = ("a step waits for", "device", "ms", "mean", "tables (ms less on it without them)")
_TIERS = ("tier", "rows from", "to", "lookups", "copies", "blocks")


def run(
    *,
    plan: Annotated[Path, typer.Argument(metavar="PLAN", help="Plan file.", show_default=False)],
    model: ModelFile = None,
    tables: Annotated[
        int, typer.Option("--tables", min=0, help="How many tables to list, the costliest first.")
    ] = _MOST_TABLES,
    as_json: AsJson = False,
) -> None:
    """Show a plan: its devices, the bottlenecks of a step, its tables with their ranks, and tiers.

    "dim" of a table that 3 features share is 64×3. "share" is the part of a table that each of its ranks holds.
    "step less" is the time by which a step would be shorter without the table, by the cost model. Fused kernels are not sums of their
    tables, so these times do not add up to the step. With --json, all tables are listed.

    Example:
        shardwright show plan.json --tables 50
    """
    from shardwright.cost.choice import given_cost_model
    from shardwright.report import bottlenecks, entry_of, verdict

    loaded = Plan.load(plan)
    cost_model = given_cost_model(model, loaded.task.optimizer) if model is not None else None
    entry = entry_of(loaded, str(plan), cost_model=cost_model)
    waits = bottlenecks(entry)
    for text in entry.notes:
        note(f"note: {text}")
    rows = _table_rows(entry)
    words = verdict(entry)
    views: list[RenderableType] = [words, "", device_table(entry.plan), _waits(entry, waits)]
    views += [*_tables_view(rows, tables), *_tier_views(entry), headline(entry.plan)]
    emit(_document(plan, entry, waits, rows, words), *views, tuning_lines(entry.plan), as_json=as_json)


def device_table(plan: Plan) -> Table:
    """A table of the four phases and the memory of every device, or of the slowest devices if there are very many."""
    costs = plan.cost.devices if plan.cost else ()
    ranks = list(range(plan.task.topology.devices))
    shown = sorted(sorted(ranks, key=lambda rank: -costs[rank].total_ms if costs else rank)[:_MOST_DEVICES])
    memory, limits = plan.memory.total, plan.task.topology.memory_bytes
    rows = []
    for rank in shown:
        phases = [ms(getattr(costs[rank], phase)) for phase in PHASES] if costs else [MISSING] * len(PHASES)
        total = ms(costs[rank].total_ms) if costs else MISSING
        held = len({shard.table for shard in plan.by_device[rank]})
        rows.append([str(rank), *phases, total, str(held), format_bytes(int(memory[rank])), format_bytes(limits[rank])])
    caption = None if len(shown) == len(ranks) else f"the slowest {len(shown)} of {len(ranks)} devices"
    return table("predicted ms per device", _DEVICES, rows, caption)


def headline(plan: Plan) -> str:
    """Lines with predicted step, bound, gap, search time, and how the tables are sharded."""
    tables = counted(len(plan.task.tables), "table")
    kinds = Counter(plan.sharding_type(table.name) for table in plan.task.tables)
    sharded = ", ".join(f"{count} {kind}" for kind, count in kinds.most_common())
    cost = plan.cost
    gap = "" if plan.gap is None else f" (gap {percent(plan.gap)})"
    bound = f"bound {ms(plan.bound_ms)} ms{gap}" if plan.bound_ms is not None else "no bound"
    ended = f", {SEARCH_ENDS[plan.search_end]}" if plan.search_end else ""
    holds = f"\nthe bound holds {BOUND_SCOPES[plan.bound_scope]}" if plan.bound_ms is not None else ""
    lines = (
        f"step {ms(cost.step_ms if cost else None)} ms · embedding cost {ms(cost.embedding_cost_ms if cost else None)} ms · {bound}\n"
        f"search {seconds(plan.search_s)} s{ended}\n"
        f"strategy {plan.strategy or MISSING}, cost model {plan.cost_model or MISSING}; {tables}: {sharded}"
        f"\n{memory_line(plan)}"
        f"\nruns on {', '.join(plan.runs_on) or 'neither shardwright.runtime nor TorchRec'}{holds}{_of_group(plan)}"
    )
    return "\n".join([lines, *beside_lines(plan)])


def memory_line(plan: Plan) -> str:
    """Memory of the fullest device, held and free."""
    held, limits = plan.memory.total, plan.task.topology.memory_bytes
    rank = min(range(len(limits)), key=lambda rank: limits[rank] - int(held[rank]))
    left = limits[rank] - int(held[rank])
    return (
        f"memory: rank {rank}, the fullest, holds {format_bytes(int(held[rank]))} of {format_bytes(limits[rank])}; "
        f"{format_bytes(left)} are left"
    )


def beside_lines(plan: Plan) -> list[str]:
    """A line about the dense layers that hide traffic; none without."""
    hidden = [f"{kind} for {ms(time)} ms" for kind, time in asdict(plan.task.exchange.hidden).items() if time]
    return [f"the step leaves out dense layers, which hide {', '.join(hidden)}"] if hidden else []


def _of_group(plan: Plan) -> str:
    """A line about the plan's sharding group, and the time that synchronising the groups takes; empty without groups."""
    groups = plan.task.groups
    if groups is None:
        return ""
    from shardwright.cost.score import synchronisation_ms

    takes = float(synchronisation_ms(plan.task, plan.shards).max(axis=0).sum())
    often = "in every step" if groups.sync_interval == 1 else f"every {groups.sync_interval} steps"
    many = f"one of {counted(groups.count, 'sharding group')} of {counted(groups.size, 'device')}"
    return f"\n{many}, synchronised {often}, which takes {ms(takes)} ms a step"


def tuning_lines(plan: Plan) -> str | None:
    """Lines that compare a tuned plan's measured time with that of the plan before tuning and with the floor; None for other plans."""
    tuning = plan.tuning
    if tuning is None:
        return None
    (low, high), (first_low, first_high) = tuning.interval_ms, tuning.first_interval_ms
    rounds = max((trial.round for trial in tuning.history), default=0)
    accepted = sum(trial.accepted for trial in tuning.history if trial.round)
    tried = (
        f"{counted(len(tuning.history), 'plan')} measured in {counted(rounds, 'round')} after the first, {accepted} of them taken"
        if rounds
        else f"{counted(len(tuning.history), 'plan')} measured, and no round after the first"
    )
    return (
        f"measured step {ms(tuning.measured_ms)} ms (95%: {ms(low)} to {ms(high)}); before tuning {ms(tuning.first_ms)} ms "
        f"({ms(first_low)} to {ms(first_high)})\n"
        f"{percent(tuning.above_floor)} above the floor of {ms(tuning.floor_ms)} ms; {tried}"
    )


def _table_rows(entry: Entry) -> list[planning.TableOfShow]:
    """The tables. The one that lengthens a step most comes first."""
    from shardwright.sharding.display import ranks_text
    from shardwright.sharding.memory import shard_bytes

    plan, costs = entry.plan, entry.marginals
    gains = costs.phase_ms.sum(axis=1).tolist() if costs else [None] * len(plan.task.tables)
    rows: list[planning.TableOfShow] = []
    for sharded, gain in zip(plan.task.tables, gains, strict=True):
        shards = plan.by_table[sharded.name]
        rows.append(
            {
                "table": sharded.name,
                "sharding_type": plan.sharding_type(sharded.name),
                "rows": sharded.rows,
                "dim": sharded.dim,
                "features": len(sharded.poolings),
                "devices": (ranks := sorted({rank for shard in shards for rank in shard.devices})),
                "ranks": ranks_text(ranks, plan.task.topology.devices),
                "share_of_table": _share_of_table(plan, sharded.name, ranks),
                "memory_bytes": sum(shard_bytes(plan.task, shard) * len(shard.devices) for shard in shards),
                "step_ms_without_it": None if gain is None else entry.cost.step_ms - gain,
                "step_ms_less": gain,
            }
        )
    return sorted(rows, key=lambda row: (-(row["step_ms_less"] or 0.0), -row["memory_bytes"]))


def _tables_view(rows: list[planning.TableOfShow], most: int) -> list[RenderableType]:
    if not most:
        return []
    cells = [
        [
            row["table"],
            row["sharding_type"],
            f"{row['rows']:,}",
            f"{row['dim']}×{row['features']}" if row["features"] > 1 else str(row["dim"]),
            row["ranks"],
            _share_text(row["share_of_table"]),
            format_bytes(row["memory_bytes"]),
            ms(row["step_ms_less"]),
        ]
        for row in rows[:most]
    ]
    caption = f"the costliest {most} of {len(rows)} tables" if len(rows) > most else None
    return [table("tables", _TABLES, cells, caption, texts=(0, 4))]


def _share_of_table(plan: Plan, name: str, ranks: Sequence[int]) -> list[float]:
    """The part of a table's weights that each of its ranks holds."""
    held = dict.fromkeys(ranks, 0)
    for shard in plan.by_table[name]:
        for rank in shard.devices:
            held[rank] += shard.area
    table = plan.task.table_by_name[name]
    return [area / (table.rows * table.dim) for area in held.values()]


def _share_text(shares: Sequence[float]) -> str:
    """The shares as text: one value, or the smallest and the largest."""
    least, most = (f"{100 * share:.3g}" for share in (min(shares), max(shares)))
    return f"{most}%" if least == most else f"{least}-{most}%"


def _waits(entry: Entry, waits: tuple[Bottleneck, ...]) -> RenderableType:
    names = [table.name for table in entry.plan.task.tables]
    rows = []
    for wait in waits:
        tables = [f"{names[culprit.table]} {ms(culprit.device_ms)}" for culprit in wait.tables[:_CULPRITS]]
        rows.append([wait.name, str(wait.rank), ms(wait.ms), ms(wait.mean_ms), ", ".join(tables) or MISSING])
    return table("what a step waits for", _WAITS, rows, texts=(0, 4))


def _tier_views(entry: Entry) -> list[RenderableType]:
    from shardwright.report import tiered_tables, tiers_of

    views: list[RenderableType] = []
    for name in tiered_tables(entry.plan)[:_MOST_TABLES]:
        rows = [
            [tier.name, *(f"{row:,}" for row in tier.rows), percent(tier.share), f"{tier.copies:g}", str(tier.blocks)]
            for tier in tiers_of(entry.plan, name)
        ]
        views.append(table(f"tiers of {name}, rows hottest first", _TIERS, rows))
    return views


def _document(
    path: Path, entry: Entry, waits: tuple[Bottleneck, ...], rows: list[planning.TableOfShow], verdict: str
) -> planning.Show:
    plan, names = entry.plan, [table.name for table in entry.plan.task.tables]
    return {
        "plan": str(path),
        "strategy": plan.strategy,
        "cost_model": plan.cost_model,
        "step_ms": entry.cost.step_ms,
        "embedding_cost_ms": entry.cost.embedding_cost_ms,
        "bound_ms": plan.bound_ms,
        "bound_scope": plan.bound_scope,
        "gap": plan.gap,
        "runs_on": list(plan.runs_on),
        "devices": [_device(plan, device) for device in entry.cost.devices],
        "bottlenecks": [_bottleneck(wait, names) for wait in waits],
        "tables": rows,
        "tuning": plan.tuning,
        "notes": list(entry.notes),
        "verdict": verdict,
    }


def _device(plan: Plan, cost: DeviceCost) -> planning.DeviceOfShow:
    memory = {
        "weight_bytes": int(plan.memory.weights[cost.rank]),
        "optimizer_bytes": int(plan.memory.optimizer[cost.rank]),
        "buffer_bytes": int(plan.memory.buffers[cost.rank]),
        "limit_bytes": plan.task.topology.memory_bytes[cost.rank],
    }
    return cast("planning.DeviceOfShow", asdict(cost) | memory)


def _bottleneck(bottleneck: Bottleneck, names: Sequence[str]) -> planning.BottleneckOfShow:
    return {
        "phase": bottleneck.phase,
        "rank": bottleneck.rank,
        "ms": bottleneck.ms,
        "mean_ms": bottleneck.mean_ms,
        "tables": [
            {"table": names[culprit.table], "device_ms_less": culprit.device_ms, "phase_ms_less": culprit.phase_ms}
            for culprit in bottleneck.tables
        ],
    }
