"""`shardwright review`: compare a plan, ours or one of TorchRec's planner, with the best plan found and the proven bound."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import RenderableType

from shardwright.cli.checks import check_target, other_device
from shardwright.cli.clusters import Cluster
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
from shardwright.cli.output import MISSING, emit, ms, percent, progress, saved, table
from shardwright.errors import InvalidInput, require
from shardwright.task.quantities import format_bytes

if TYPE_CHECKING:
    from shardwright.cli import documents
    from shardwright.measure.measuring import MeasuredPlan
    from shardwright.questions.review import Review
    from shardwright.report.changes import Marginals
    from shardwright.sharding import Plan
    from shardwright.sharding.torchrec_logs import LoggedPlan
    from shardwright.task import Exchange

_MOST_TABLES = 10
_LOGS = (".log", ".txt", ".out", ".err")
_SETTABLE = "--topology sets the devices and links, --pipeline and --dense-ms the hidden traffic; --save-task and --task set all of it"
_COLUMNS = ("table", "step saved without it", "now", "better", "moves")


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

    The table lists the tables that keep the slowest devices busy, their sharding in both plans, and the bytes that the better plan moves.

    Example:
        shardwright review plan.json
        shardwright review torchrec_plan.json --task task.yaml --measure -o better.json
        shardwright review train.log --topology h100-8
        shardwright review train.log --most-moved "20 GB"
    """
    from shardwright.cost.for_task import for_task
    from shardwright.cost.score import scored
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
    settings = {"--topology": topology, "--pipeline": pipeline, "--dense-ms": dense_ms}
    log = _read_log(plan, task, settings, which)
    only_of_logs = [
        name for name, value in (settings | {"--which": which, "--save-task": save_task}).items() if value is not None
    ]
    if log is None and only_of_logs:
        raise InvalidInput(f"{plan}: is no log; leave {', '.join(only_of_logs)} out")
    given, sharding_plan = (log.plan, log.document) if log else _read(plan, task)
    if log and save_task:
        log.plan.task.save(save_task)
    cost_model = cost_model_for(model, given.task, task or plan)
    print_model_notes(cost_model, given.task, task or plan)
    given.check()
    priced = scored(given, for_task(cost_model, given.task))
    savings = marginals(priced, cost_model, busiest_tables(priced))
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
    if output is not None:
        _save(reviewed.better, output, sharding_plan, plan)
    measured = _measured(reviewed, rounds, device) if measure else []
    if measure:
        print_hardware_note(cost_model, device)
    unlike = other_device(given.task.topology.device, device) if measure else None
    assumed = log.assumed if log else ()
    document = _document(plan, reviewed, savings, measured, assumed)
    emit(
        document,
        f"{plan}: {reviewed.sentence()}",
        *([f"assumed, since the log lacks it: {'; '.join(assumed)}{'' if task else f' ({_SETTABLE})'}"] if log else []),
        *_views(reviewed, document["tables"], few_moves=most_bytes is not None),
        *_measured_lines(measured, unlike, cost_model.metadata),
        saved(output),
        as_json=as_json,
    )


def _read_log(path: Path, task: Path | None, settings: dict[str, Any], which: int | None) -> LoggedPlan | None:
    """Read a plan out of a log of TorchRec's planner; None if the file is none. The settings replace a task file."""
    from shardwright.files import is_document, read_bytes
    from shardwright.sharding.stats_table import decoded, holds_stats, read_stats
    from shardwright.sharding.torchrec_logs import plan_of_stats

    text = decoded(read_bytes(path, "plan file or log"))
    if is_document(path) or not (holds_stats(text) or path.suffix.lower() in _LOGS):
        return None
    stated = [name for name, value in settings.items() if value is not None]
    if task is not None and stated:
        raise InvalidInput(f"{task}: a task file has its own topology and exchange; leave {', '.join(stated)} out")
    logged = read_stats(text, str(path))
    if (which is None and len(logged) > 1) or (which is not None and which > len(logged)):
        lines = ", ".join(str(stats.line) for stats in logged)
        raise InvalidInput(
            f"{path}: holds {len(logged)} plans, which begin in lines {lines}; choose one of them with --which, from 1 to {len(logged)}"
        )
    loaded = Cluster().load(task) if task is not None else None
    topology, exchange = settings["--topology"], _exchange(settings["--pipeline"], settings["--dense-ms"])
    return plan_of_stats(logged[(which or 1) - 1], str(path), task=loaded, topology=topology, exchange=exchange)


def _exchange(pipeline: Any, dense_ms: float | None) -> Exchange:
    """The exchange of a log's job.

    Raises:
        InvalidInput: the pipeline is unknown, or the dense layers hide nothing, since there is none.
    """
    from shardwright.task import Exchange

    exchange = Exchange(pipeline=pipeline or "none", dense_ms=dense_ms or 0.0)
    if dense_ms and exchange.batches == 1:
        raise InvalidInput(
            "--dense-ms: ids travel behind dense layers only in a pipeline; add --pipeline sparse_dist, or state under dense_ms in the "
            "file of --save-task which layers hide values or gradients"
        )
    return exchange


def _read(path: Path, task: Path | None) -> tuple[Plan, dict[str, Any] | None]:
    """Read a plan; also return the file's content if it is a plan of TorchRec, else None."""
    from shardwright.files import parse_document
    from shardwright.sharding import Plan
    from shardwright.sharding.torchrec_files import is_sharding_plan, plan_from_sharding_plan

    document = parse_document(path, "plan file")
    if not isinstance(document, dict):
        raise InvalidInput(
            f"{path}: is neither a plan nor a log with planner statistics of TorchRec; name a file of one of them"
        )
    if not is_sharding_plan(document):
        if task is not None:
            raise InvalidInput(f"{path}: a plan file holds its own task; leave --task out")
        return Plan.load(path), None
    if task is None:
        raise InvalidInput(
            f"{path}: a sharding plan of TorchRec holds neither lookups nor memory; name its task with --task"
        )
    return plan_from_sharding_plan(document, Cluster().load(task), str(path)), document


def _save(better: Plan, output: Path, document: dict[str, Any] | None, source: Path) -> None:
    from shardwright.files import write_atomically
    from shardwright.sharding.torchrec_files import sharding_plan_from_plan

    if document is None:
        better.save(output)
    else:
        write_atomically(output, json.dumps(sharding_plan_from_plan(better, document, str(source)), indent=1) + "\n")


def _measured(reviewed: Review, rounds: int, device: str) -> list[MeasuredPlan]:
    from shardwright.measure.measuring import measure_plans

    plans = [reviewed.plan] if reviewed.better is reviewed.plan else [reviewed.plan, reviewed.better]
    with progress("measuring") as report:
        return measure_plans(plans, rounds=rounds, device=device, progress=report)


def _tables(reviewed: Review, savings: Marginals) -> list[documents.TableOfReview]:
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


def _views(reviewed: Review, rows: list[documents.TableOfReview], *, few_moves: bool) -> list[RenderableType]:
    from shardwright.questions.review import elsewhere_line
    from shardwright.sharding import BOUND_SCOPES
    from shardwright.sharding.runtimes import other_runtime

    cells = [
        [
            row["table"],
            ms(row["saves_ms"]),
            row["now"],
            row["better"],
            format_bytes(row["moved_bytes"]) if row["moved_bytes"] else MISSING,
        ]
        for row in rows
    ]
    views: list[RenderableType] = []
    if cells:
        views.append(table("devices that the step waits for, ms", _COLUMNS, cells, texts={0, 2, 3}))
    if reviewed.better is not reviewed.plan:
        moved, kept = reviewed.diff.moved_bytes, reviewed.diff.kept_bytes
        views.append(
            f"the better plan saves {percent(reviewed.gain)} of a step; it moves {format_bytes(moved)} of "
            f"{format_bytes(moved + kept)}"
        )
    if reviewed.looked_elsewhere:
        views.append(elsewhere_line(reviewed.better, reviewed.elsewhere))
    elif not few_moves:
        views.append(
            f"--runs-on {other_runtime(reviewed.better)}: not searched, since the time was up; raise --time-limit"
        )
    if reviewed.bound_ms is not None:
        views.append(f"the bound holds {BOUND_SCOPES[reviewed.better.bound_scope]}")
    return views


def _measured_lines(measured: list[MeasuredPlan], unlike: str | None, metadata: Mapping[str, str]) -> list[str]:
    if not measured:
        return []
    names = ("your plan", "ours")
    times = "; ".join(f"{name} {ms(of_plan.compute_ms)} ms" for name, of_plan in zip(names, measured, strict=False))
    return [f"measured kernels: {times}", unlike or truth_line("plans", measured, metadata)]


def _document(
    path: Path, reviewed: Review, savings: Marginals, measured: list[MeasuredPlan], assumed: Sequence[str]
) -> documents.Review:
    diff = reviewed.diff
    return {
        "plan": str(path),
        "step_ms": reviewed.step_ms,
        "better_ms": reviewed.better_ms,
        "gain": reviewed.gain,
        "bound_ms": reviewed.bound_ms,
        "gap": None if reviewed.bound_ms is None else reviewed.step_ms / reviewed.bound_ms - 1,
        "bound_scope": reviewed.better.bound_scope if reviewed.bound_ms is not None else None,
        "strategy": reviewed.better.strategy,
        "elsewhere": elsewhere_document(reviewed.elsewhere, reviewed.better),
        "moved_bytes": diff.moved_bytes,
        "kept_bytes": diff.kept_bytes,
        "tables": _tables(reviewed, savings),
        "measured_compute_ms": [of_plan.compute_ms for of_plan in measured] or None,
        "assumed": list(assumed),
    }
