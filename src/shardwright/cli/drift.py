"""`shardwright drift`: compare newer logs with the tables that a plan was made for; the exit code tells schedulers the result."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer
from rich.console import RenderableType

from shardwright.cli.checks import check_target
from shardwright.cli.model_notes import print_model_notes
from shardwright.cli.options import (
    AsJson,
    Columns,
    Hashed,
    ListSeparator,
    ModelFile,
    NoHeader,
    OnRuntime,
    Seed,
    Sequences,
    TimeLimit,
    column_names,
    cost_model_for,
    option,
)
from shardwright.cli.output import emit, ms, percent, progress, saved, signed, table
from shardwright.errors import InvalidInput, some_of
from shardwright.task.quantities import format_bytes

if TYPE_CHECKING:
    from shardwright.cli.documents import planning
    from shardwright.questions.drift import Drift
    from shardwright.sharding.runtimes import RunsOn
    from shardwright.task import Table

EXIT_WORTH_IT = 3
_MOST_TABLES = 20
_COLUMNS = ("table", "lookups before", "now", "change", "lookups that changed rows")


def run(
    *,
    plan: Annotated[Path, typer.Argument(metavar="PLAN", help="The plan that is in use.", show_default=False)],
    logs: Annotated[
        list[Path],
        typer.Argument(
            metavar="LOGS...",
            help="Newer logs, or one file of tables that 'shardwright profile' made of them.",
            show_default=False,
        ),
    ],
    output: Annotated[Path | None, option("--output", "-o", metavar="FILE", text="Save the better plan here.")] = None,
    worth_it: Annotated[
        float, typer.Option("--worth-it", metavar="SHARE", help="Share of a step that a new plan must save.")
    ] = 0.05,
    move_cost: Annotated[
        float,
        typer.Option("--move-cost", metavar="MS_PER_GB", help="ms that a step must gain for each GB moved."),
    ] = 0.0,
    sequence: Sequences = None,
    hashed: Hashed = None,
    list_separator: ListSeparator = None,
    no_header: NoHeader = False,
    columns: Columns = None,
    model: ModelFile = None,
    seed: Seed = 0,
    time_limit: TimeLimit = None,
    runs_on: OnRuntime = "auto",
    as_json: AsJson = False,
) -> None:
    """Compare newer logs with a plan: its step time now, the gain of a new plan, and the bytes that it moves.

    Exit code 0: nothing to do. Exit code 3: a new plan is worth it, or the old one does not fit any more.

    Example:
        shardwright drift plan.json logs/today/*.parquet -o next.json || echo "a new plan is worth it"
    """
    import shardwright as sw
    from shardwright.questions.drift import drift

    check_target(output, inputs=[plan, *logs, model])
    older = sw.Plan.load(plan)
    names = column_names(columns)
    reading: dict[str, Any] = {"sequence": sequence or [], "hashed": hashed or [], "list_separator": list_separator}
    tables = _tables(logs, reading | {"header": not (no_header or names), "names": names})
    if not {profiled.name for profiled in tables} & older.task.table_by_name.keys():
        listed = some_of([profiled.name for profiled in tables])
        raise InvalidInput(f"{logs[0]}: none of its tables ({listed}) is in {plan}; name logs of the same model")
    cost_model = cost_model_for(model, older.task, plan)
    print_model_notes(cost_model, older.task, plan)
    with progress("searching"):
        result = drift(
            older,
            tables,
            cost_model=cost_model,
            seed=seed,
            time_limit=time_limit,
            runs_on=cast("RunsOn", runs_on),
            move_cost=move_cost,
            worth_it=worth_it,
        )
    if output is not None:
        result.better.save(output)
    emit(_document(plan, result), *_views(plan, result), saved(output), as_json=as_json)
    if result.is_worth_it:
        raise typer.Exit(EXIT_WORTH_IT)


def _tables(logs: list[Path], reading: dict[str, Any]) -> list[Table]:
    """The tables of a tables file, or those profiled from logs."""
    from shardwright.task.files import load_tables
    from shardwright.workload.profile import profile_logs

    if len(logs) == 1 and logs[0].suffix.lower() in (".yaml", ".yml", ".json"):
        if not reading["header"] or any(reading[name] for name in reading if name != "header"):
            raise InvalidInput(f"{logs[0]} is a file of tables; leave out the options on reading logs")
        return list(load_tables(logs[0]))
    with progress("counting lookups") as report:
        return profile_logs(logs, progress=report, **reading).tables()


def _views(plan: Path, drift: Drift) -> list[RenderableType]:
    shown = drift.tables[:_MOST_TABLES]
    rows = [
        [
            of_table.before.name,
            f"{of_table.before.pooling:.3g}",
            f"{of_table.now.pooling:.3g}",
            signed(of_table.lookups),
            percent(of_table.skew),
        ]
        for of_table in shown
    ]
    caption = (
        None if len(shown) == len(drift.tables) else f"the {len(shown)} of {len(drift.tables)} tables that changed most"
    )
    views: list[RenderableType] = [table("lookups of a sample", _COLUMNS, rows, caption)]
    if drift.absent:
        views.append(f"not in the logs, so counted with their old lookups: {some_of(drift.absent)}")
    if drift.unknown:
        views.append(f"in the logs alone, so left out: {some_of(drift.unknown)}")
    return [*views, _sentence(plan, drift)]


def _sentence(plan: Path, drift: Drift) -> str:
    from shardwright.questions.drift import moves

    if drift.now_ms is None:
        return f"{plan} cannot run any more: {drift.why_not}; a new plan takes {ms(drift.better_ms)} ms"
    if drift.better is drift.plan:
        return f"{plan} took {ms(drift.before_ms)} ms, takes {ms(drift.now_ms)} now, and no better plan was found: nothing to do"
    diff = moves(drift)
    return (
        f"{plan} took {ms(drift.before_ms)} ms, takes {ms(drift.now_ms)} now; a new plan takes {ms(drift.better_ms)} "
        f"({percent(drift.gain)} less) and moves {format_bytes(diff.moved_bytes)}: {'worth it' if drift.is_worth_it else 'nothing to do'}"
    )


def _document(plan: Path, drift: Drift) -> planning.Drift:
    from shardwright.questions.drift import moves

    return {
        "plan": str(plan),
        "before_ms": drift.before_ms,
        "now_ms": drift.now_ms,
        "why_not": drift.why_not or None,
        "better_ms": drift.better_ms,
        "gain": drift.gain,
        "worth_it": drift.is_worth_it,
        "moved_bytes": moves(drift).moved_bytes if drift.plan is not None else None,
        "absent": list(drift.absent),
        "unknown": list(drift.unknown),
        "tables": [
            {
                "table": of_table.before.name,
                "pooling_before": of_table.before.pooling,
                "pooling_now": of_table.now.pooling,
                "skew": of_table.skew,
            }
            for of_table in drift.tables
        ],
    }
