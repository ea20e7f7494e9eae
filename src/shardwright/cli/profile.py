"""`shardwright profile`: tables and access profiles from training logs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from shardwright.cli.options import AsJson, option
from shardwright.cli.output import emit, percent, saved, table
from shardwright.cli.progress import progress
from shardwright.cli.targets import check_target

if TYPE_CHECKING:
    import rich.table

    from shardwright.task import Table
    from shardwright.workload.profile import ProfileResult

_COLUMNS = ("table", "rows", "lookups", "pooling", "kind", "hottest 1% of rows")


def run(
    *,
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
        Literal["distinct", "max_id"], typer.Option("--rows", help="Count distinct ids, or take the largest id + 1.")
    ] = "distinct",
    as_json: AsJson = False,
) -> None:
    """Find the tables behind training logs: rows, pooling, access profile.

    Example:
        shardwright profile logs/*.parquet -o tables.yaml
    """
    from shardwright.workload.profile import profile_logs, save_tables

    check_target(output)
    with progress("counting lookups") as report:
        found = profile_logs(
            logs,
            columns=column,
            exclude=exclude or (),
            sequence=sequence or (),
            pooled=pooled or (),
            list_separator=list_separator,
            progress=report,
        )
    tables = found.tables(dim=dim, rows=rows)
    if output is not None:
        save_tables(found, output, dim=dim, rows=rows)
    emit(_document(found, tables, output), _view(found, tables), *found.notes(), saved(output), as_json=as_json)


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
