"""Cuts by hand against the search: the heaviest tables of public models, cut into tables of fewer columns.

    python -m benchmarks.cut_by_hand                      # results/cut_by_hand.md
    python -m benchmarks.cut_by_hand --quick              # one model on two hosts

The search plans the cut tables; their shards are then priced as a plan of the model itself. Such a plan may mix ways that no single table
has, such as one column block whole and another in rows. For TorchRec it counts only if TorchRec runs it. All figures are predicted.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import shardwright as sw
from benchmarks import results_table
from benchmarks.program import options_of
from shardwright.cost import score
from shardwright.cost.choice import resolve_cost_model
from shardwright.errors import InfeasibleTask
from shardwright.sharding.runtimes import Runtime, patterns_like
from shardwright.task import AccessProfile, Table, Task, Topology
from shardwright.workload.generators import public_task

BATCH = 131_072
MODELS = ("mlperf-dlrm-dcnv2", "hugectr-7", "one table")
HOSTS = (1, 4, 8)
CUT_TABLES, COLUMNS = (1, 2, 4, 8), (2, 4, 8)
SECONDS = 10.0
RUNTIMES: tuple[tuple[str, Runtime], ...] = (("torchrec", "torchrec"), ("any blocks", "shardwright"))


@dataclass(frozen=True)
class Compared:
    """A model's default plan, and the best plan cut by hand.

    Attributes:
        plan: the default plan.
        step_ms: least step of a plan cut by hand.
        cut: number of tables cut for it, and of the parts of each.
        seconds: search time of the default plan.
    """

    plan: sw.Plan
    step_ms: float
    cut: tuple[int, int]
    seconds: float

    @property
    def ratio(self) -> float:
        """Step cut by hand over that of the default."""
        assert self.plan.cost is not None
        return self.step_ms / self.plan.cost.step_ms


def main(arguments: Sequence[str] | None = None) -> None:
    options = options_of(__doc__, arguments, quick=(False, "one model on two hosts"))
    models, hosts = (MODELS[-1:], (2,)) if options.quick else (MODELS, HOSTS)
    rows = []
    for model, count, (label, runs_on) in ((m, h, r) for m in models for h in hosts for r in RUNTIMES):
        try:
            result = compared(task_of(model, count), runs_on)
        except InfeasibleTask as error:
            print(f"{model} on {count} × 8: {error}", flush=True)
            continue
        cost, gap = result.plan.cost, result.plan.gap
        assert cost is not None
        rows.append((
            model, f"{count} × 8", label, f"{cost.step_ms:.3f}", "-" if gap is None else f"{100 * gap:.1f}%", f"{result.seconds:.1f}",
            f"{result.ratio:.3f}", "{} tables in {}".format(*result.cut),
        ))  # fmt: skip
        print(*rows[-1], sep=" · ", flush=True)
    heads = ("model", "H100s", "blocks for", "step, ms", "gap", "search, s", "by hand / default", "the cut")
    caption = f"Predicted for batches of {BATCH:,} samples, {SECONDS:.0f} s a search at most. Below 1, the cut by hand is better."
    command = results_table.command_of("cut_by_hand", arguments)
    results_table.write_results(
        "cut_by_hand", "Tables cut by hand against the search", [(caption, heads, rows)], command
    )


def task_of(model: str, hosts: int) -> Task:
    """A public model, or a single hot table, on hosts of 8 H100s."""
    topology = Topology.preset("h100-8", hosts=hosts)
    if model == "one table":
        rows = 10_000_000
        return Task([Table("hot", rows, 128, 30.0, access=AccessProfile.zipf(rows, 1.05))], topology, BATCH)
    return public_task(model, topology, batch_size=BATCH)


def compared(task: Task, runs_on: Runtime) -> Compared:
    """Plan a task, and all cuts of its heaviest tables."""
    started = time.monotonic()
    plan = sw.plan(task, runs_on=runs_on, time_limit=SECONDS)
    seconds = time.monotonic() - started
    model = resolve_cost_model(None, task)
    best = (float("inf"), (0, 0))
    for cut, smaller in cut_tasks(task):
        try:
            of_parts = sw.plan(smaller, runs_on=runs_on, time_limit=SECONDS)
        except InfeasibleTask:
            continue
        shards = together(task, of_parts)
        if runs_on == "torchrec" and not torchrec_runs(task, shards):
            continue
        best = min(best, (score(task, shards, model).step_ms, cut))
    return Compared(plan, *best, seconds)


def cut_tasks(task: Task) -> Iterator[tuple[tuple[int, int], Task]]:
    """Tasks whose heaviest tables are cut into equal tables of fewer columns, with how many are cut into how many."""
    heaviest = sorted(task.tables, key=lambda table: -table.pooling * table.dim)
    for tables in sorted({min(count, len(heaviest)) for count in CUT_TABLES}):
        chosen = {table.name for table in heaviest[:tables]}
        for parts in COLUMNS:
            cut = [
                part
                for table in task.tables
                for part in (_parts(table, parts) if table.name in chosen and table.dim % (4 * parts) == 0 else [table])
            ]
            yield (tables, parts), replace(task, tables=cut)


def _parts(table: Table, parts: int) -> list[Table]:
    return [replace(table, name=f"{table.name}/{part}", dim=table.dim // parts) for part in range(parts)]


def together(task: Task, plan: sw.Plan) -> list[sw.Shard]:
    """The shards of a plan of parts as shards of the model's tables."""
    shards = []
    for shard in plan.shards:
        name, _, part = shard.table.partition("/")
        first = int(part or 0) * plan.task.table_by_name[shard.table].dim
        columns = (first + shard.columns[0], first + shard.columns[1])
        shards.append(replace(shard, table=name, columns=columns))
    return _joined(task, shards)


def _joined(task: Task, shards: Sequence[sw.Shard]) -> list[sw.Shard]:
    """Replicas of all parts of a table as one replica: the others may stay beside each other."""
    copied = {
        table.name
        for table in task.tables
        if all(len(shard.devices) == task.topology.devices > 1 for shard in shards if shard.table == table.name)
    }
    rest = [shard for shard in shards if shard.table not in copied]
    return rest + [sw.Shard.whole(task.table_by_name[name], *range(task.topology.devices)) for name in copied]


def torchrec_runs(task: Task, shards: Sequence[sw.Shard]) -> bool:
    """Whether TorchRec has a sharding type for every table."""
    of_table: dict[str, list[sw.Shard]] = {}
    for shard in shards:
        of_table.setdefault(shard.table, []).append(shard)
    return all(patterns_like(blocks, task.table_by_name[name], task.topology) for name, blocks in of_table.items())


if __name__ == "__main__":
    main()
