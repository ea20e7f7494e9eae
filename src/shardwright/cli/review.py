"""`shardwright review`: compare a plan, ours or one of TorchRec's planner, with the best plan found and the proven bound."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import RenderableType

from shardwright.cli.checks import check_target, other_device
from shardwright.cli.compare import elsewhere_document, truth_line
from shardwright.cli.model_notes import print_hardware_note, print_model_notes
from shardwright.cli.options import (
    AsJson,
    Device,
    ModelFile,
    MostMoved,
    Rounds,
    Seed,
    TimeLimit,
    cost_model_for,
    most_moved_bytes,
    option,
)
from shardwright.cli.output import MISSING, emit, ms, progress, saved, table
from shardwright.cli.review_files import read_log, read_plan, save_better
from shardwright.cli.show import beside_lines
from shardwright.errors import InvalidInput, require
from shardwright.hardware import check_device
from shardwright.task.quantities import format_bytes

if TYPE_CHECKING:
    from shardwright.cli.documents import planning
    from shardwright.measure.measuring import MeasuredPlan
    from shardwright.questions.review import Review
    from shardwright.report.changes import Marginals

_MOST_TABLES = 10
_SETTABLE = (
    "--topology sets devices and links, --pipeline and --dense-ms the pipeline; to set the rest, edit the file of --save-task and pass it "
    "as --task"
)
_COLUMNS = ("table", "adds to the step, ms", "now", "better", "moves")
_PHASES = ("slowest device", "now, ms", "rank", "better, ms", "rank")


def run(
    *,
    plan: Annotated[
        Path,
        typer.Argument(
            metavar="PLAN", help="A plan file, a saved plan of TorchRec, or a log of its planner.", show_default=False
        ),
    ],
    task: Annotated[
        Path | None,
        option(
            "--task",
            metavar="FILE",
            text="Tables and cluster of a saved plan of TorchRec, or to replace those of a log; a plan file has its own.",
        ),
    ] = None,
    topology: Annotated[
        str | None,
        option("--topology", metavar="PRESET", text="Devices and links of a log's cluster, as of h200-8."),
    ] = None,
    pipeline: Annotated[
        str | None,
        option(
            "--pipeline", metavar="none|sparse_dist|prefetch", text="Training pipeline of a log's job. (default none)"
        ),
    ] = None,
    dense_ms: Annotated[
        float | None,
        option(
            "--dense-ms",
            metavar="MS",
            text="Dense layers of a log's job, which need looked-up values; ids travel behind them in a pipeline. (default 0)",
        ),
    ] = None,
    which: Annotated[
        int | None, typer.Option("--which", min=1, help="Plan of a log that holds several.", show_default=False)
    ] = None,
    save_task: Annotated[
        Path | None, option("--save-task", metavar="FILE", text="Save a log's task here, to edit and pass as --task.")
    ] = None,
    output: Annotated[
        Path | None, option("--output", "-o", metavar="FILE", text="Save the better plan here, in the format of PLAN.")
    ] = None,
    move_cost: Annotated[
        float | None,
        option("--move-cost", metavar="MS_PER_GB", text="Start from PLAN; ms that a step must gain for each GB moved."),
    ] = None,
    most_moved: MostMoved = None,
    measure: Annotated[
        bool, typer.Option("--measure", help="Measure both plans' kernels on this machine, interleaved.")
    ] = False,
    device: Device = "cpu",
    rounds: Rounds = 5,
    model: ModelFile = None,
    seed: Seed = 0,
    time_limit: TimeLimit = None,
    as_json: AsJson = False,
) -> None:
    """Rate a plan: its step time, that of the best plan found, and a bound below which no plan can go.

    A step takes the sum of its phases, each on the slowest device. "Adds to the step" is the time that a step would save without a table,
    for the tables of the slowest devices.

    Example:
        shardwright review plan.json
        shardwright review torchrec_plan.json --task task.yaml --measure -o better.json
        shardwright review train.log --topology h100-8
        shardwright review train.log --most-moved "20 GB"
    """
    from shardwright.questions.review import review
    from shardwright.report.changes import busiest_tables, marginals
    from shardwright.search.solve import check_time_limit

    begin = time.monotonic()
    check_time_limit(time_limit)
    most_bytes = most_moved_bytes(most_moved)
    if most_bytes is not None and move_cost is not None:
        raise InvalidInput("--most-moved finds the price of moves itself; leave --move-cost out")
    check_target(output, inputs=[plan, task, model])
    check_target(save_task, inputs=[plan, task, model, output])
    if measure:
        require("measure", "measuring")
        check_device(device)
    settings = {"--topology": topology, "--pipeline": pipeline, "--dense-ms": dense_ms}
    log = read_log(plan, task, settings, which)
    only_of_logs = [
        name for name, value in (settings | {"--which": which, "--save-task": save_task}).items() if value is not None
    ]
    if log is None and only_of_logs:
        raise InvalidInput(f"{plan}: is no log; leave {', '.join(only_of_logs)} out")
    given, sharding_plan = (log.plan, log.document) if log else read_plan(plan, task)
    if log and save_task:
        log.plan.task.save(save_task)
    cost_model = cost_model_for(model, given.task, task or plan)
    print_model_notes(cost_model, given.task, task or plan)
    with progress("searching"):
        reviewed = review(
            given,
            cost_model=cost_model,
            seed=seed,
            time_limit=None if time_limit is None else max(0.0, begin + time_limit - time.monotonic()),
            runs_on="auto" if sharding_plan is None else "torchrec",
            move_cost=move_cost,
            most_moved=most_bytes,
        )
    savings = marginals(reviewed.plan, cost_model, busiest_tables(reviewed.plan))
    if output is not None:
        save_better(reviewed.better, output, sharding_plan, plan)
    measured = _measured(reviewed, rounds, device) if measure else []
    if measure:
        print_hardware_note(cost_model, device)
    unlike = other_device(given.task.topology.device, device) if measure else None
    assumed = log.assumed if log else ()
    document = _document(plan, reviewed, savings, measured, assumed)
    emit(
        document,
        f"{plan}: {reviewed.sentence()}",
        *_verdict(reviewed, few_moves=most_bytes is not None),
        *_assumed(assumed, settable=task is None),
        *_tables(document, int((savings.phase_ms.sum(axis=1) > 0).sum())),
        *_measured_lines(measured, unlike, cost_model.metadata),
        saved(output),
        as_json=as_json,
    )


def _measured(reviewed: Review, rounds: int, device: str) -> list[MeasuredPlan]:
    from shardwright.measure.measuring import measure_plans

    plans = [reviewed.plan] if reviewed.better is reviewed.plan else [reviewed.plan, reviewed.better]
    with progress("measuring") as report:
        return measure_plans(plans, rounds=rounds, device=device, progress=report)


def _costliest(reviewed: Review, savings: Marginals) -> list[planning.TableOfReview]:
    """The tables that keep the slowest devices busy, the costliest first."""
    names = [table.name for table in reviewed.plan.task.tables]
    saves = dict(zip(names, savings.phase_ms.sum(axis=1).tolist(), strict=True))
    changes = {change.table: change for change in reviewed.diff.tables}
    chosen = sorted((name for name in names if saves[name] > 0), key=lambda name: -saves[name])
    return [
        {
            "table": name,
            "saves_ms": saves[name],
            "now": changes[name].before,
            "better": changes[name].after,
            "moved_bytes": changes[name].moved_bytes,
        }
        for name in chosen[:_MOST_TABLES]
    ]


def _phases(reviewed: Review) -> list[planning.PhaseOfReview]:
    """The slowest device of each phase in both plans."""
    from shardwright.sharding import PHASES

    assert reviewed.plan.cost is not None and reviewed.better.cost is not None  # noqa: PT018
    rows: list[planning.PhaseOfReview] = []
    for phase in PHASES:
        now, better = (max(cost.devices, key=attrgetter(phase)) for cost in (reviewed.plan.cost, reviewed.better.cost))
        rows.append(
            {
                "phase": phase,
                "now_ms": getattr(now, phase),
                "now_rank": now.rank,
                "better_ms": getattr(better, phase),
                "better_rank": better.rank,
            }
        )
    return rows


def _verdict(reviewed: Review, *, few_moves: bool) -> list[str]:
    """Lines below the first one: the bound's plans, moves, memory, and the other runtime."""
    from shardwright.questions.review import elsewhere_line
    from shardwright.sharding import BOUND_SCOPES
    from shardwright.sharding.runtimes import other_runtime

    lines = []
    if reviewed.bound_ms is not None:
        lines.append(f"the bound holds {BOUND_SCOPES[reviewed.better.bound_scope]}")
    now, better = (format_bytes(int(plan.memory.total.max())) for plan in (reviewed.plan, reviewed.better))
    if reviewed.better is not reviewed.plan:
        moved, kept = reviewed.diff.moved_bytes, reviewed.diff.kept_bytes
        lines.append(f"the better plan moves {format_bytes(moved)} of {format_bytes(moved + kept)}")
        lines.append(f"the fullest device holds {now}, in the better plan {better}")
    if reviewed.looked_elsewhere:
        lines.append(elsewhere_line(reviewed.better, reviewed.elsewhere))
    elif not few_moves:
        runtime = other_runtime(reviewed.better)
        lines.append(f"plans with --runs-on {runtime}: not searched, since the time was up; raise --time-limit")
    return [*lines, *beside_lines(reviewed.plan)]


def _assumed(assumed: Sequence[str], *, settable: bool) -> list[str]:
    """Lines with the assumptions about a log; none for other plans."""
    if not assumed:
        return []
    return [
        "",
        "assumed, since the log lacks it:",
        *(f"- {each}" for each in assumed),
        *([_SETTABLE] if settable else []),
    ]


def _tables(document: planning.Review, count: int) -> list[RenderableType]:
    """The slowest device of each phase, and the costliest of so many tables on these devices; without a better plan, of yours alone."""
    from shardwright.report.verdict import PHASE_NAMES

    kept = document["better_ms"] == document["step_ms"]
    phases = [
        [name, ms(row["now_ms"]), str(row["now_rank"]), ms(row["better_ms"]), str(row["better_rank"])]
        for name, row in zip(PHASE_NAMES, document["phases"], strict=True)
    ]
    costliest = [
        [row["table"], ms(row["saves_ms"]), row["now"], row["better"], format_bytes(row["moved_bytes"]) if row["moved_bytes"] else MISSING]
        for row in document["tables"]
    ]  # fmt: skip
    caption = f"the costliest {len(costliest)} of {count} tables" if count > len(costliest) else None
    views = [
        ("what a step waits for", _PHASES, phases, None, {0}),
        ("tables of the slowest devices", _COLUMNS, costliest, caption, {0, 2, 3}),
    ]
    most = 3 if kept else None
    return [
        table(title, heads[:most], [row[:most] for row in rows], below, texts=texts)
        for title, heads, rows, below, texts in views
        if rows
    ]


def _measured_lines(measured: list[MeasuredPlan], unlike: str | None, metadata: Mapping[str, str]) -> list[str]:
    if not measured:
        return []
    names = ("your plan", "ours")
    times = "; ".join(f"{name} {ms(of_plan.compute_ms)} ms" for name, of_plan in zip(names, measured, strict=False))
    return [f"measured kernels: {times}", unlike or truth_line("plans", measured, metadata)]


def _document(
    path: Path, reviewed: Review, savings: Marginals, measured: list[MeasuredPlan], assumed: Sequence[str]
) -> planning.Review:
    diff = reviewed.diff
    return {
        "plan": str(path),
        "step_ms": reviewed.step_ms,
        "better_ms": reviewed.better_ms,
        "gain": reviewed.gain,
        "bound_ms": reviewed.bound_ms,
        "gap": reviewed.gap,
        "bound_scope": reviewed.better.bound_scope if reviewed.bound_ms is not None else None,
        "strategy": reviewed.better.strategy,
        "elsewhere": elsewhere_document(reviewed.elsewhere, reviewed.better),
        "fullest_bytes": int(reviewed.plan.memory.total.max()),
        "better_fullest_bytes": int(reviewed.better.memory.total.max()),
        "phases": _phases(reviewed),
        "moved_bytes": diff.moved_bytes,
        "kept_bytes": diff.kept_bytes,
        "tables": _costliest(reviewed, savings),
        "measured_compute_ms": [of_plan.compute_ms for of_plan in measured] or None,
        "assumed": list(assumed),
    }
