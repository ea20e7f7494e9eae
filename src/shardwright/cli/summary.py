"""A plan for people: a row per device, and a line of totals."""

from __future__ import annotations

from collections import Counter

from rich.table import Table

from shardwright.cli.output import MISSING, ms, percent, seconds, table
from shardwright.sharding import BOUND_SCOPES, PHASES, Plan
from shardwright.task.units import format_bytes

_MOST_DEVICES = 32
_COLUMNS = ("rank", "forward", "fwd comm", "bwd comm", "backward", "total", "tables", "memory", "limit")


def device_table(plan: Plan) -> Table:
    """The four phases and the memory of every device, or of the slowest where there are very many."""
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
    return table("predicted ms per device", _COLUMNS, rows, caption)


def headline(plan: Plan) -> str:
    """Predicted step, bound, gap, search time, and how the tables are sharded."""
    kinds = Counter(plan.sharding_type(one.name) for one in plan.task.tables)
    sharded = ", ".join(f"{count} {kind}" for kind, count in kinds.most_common())
    cost = plan.cost
    bound = f"bound {ms(plan.bound_ms)} ms (gap {percent(plan.gap)})" if plan.bound_ms is not None else "no bound"
    holds = f"\nthe bound holds {BOUND_SCOPES[plan.bound_scope]}" if plan.bound_ms is not None else ""
    return (
        f"step {ms(cost.step_ms if cost else None)} ms · embedding cost {ms(cost.embedding_cost_ms if cost else None)} ms · {bound} · "
        f"search {seconds(plan.search_s)} s\n"
        f"strategy {plan.strategy or MISSING}, cost model {plan.cost_model or MISSING}; {len(plan.task.tables)} tables: {sharded}"
        f"\nruns on {', '.join(plan.runs_on) or 'neither shardwright.runtime nor TorchRec'}{holds}{_of_group(plan)}"
    )


def _of_group(plan: Plan) -> str:
    """A line of the plan of a sharding group: of how many, and what keeping them alike takes."""
    groups = plan.task.groups
    if groups is None:
        return ""
    from shardwright.cost.score import synchronisation_ms

    takes = float(synchronisation_ms(plan.task, plan.shards).max(axis=0).sum())
    often = "in every step" if groups.sync_interval == 1 else f"every {groups.sync_interval} steps"
    many = f"one of {groups.count} sharding groups of {groups.size} devices"
    return f"\n{many}, synchronised {often}, which takes {ms(takes)} ms a step"


def tuning_lines(plan: Plan) -> str:
    """What a tuned plan was measured to take, against the plan before and the floor; empty for others."""
    found = plan.tuning
    if found is None:
        return ""
    (low, high), (first_low, first_high) = found.interval_ms, found.first_interval_ms
    rounds = max((trial.round for trial in found.history), default=0)
    accepted = sum(trial.accepted for trial in found.history if trial.round)
    return (
        f"measured step {ms(found.measured_ms)} ms (95%: {ms(low)} to {ms(high)}); before tuning {ms(found.first_ms)} ms "
        f"({ms(first_low)} to {ms(first_high)})\n"
        f"{percent(found.above_floor)} above the floor of {ms(found.floor_ms)} ms; {len(found.history)} plans measured in {rounds} rounds "
        f"after the first, {accepted} of them taken"
    )
