"""`shardwright plan`: make a plan file from a task file, for one size or every size of sharding groups if asked; or price a plan file."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, cast

import typer
from rich.console import RenderableType

from shardwright.cli.checks import check_absent, check_target, given_parameters
from shardwright.cli.clusters import task_on_cluster
from shardwright.cli.errors import about
from shardwright.cli.export import export_to_torchrec, exported_files
from shardwright.cli.options import (
    STRATEGIES,
    AsJson,
    Batch,
    Devices,
    Gap,
    Hosts,
    ModelFile,
    MostMoved,
    OnRuntime,
    Reserve,
    Seed,
    TaskFile,
    TimeLimit,
    cost_model_for,
    most_moved_bytes,
    option,
)
from shardwright.cli.output import MISSING, SearchProgress, emit, ms, percent, progress, saved, table
from shardwright.errors import InvalidInput, some_of
from shardwright.task.quantities import format_bytes

if TYPE_CHECKING:
    from shardwright.cli.change import PlanChange
    from shardwright.cli.documents import planning
    from shardwright.questions.group_sizes import GroupSizes
    from shardwright.search.balance import Balanced
    from shardwright.sharding import Plan, RankMap
    from shardwright.task import Task

Output = Annotated[Path | None, option("--output", "-o", metavar="FILE", text="Save the plan here, as JSON.")]
StrategyName = Annotated[str, typer.Option("--strategy", metavar="NAME", help=STRATEGIES)]
PolicyFile = Annotated[
    Path | None,
    option("--policy", metavar="FILE", text="Policy of a strategy that learns one; by default the bundled one."),
]
RankMaps = Annotated[
    Path | None,
    option(
        "--rank-maps",
        metavar="FILE",
        text="Ids by hotness, from 'shardwright profile'; the plan's part is saved next to the plan.",
    ),
]
Export = Annotated[
    Literal["torchrec"] | None,
    option(
        "--export",
        metavar="torchrec",
        text="Also save the plan for TorchRec, next to -o: a sharding plan, and Python lines that load it or constrain its planner.",
    ),
]
Start = Annotated[
    Path | None,
    option(
        "--from", metavar="PLAN", text="Start from this plan, made for this task or before tables or devices changed."
    ),
]
MoveCost = Annotated[
    float,
    typer.Option(
        "--move-cost",
        metavar="MS_PER_GB",
        help="With --from: ms that a step must gain for each GB moved; 'inf' moves only what must move.",
    ),
]
CrossReplicas = Annotated[
    bool,
    typer.Option(
        "--cross-replicas",
        help="With --from, for TorchRec: let tables gain or lose replicas, although TorchRec then loads no optimizer state for them.",
    ),
]
BalanceMemory = Annotated[
    str | None,
    option(
        "--balance-memory",
        metavar="PART",
        text="Among plans at most this much slower than the best, such as 1%, take the one whose fullest device is the least full.",
    ),
]
LeastMoves = Annotated[
    str | None,
    option(
        "--least-moves",
        metavar="PART",
        text="With --from: among plans at most this much slower than the best, such as 1%, take the one that moves the fewest bytes.",
    ),
]
GroupSizeOption = Annotated[
    str | None,
    option(
        "--sharding-group-size",
        metavar="N|auto",
        text="2D parallelism, for TorchRec's DMPCollection: devices of a sharding group, whose plan this is; 'auto' takes the best size.",
    ),
]
SyncInterval = Annotated[
    int, typer.Option("--sync-interval", min=1, help="Steps from one all-reduce of the groups' weights to the next.")
]
InterHost = Annotated[
    bool,
    typer.Option(
        "--inter-host-allreduce",
        help="Place the ranks of a group next to each other, as use_inter_host_allreduce does; by default, the replicas.",
    ),
]
FullySharded = Annotated[
    bool,
    typer.Option("--fully-sharded", help="ShardingStrategy.FULLY_SHARDED: weights travel in every step."),
]

Check = Annotated[
    bool,
    typer.Option("--check", help="TASK is a plan file: check and price it, without a search."),
]

_OF_GROUPS = ("sync_interval", "inter_host_allreduce", "fully_sharded")
_NOT_OF_GROUPS = ("start", "move_cost", "cross_replicas", "balance_memory", "least_moves", "most_moved")
_SAME = 1e-9  # two steps closer than this (relatively) are the same
_SIZES = ("size", "groups", "step", "sync", "bound", "gap", "memory", "between passes")


def run(
    *,
    context: typer.Context,
    task: TaskFile,
    check: Check = False,
    output: Output = None,
    strategy: StrategyName = "auto",
    model: ModelFile = None,
    policy: PolicyFile = None,
    rank_maps: RankMaps = None,
    seed: Seed = 0,
    time_limit: TimeLimit = None,
    gap: Gap = None,
    runs_on: OnRuntime = "auto",
    devices: Devices = None,
    hosts: Hosts = None,
    reserve: Reserve = None,
    batch: Batch = None,
    export: Export = None,
    start: Start = None,
    move_cost: MoveCost = 0.0,
    cross_replicas: CrossReplicas = False,
    balance_memory: BalanceMemory = None,
    least_moves: LeastMoves = None,
    most_moved: MostMoved = None,
    sharding_group_size: GroupSizeOption = None,
    sync_interval: SyncInterval = 1,
    inter_host_allreduce: InterHost = False,
    fully_sharded: FullySharded = False,
    as_json: AsJson = False,
) -> None:
    """Find, check and score a plan. With --from, show moves and gain; with --check, check and score an existing plan.

    If the plan of --from no longer applies, a second search finds the step time of moving only what must move. With --json the document
    is the plan file itself. The option --from adds the field 'change', and --sharding-group-size the field 'sharding_group_sizes'.
    --check takes any plan file, also one that was edited in a report, and goes with --model, --export and --json only.

    Example:
        shardwright plan task.yaml -o plan.json
        shardwright plan task.yaml --devices h100-8 --hosts 2 --reserve 20% -o plan.json
        shardwright plan task.yaml -o plan.json --export torchrec
        shardwright plan task.yaml --from plan.json --move-cost 0.5 -o next.json
        shardwright plan task.yaml --from plan.json --least-moves 1% -o next.json
        shardwright plan task.yaml --from plan.json --most-moved "20 GB" -o next.json
        shardwright plan task.yaml --balance-memory 1% -o plan.json
        shardwright plan task.yaml --runs-on torchrec --sharding-group-size auto --sync-interval 10 -o group.json
        shardwright plan --check plan.json
    """
    import shardwright as sw
    from shardwright.cli.change import change_from, change_views
    from shardwright.cli.model_notes import print_model_notes
    from shardwright.cli.show import device_table, headline
    from shardwright.questions.review import with_stated_bound
    from shardwright.report import idle_sentence
    from shardwright.search import strategy_named
    from shardwright.search.registry import with_policy

    if check:
        _check(context, task, model, as_json, export is not None)
        return
    _check_targets(output, rank_maps, [task, model, policy, rank_maps], export is not None)
    size = _size_of(sharding_group_size, runs_on, context)
    chosen = strategy_named(strategy) if policy is None else with_policy(strategy_named(strategy), policy)
    if export is not None:
        runs_on = _checked_export(output, runs_on, sharding_group_size)
    placed = task_on_cluster(task, devices, hosts, reserve, batch)
    maps = _rank_maps(rank_maps, placed) if rank_maps is not None else {}
    older = sw.Plan.load(start) if start is not None else None
    cost_model = cost_model_for(model, placed, task)
    print_model_notes(cost_model, placed, task)
    how = {"strategy": chosen, "cost_model": cost_model, "seed": seed, "time_limit": time_limit, "gap": gap}
    goals = {"least_moves": _tolerance(least_moves), "most_moved": most_moved_bytes(most_moved)}
    search = _Search(task, placed, how, {"start": older, "cross_replicas": cross_replicas, "runs_on": runs_on, **goals})
    even = sizes = change = None
    if sharding_group_size is None:
        even = search.balanced(_tolerance(balance_memory), move_cost)
        best = with_stated_bound(even.plan if even else search.at(move_cost), older).with_rank_maps(maps)
    else:
        sizes, best = search.of_groups(
            sharding_group_size=size,
            sync_interval=sync_interval,
            inter_host_allreduce=inter_host_allreduce,
            fully_sharded=fully_sharded,
        )
    if output is not None:
        best.save(output)
    if older is not None and start is not None:
        change = change_from(older, start, best, cost_model, move_cost, search.staying, runs_on)
    emit(
        _document(best, output, even, change, sizes) if as_json else {},
        *(_sizes_views(sizes) if sizes is not None else ()),
        device_table(best),
        headline(best),
        idle_sentence(best, cost_model) or None,
        _runtime_note(best, runs_on),
        *_rank_map_notes(best, rank_maps, older),
        even.sentence() if even else None,
        *(change_views(change) if change else ()),
        saved(output),
        *(_exported(best, output) if export else ()),
        as_json=as_json,
    )


@dataclass(frozen=True)
class _Search:
    """Searches of one task with the same options.

    Attributes:
        file: the task's file, which messages name.
        task: the task.
        options: what every search takes.
        ungrouped: what searches take that are not of sharding groups: the runtime, the older plan and its goals.
    """

    file: Path
    task: Task
    options: dict[str, Any]
    ungrouped: dict[str, Any]

    def at(self, price: float) -> Plan:
        """The plan at a price in ms per GB moved."""
        import shardwright as sw

        with progress("searching") as report, about(self.file):
            options = self.options | self.ungrouped
            return sw.plan(self.task, **options, progress=SearchProgress(report), move_cost=price)

    def staying(self) -> Plan:
        """The plan that moves only what must move."""
        return replace(self, ungrouped=self.ungrouped | {"least_moves": None, "most_moved": None}).at(math.inf)

    def balanced(self, tolerance: float | None, price: float) -> Balanced | None:
        """The plan with even memory and the outcome of its search; None without a tolerance."""
        from shardwright.search.solve import plan_balanced

        if tolerance is None:
            return None
        with progress("searching"), about(self.file):
            options = self.options | self.ungrouped
            return plan_balanced(self.task, tolerance, **options, move_cost=price)

    def of_groups(self, **groups: Any) -> tuple[GroupSizes, Plan]:
        """The sizes of sharding groups, and the plan of the best one."""
        from shardwright.questions.group_sizes import plan_groups
        from shardwright.schema import Place

        with progress("searching"), about(self.file), Place(str(self.file)).naming():
            sizes = plan_groups(self.task, **groups, **self.options)
            return sizes, sizes.best_plan


def _document(
    plan: Plan, output: Path | None, even: Balanced | None, change: PlanChange | None, sizes: GroupSizes | None
) -> planning.Plan:
    from shardwright.cli.change import change_document
    from shardwright.sharding.files import plan_to_dict

    document = cast("planning.Plan", plan_to_dict(plan, output))
    if even is not None:
        document["balance"] = {
            "fullest_bytes": even.fullest_bytes,
            "least_bytes": even.least_bytes,
            "best_ms": even.best_ms,
        }
    if change is not None:
        document["change"] = change_document(change)
    if sizes is not None:
        document["sharding_group_sizes"] = [size.to_dict() for size in sizes]
    return document


def _tolerance(text: str | None) -> float | None:
    from shardwright.search.balance import tolerance_of

    return None if text is None else tolerance_of(text)


def _exported(plan: Plan, output: Path | None) -> list[str]:
    """Save the plan for TorchRec; return lines about the files."""
    assert output is not None
    file, script = export_to_torchrec(plan, output)
    return [saved(file), f"{saved(script)}: it has the lines that load the plan into TorchRec"]


def _check_targets(output: Path | None, rank_maps: Path | None, inputs: list[Path | None], export: bool) -> None:
    """Check every file that will be saved; but the plan of --from may be overwritten."""
    from shardwright.sharding.files import ENDING

    check_target(output, inputs=inputs)
    if output is None:
        return
    if rank_maps is not None:
        check_target(output.with_name(output.stem + ENDING), inputs=[rank_maps])  # they hold more than the plan's own
    for file in exported_files(output) if export else ():
        check_target(file, inputs=inputs, outputs=[output])


def _checked_export(output: Path | None, runs_on: str, groups: str | None) -> str:
    """The runtime of a plan for TorchRec.

    Raises:
        InvalidInput: an option does not go with --export.
    """
    if output is None:
        raise InvalidInput("--export torchrec saves its files next to the plan; name it with -o plan.json")
    if groups is not None:
        raise InvalidInput("--export torchrec is for DistributedModelParallel; leave --sharding-group-size out")
    if runs_on not in ("auto", "torchrec"):
        raise InvalidInput(f"--export torchrec needs a plan that TorchRec runs; leave --runs-on {runs_on} out")
    return "torchrec"


def _check(context: typer.Context, file: Path, model: Path | None, as_json: bool, export: bool) -> None:
    """Check a plan file against every rule, price the plan, and compare the price with the cost that the file states.

    Raises:
        InvalidInput: an option is of searches alone, or the file breaks a rule.
    """
    from shardwright.cli.show import device_table, headline
    from shardwright.cost.choice import given_cost_model, model_behind
    from shardwright.cost.score import score
    from shardwright.schema import Place
    from shardwright.sharding import Plan

    others = {str(given.name) for given in given_parameters(context)} - {"task", "check", "model", "export", "as_json"}
    check_absent(context, others, "is for searches, and --check searches nothing; leave it out")
    plan = Plan.load(file)
    with Place(str(model or file)).naming():
        cost_model = model_behind(plan) if model is None else given_cost_model(model, plan.task.optimizer)
    stated = plan.cost
    cost = score(plan.task, plan.shards, cost_model)
    step_ms, priced = cost.step_ms, replace(plan, cost=cost, cost_model=cost_model.name)
    same = stated is not None and math.isclose(stated.step_ms, step_ms, rel_tol=_SAME)
    if not same:
        priced = replace(priced, bound_ms=None)  # the bound belongs to the stated cost
    says = "no cost" if stated is None else "the same" if same else f"{ms(stated.step_ms)} ms"
    by = f" by {plan.cost_model}" if stated is not None and plan.cost_model not in ("", cost_model.name) else ""
    document: planning.PlanCheck = {
        "plan": str(file),
        "cost_model": cost_model.name,
        "step_ms": step_ms,
        "embedding_cost_ms": cost.embedding_cost_ms,
        "stated_step_ms": stated.step_ms if stated else None,
        "same_cost": same,
        "devices": list(cost.devices),
    }
    line = f"every rule is kept; the step takes {ms(step_ms)} ms by {cost_model.name}, the file says {says}{by}"
    lines = _exported(plan, file) if export else ()
    emit(document, device_table(priced), headline(priced), line, *lines, as_json=as_json)


def _rank_maps(file: Path, task: Task) -> dict[str, RankMap]:
    """Read rank maps, and check those of the task's tables."""
    from shardwright.schema import Place
    from shardwright.sharding.files import check_rows
    from shardwright.sharding.rank_map_files import load_rank_maps

    maps = load_rank_maps(file)
    with Place(str(file)).naming():
        for name in sorted(maps.keys() & task.table_by_name.keys()):
            check_rows(maps[name], task.table_by_name[name])
    return maps


def _runtime_note(plan: Plan, runs_on: str) -> str | None:
    """A line if TorchRec was chosen for sequence tables, which the other runtime can tier."""
    from shardwright.search.flexshard.strategy import tiered_tables

    if runs_on != "auto" or "torchrec" not in plan.runs_on or not tiered_tables(plan.task):
        return None
    return "shardwright.runtime trains sequence tables in tiers: shardwright compare prints the step with them"


def _rank_map_notes(plan: Plan, given: Path | None, older: Plan | None) -> list[str]:
    """Lines about the tables that have rank maps, and those that lack one."""
    if given is None:
        lost = older is not None and older.rank_maps
        text = "the older plan's rank maps cover only its own rows and are not reused; name full maps with --rank-maps"
        return [text] if lost else []
    by_hotness = [name for name, shards in plan.by_table.items() if shards[0].row_order == "hotness"]
    missing = [name for name in by_hotness if name not in plan.rank_maps]
    notes = [f"rank maps: {len(plan.rank_maps)} of {len(by_hotness)} tables in order of hotness have one of {given}"]
    if missing:
        notes.append(f"no rank map for {some_of(missing)}: their ids are taken for ranks, hottest 0")
    return notes


def _size_of(given: str | None, runs_on: str, context: typer.Context) -> int | None:
    """The size of the sharding groups; None for every size, or without groups.

    Args:
        given: the value of `--sharding-group-size`.
        runs_on: the value of `--runs-on`.
        context: the command with its options.

    Raises:
        InvalidInput: the size is no number, or options do not go together.
    """
    if given is None:
        check_absent(context, _OF_GROUPS, "is for sharding groups; add --sharding-group-size auto, or a size")
        return None
    if runs_on not in ("auto", "torchrec"):
        raise InvalidInput(f"--sharding-group-size is for TorchRec's DMPCollection; leave out --runs-on {runs_on}")
    check_absent(context, _NOT_OF_GROUPS, "does not go with --sharding-group-size; leave it out")
    if given == "auto":
        return None
    if not given.isascii() or not given.isdigit() or len(given) > 9 or int(given) < 1:
        raise InvalidInput(f"--sharding-group-size is {given!r}, must be a number of devices of at least 1, or auto")
    return int(given)


def _sizes_views(sizes: GroupSizes) -> list[RenderableType]:
    """A table with a row for each size and a star at the best; below it, the reasons of sizes without a plan."""
    rows, best = [], sizes.best
    for size in sizes:
        plan, memory = size.plan, size.memory
        star = " *" if size is best and len(sizes) > 1 else ""
        figures = [MISSING] * 6
        if plan is not None and memory is not None:
            held = [format_bytes(int(bytes_.max())) for bytes_ in (memory.peak, memory.between)]
            figures = [ms(size.step_ms), ms(size.synchronisation_ms), ms(plan.bound_ms), percent(plan.gap), *held]
        rows.append([f"{size.groups.size}{star}", str(size.groups.count), *figures])
    failed = [f"groups of {size.groups.size}: {size.why_not}" for size in sizes if size.why_not]
    return [table("sharding groups by size, ms and the fullest device", _SIZES, rows), *failed]
