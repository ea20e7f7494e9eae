"""`shardwright profile`: tables and access profiles from training logs."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from shardwright.cli.checks import check_target
from shardwright.cli.first_task import PRESET, FirstTask, planning, profiling_again, writing_and_planning
from shardwright.cli.options import AsJson, option
from shardwright.cli.output import emit, note, percent, progress, saved, show, table
from shardwright.cli.ray_option import RayAddress
from shardwright.errors import InvalidInput
from shardwright.task import Topology

if TYPE_CHECKING:
    import rich.table

    from shardwright.jobs import WorkerPool
    from shardwright.task import Table
    from shardwright.workload.profile import ProfileResult
    from shardwright.workload.profile.result import RowsRule

_COLUMNS = ("table", "rows", "lookups", "pooling", "kind", "hottest 1% of rows")


def run(
    *,
    context: typer.Context,
    logs: Annotated[
        list[Path],
        typer.Argument(
            metavar="LOGS...",
            help="Parquet or CSV files with a sample a row, or text files with a `user item` event a line.",
            show_default=False,
        ),
    ],
    output: Annotated[
        Path | None, option("--output", "-o", metavar="FILE", text="Save the tables here, as YAML.")
    ] = None,
    column: Annotated[
        list[str] | None, option("--column", metavar="NAME", text="Profile this column; may be repeated.")
    ] = None,
    exclude: Annotated[
        list[str] | None, option("--exclude", metavar="NAME", text="Leave this column out; may be repeated.")
    ] = None,
    sequence: Annotated[
        list[str] | None, option("--sequence", metavar="NAME", text="List column whose rows stay separate.")
    ] = None,
    pooled: Annotated[
        list[str] | None, option("--pooled", metavar="NAME", text="List column whose rows are summed.")
    ] = None,
    list_separator: Annotated[
        str | None, option("--list-separator", metavar="TEXT", text="Separates ids in a CSV field.")
    ] = None,
    dim: Annotated[int, typer.Option("--dim", min=1, help="Embedding dim of all tables; a log does not tell.")] = 64,
    rows: Annotated[
        Literal["distinct", "max_id"] | None,
        option(
            "--rows",
            metavar="distinct|max_id",
            text="Count distinct ids (the default), or take the largest id + 1 (with --rank-maps the default, where ids are integers).",
        ),
    ] = None,
    rank_maps: Annotated[
        Path | None,
        option(
            "--rank-maps", metavar="FILE", text="Save which ids are the hottest of each table here, as safetensors."
        ),
    ] = None,
    rank_map_rows: Annotated[
        int | None,
        typer.Option("--rank-map-rows", min=1, help="Most ids of a table in --rank-maps.", show_default=False),
    ] = None,
    task: Annotated[
        Path | None,
        option(
            "--task", metavar="FILE", text="Write a task of the tables of --output here, to edit; an older one stays."
        ),
    ] = None,
    topology: Annotated[
        str, typer.Option("--topology", metavar="PRESET", help="Devices of that task; 'cpu' is this machine.")
    ] = PRESET,
    ray: RayAddress = None,
    as_json: AsJson = False,
) -> None:
    """Find the tables behind training logs: rows, pooling, access profile.

    Columns that look like times, labels or keys of sessions are named, with what a table of them costs. The last line is the command to
    run next.

    Example:
        shardwright profile logs/*.parquet -o tables.yaml --task task.yaml
        shardwright profile logs/*.parquet -o tables.yaml --rank-maps ranks.safetensors
        shardwright profile /shared/logs/*.parquet -o tables.yaml --ray ray://head:10001
    """
    from shardwright.workload.profile import profile_logs, save_tables

    rule = _rows_rule(rows, rank_maps, rank_map_rows)
    check_target(output, inputs=logs, outputs=[rank_maps])
    check_target(rank_maps, inputs=logs)
    _check_task(task, output, topology, logs, rank_maps)
    with _workers(ray) as pool, progress("counting lookups") as report:
        found = profile_logs(
            logs,
            columns=column,
            exclude=exclude or (),
            sequence=sequence or (),
            pooled=pooled or (),
            list_separator=list_separator,
            progress=report,
            pool=pool,
        )
    _check_numbered(found, rows, rank_maps)
    tables = found.tables(dim=dim, rows=rule)
    document, notes = _document(found, tables, output), found.notes()
    if rank_maps is not None:
        document["rank_maps"], more = _save_rank_maps(found, rank_maps, rank_map_rows)
        notes += more
    if output is not None:
        save_tables(found, output, dim=dim, rows=rule)
    doubted = found.doubts(tables)
    certain = [one for one in tables if one.name not in {doubt.column for doubt in doubted}]
    first = FirstTask.of(certain or tables, output, topology) if output is not None and output.is_file() else None
    if first is not None and task is not None:
        notes.append(saved(task) if first.save(task) else f"{task} is there already, and stays as it is")
    document["doubts"] = [
        {"column": doubt.column, "reason": doubt.reason, "bytes": doubt.table.weight_bytes} for doubt in doubted
    ]
    document["next"] = _next(context, first, [doubt.column for doubt in doubted] if certain else [])
    emit(document, _view(found, tables), *notes, saved(output), as_json=as_json)
    for doubt in doubted:
        note(
            f"warning: {doubt}; leave it out with --exclude {shlex.quote(doubt.column)} unless a model is to look it up"
        )
    if not as_json:
        show(f"next:{chr(10) if chr(10) in document['next'] else ' '}{document['next']}")


def _check_task(
    task: Path | None, output: Path | None, topology: str, logs: list[Path], rank_maps: Path | None
) -> None:
    """Check, before the logs are read, that the task can be written."""
    Topology.preset(topology)
    check_target(task, inputs=logs, outputs=[output, rank_maps])
    if task is not None and output is None:
        raise InvalidInput(f"--task {task}: a task names the file of its tables; save them with -o tables.yaml")


def _check_numbered(found: ProfileResult, rows: str | None, rank_maps: Path | None) -> None:
    """Check that ids are row numbers where the user says that they are."""
    from shardwright.workload.profile.result import LARGEST_ROW

    wrong = [name for name, one in found.columns.items() if one.max_id is None or one.max_id > LARGEST_ROW]
    if rows == "max_id" and wrong:
        remedy = "leave --rows away" if rank_maps else "use --rows distinct"
        excludes = " ".join(f"--exclude {shlex.quote(name)}" for name in wrong)
        raise InvalidInput(
            f"--rows max_id: the ids of {', '.join(map(repr, wrong))} are text or too large, no row numbers; {remedy}, or leave "
            f"columns out with {excludes}"
        )


def _next(context: typer.Context, first: FirstTask | None, doubted: list[str]) -> str:
    """The command to run after this one: without the doubted columns again, else on to a plan."""
    task, rank_maps = context.params["task"], context.params["rank_maps"]
    if first is None:
        return profiling_again(context, doubted, "-o tables.yaml --task task.yaml")
    if doubted:
        return profiling_again(context, doubted)
    return writing_and_planning(first, rank_maps) if task is None else planning(task, rank_maps)


@contextmanager
def _workers(address: str | None) -> Iterator[WorkerPool | None]:
    """Workers of a cluster that count; none without an address."""
    if address is None:
        yield None
        return
    from shardwright.cluster import open_cluster
    from shardwright.workload.profile.counting import no_state

    with open_cluster(address) as cluster, cluster.pool(no_state) as pool:
        yield pool


def _rows_rule(rows: Literal["distinct", "max_id"] | None, rank_maps: Path | None, limit: int | None) -> RowsRule:
    """How rows are counted: with rank maps, ids have to be row numbers."""
    if rank_maps is None:
        if limit is not None:
            raise InvalidInput(f"--rank-map-rows is {limit}, but no rank maps are saved; name a file with --rank-maps")
        return rows or "distinct"
    if rows == "distinct":
        raise InvalidInput(
            "--rows is distinct, which renumbers ids, while rank maps are of ids as they are in the log; use --rows max_id, or leave "
            "--rows away"
        )
    return rows or "numbered"


def _save_rank_maps(found: ProfileResult, path: Path, limit: int | None) -> tuple[dict[str, Any], list[str]]:
    """Save the rank maps; returns what the document says of them, and notes."""
    from shardwright.sharding.rank_map_files import save_rank_maps

    maps = found.rank_maps(limit)
    if not maps:
        raise InvalidInput(
            f"{path}: no column has row numbers, of which rank maps are; leave --rank-maps away, or log ids as whole numbers"
        )
    save_rank_maps(maps, path)
    notes = [f"{name!r}: rank map of {one.hottest.size:,} of {one.rows:,} rows" for name, one in maps.items()]
    notes += [
        f"{name!r} has no rank map: {'its ids are text' if column.max_id is None else 'its ids are too large'}, not row numbers"
        for name, column in found.columns.items()
        if name not in maps
    ]
    sizes = {name: {"rows": one.rows, "ids": one.hottest.size} for name, one in maps.items()}
    return {"output": str(path), "tables": sizes}, [*notes, f"saved {path}"]


def _document(found: ProfileResult, tables: list[Table], output: Path | None) -> dict[str, Any]:
    columns = [
        {
            "name": one.name,
            "rows": one.rows,
            "dim": one.dim,
            "pooling": one.pooling,
            "pooled": one.pooled,
            "lookups": column.sketch.events,
            "distinct": column.sketch.distinct,
            "distinct_error": column.sketch.distinct_error,
            "max_id": column.max_id,
            "hottest_percent_share": _hottest(one),
        }
        for one, column in zip(tables, found.columns.values(), strict=True)
    ]
    return {
        "output": str(output) if output is not None else None,
        "files": found.files,
        "log_rows": found.log_rows,
        "samples": found.samples,
        "lookups": found.lookups,
        "tables": columns,
        "left_out": dict(found.left_out),
    }


def _view(found: ProfileResult, tables: list[Table]) -> rich.table.Table:
    rows = [
        [
            one.name,
            f"{one.rows:,}",
            f"{column.sketch.events:,}",
            f"{one.pooling:.4g}",
            "pooled" if one.pooled else "sequence",
            percent(_hottest(one)),
        ]
        for one, column in zip(tables, found.columns.values(), strict=True)
    ]
    return table("tables", _COLUMNS, rows)


def _hottest(one: Table) -> float:
    """Share of the lookups that the hottest 1% of the rows take."""
    return one.access.share_of(0, one.rows / 100)
