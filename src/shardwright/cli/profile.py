"""`shardwright profile`: make tables, access profiles and a first task file from training logs, and name the command to run next."""

from __future__ import annotations

import json
import math
import os
import shlex
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from shardwright.cli.checks import check_target, given_parameters
from shardwright.cli.options import (
    AsJson,
    Columns,
    Hashed,
    ListSeparator,
    NoHeader,
    RayAddress,
    Sequences,
    column_names,
    option,
)
from shardwright.cli.output import emit, note, percent, progress, saved, show, table
from shardwright.errors import InvalidInput
from shardwright.files import dump_document, write_atomically
from shardwright.sharding.memory import optimizer_bytes
from shardwright.task import PRESETS, Table, Topology

if TYPE_CHECKING:
    import rich.table

    from shardwright.cli.documents import measuring
    from shardwright.cluster import Pool
    from shardwright.workload.profile import ProfileResult
    from shardwright.workload.profile.result import Doubt, RowsRule

PRESET = "h100-8"
_SAMPLES = 1024  # samples of a device in a step
_ROOM = 2.0  # device memory per byte of tables: buffers and growing tables need the other half
_COLUMNS = ("table", "rows", "lookups", "pooling", "kind", "hottest 1% of rows")


def run(
    *,
    context: typer.Context,
    logs: Annotated[
        list[Path],
        typer.Argument(
            metavar="LOGS...",
            help="Parquet, CSV or JSON-lines files with a sample a row, or text files with a `user item` event a line.",
            show_default=False,
        ),
    ],
    output: Annotated[
        Path | None, option("--output", "-o", metavar="FILE", text="Save the tables here, as YAML.")
    ] = None,
    column: Annotated[
        list[str] | None,
        option("--column", metavar="NAME", text="Profile this column; may be repeated, and be a pattern such as 'C*'."),
    ] = None,
    exclude: Annotated[
        list[str] | None,
        option(
            "--exclude", metavar="NAME", text="Leave this column out; may be repeated, and be a pattern such as 'I*'."
        ),
    ] = None,
    sequence: Sequences = None,
    pooled: Annotated[
        list[str] | None, option("--pooled", metavar="NAME", text="List column whose rows are summed; or a pattern.")
    ] = None,
    hashed: Hashed = None,
    list_separator: ListSeparator = None,
    no_header: NoHeader = False,
    columns: Columns = None,
    dim: Annotated[
        int, typer.Option("--dim", min=1, help="Embedding dim of all tables, which a log does not contain.")
    ] = 64,
    rows: Annotated[
        Literal["distinct", "max_id"] | None,
        option(
            "--rows",
            metavar="distinct|max_id",
            text="Rows of a table: distinct ids (default), or largest id + 1 (default with --rank-maps if ids are integers).",
        ),
    ] = None,
    rank_maps: Annotated[
        Path | None,
        option("--rank-maps", metavar="FILE", text="Save the hottest ids of each table here, as safetensors."),
    ] = None,
    rank_map_rows: Annotated[
        int | None,
        typer.Option("--rank-map-rows", min=1, help="Most ids of a table in --rank-maps.", show_default=False),
    ] = None,
    task: Annotated[
        Path | None,
        option(
            "--task",
            metavar="FILE",
            text="Write a task of the tables of --output here, to edit; an existing file stays.",
        ),
    ] = None,
    topology: Annotated[
        str, typer.Option("--topology", metavar="PRESET", help="Devices of the task; 'cpu' is this machine.")
    ] = PRESET,
    ray: RayAddress = None,
    as_json: AsJson = False,
) -> None:
    """Find the tables behind training logs: rows, pooling, access profile.

    Columns of other types are left out, with a note. The command warns of columns that look like times, counts, labels or session keys,
    and states the size of their tables. Its last line is the command to run next.

    Example:
        shardwright profile logs/*.parquet -o tables.yaml --task task.yaml
        shardwright profile train.txt --columns label,I1..I13,C1..C26 --exclude 'I*' -o tables.yaml --task task.yaml
        shardwright profile logs/*.parquet -o tables.yaml --rank-maps ranks.safetensors
        shardwright profile /shared/logs/*.parquet -o tables.yaml --ray ray://head:10001
    """
    from shardwright.workload.profile import profile_logs, save_tables
    from shardwright.workload.profile.result import doubts_by_line

    rule = _rows_rule(rows, rank_maps, rank_map_rows)
    check_target(output, inputs=logs, outputs=[rank_maps])
    check_target(rank_maps, inputs=logs)
    Topology.preset(topology)  # checked before the logs are read
    check_target(task, inputs=logs, outputs=[output, rank_maps])
    if task is not None and output is None:
        raise InvalidInput(f"--task {task}: a task names the file of its tables; save them with -o tables.yaml")
    given_names = column_names(columns)
    with _workers(ray) as pool, progress("counting lookups") as report:
        result = profile_logs(
            logs,
            columns=column,
            exclude=exclude or (),
            sequence=sequence or (),
            pooled=pooled or (),
            hashed=hashed or (),
            list_separator=list_separator,
            header=not (no_header or given_names),
            names=given_names,
            progress=report,
            pool=pool,
        )
    _check_numbered(result, rows, rank_maps)
    tables = result.tables(dim=dim, rows=rule)
    notes = result.notes()
    maps: dict[str, measuring.RankMapOfProfile] = {}
    if rank_maps is not None:
        maps, more = _save_rank_maps(result, rank_maps, rank_map_rows)
        notes += more
    if output is not None:
        save_tables(result, output, dim=dim, rows=rule)
    doubted = result.doubts(tables)
    certain = [profiled for profiled in tables if profiled.name not in {doubt.column for doubt in doubted}]
    task_text = None
    if output is not None and output.is_file():
        task_text = partial(_first_task, certain or tables, output, topology)
        if task is not None and task.is_file():  # somebody may have edited it
            notes.append(f"{task} exists already, and stays as it is")
        elif task is not None:
            write_atomically(task, task_text(task))
            notes.append(saved(task))
    following = _next(context, task_text, [doubt.column for doubt in doubted] if certain else [])
    document = _document(result, tables, doubted, following)
    if maps:
        document["rank_maps"] = maps
    emit(document, _view(document), *notes, saved(output), as_json=as_json)
    for line, names in doubts_by_line(doubted).items():
        them = "it" if len(names) == 1 else "them"
        excludes = " ".join(f"--exclude {shlex.quote(name)}" for name in names)
        note(f"warning: {line}; leave {them} out with {excludes} unless a model is to look {them} up")
    for crowded in result.uneven(tables):
        note(f"warning: {crowded}")
    if not as_json:
        show(f"next:{chr(10) if chr(10) in following else ' '}{following}")


def _check_numbered(result: ProfileResult, rows: str | None, rank_maps: Path | None) -> None:
    """Check that ids are row numbers if `--rows max_id` is given."""
    from shardwright.workload.profile.result import LARGEST_ROW

    wrong = [name for name, column in result.columns.items() if column.max_id is None or column.max_id > LARGEST_ROW]
    if rows == "max_id" and wrong:
        remedy = "leave --rows away" if rank_maps else "use --rows distinct"
        excludes = " ".join(f"--exclude {shlex.quote(name)}" for name in wrong)
        raise InvalidInput(
            f"--rows max_id: the ids of {', '.join(map(repr, wrong))} are text or too large, no row numbers; {remedy}, or leave "
            f"columns out with {excludes}"
        )


def _next(context: typer.Context, task_text: Callable[[Path], str] | None, doubted: list[str]) -> str:
    """The next command, ready to paste: this one again without the doubted columns, else the command that plans."""
    if task_text is None:
        return _profiling_again(context, doubted, "-o tables.yaml --task task.yaml")
    if doubted:
        return _profiling_again(context, doubted)
    tables, task, rank_maps = (context.params[name] for name in ("output", "task", "rank_maps"))
    maps = "" if rank_maps is None else f" --rank-maps {shlex.quote(str(rank_maps))}"
    if task is not None:
        return f"shardwright plan {shlex.quote(str(task))}{maps} -o plan.json"
    paths = [tables.with_name(name) for name in ("task.yaml", f"{tables.stem}-task.yaml")]
    path = next((file for file in paths if not file.exists()), paths[-1])
    quoted = shlex.quote(str(path))
    return f"cat > {quoted} <<'END'\n{task_text(path)}END\nshardwright plan {quoted}{maps} -o plan.json"


@contextmanager
def _workers(address: str | None) -> Iterator[Pool[None] | None]:
    """Workers of a cluster to count with; None without an address."""
    if address is None:
        yield None
        return
    from shardwright.cluster import open_cluster
    from shardwright.workload.profile.counting import no_state

    with open_cluster(address) as cluster, cluster.pool(no_state) as pool:
        yield pool


def _rows_rule(rows: Literal["distinct", "max_id"] | None, rank_maps: Path | None, limit: int | None) -> RowsRule:
    """The rule by which rows are counted. With rank maps, ids must be row numbers."""
    if rank_maps is None:
        if limit is not None:
            raise InvalidInput(f"--rank-map-rows is {limit}, but no rank maps are saved; name a file with --rank-maps")
        return rows or "distinct"
    if rows == "distinct":
        raise InvalidInput(
            "--rows distinct renumbers ids, but rank maps hold ids as the log has them; use --rows max_id, or leave --rows away"
        )
    return rows or "numbered"


def _save_rank_maps(
    result: ProfileResult, path: Path, limit: int | None
) -> tuple[dict[str, measuring.RankMapOfProfile], list[str]]:
    """Save the rank maps; return their part of the document, and notes."""
    from shardwright.sharding.rank_map_files import save_rank_maps

    maps = result.rank_maps(limit)
    if not maps:
        raise InvalidInput(
            f"{path}: no column has row numbers, which rank maps need; leave --rank-maps away, or log ids as whole numbers"
        )
    save_rank_maps(maps, path)
    notes = [f"{name!r}: rank map of {ranks.hottest.size:,} of {ranks.rows:,} rows" for name, ranks in maps.items()]
    notes += [
        f"{name!r} has no rank map: {'its ids are text or hashes' if column.max_id is None else 'its ids are too large'}, not row numbers"
        for name, column in result.columns.items()
        if name not in maps
    ]
    sizes: dict[str, measuring.RankMapOfProfile] = {
        name: {"rows": ranks.rows, "ids": ranks.hottest.size} for name, ranks in maps.items()
    }
    return sizes, [*notes, saved(path)]


def _document(result: ProfileResult, tables: list[Table], doubts: list[Doubt], following: str) -> measuring.Profile:
    columns: list[measuring.TableOfProfile] = [
        {
            "name": profiled.name,
            "rows": profiled.rows,
            "dim": profiled.dim,
            "pooling": profiled.pooling,
            "pooled": profiled.pooled,
            "lookups": column.sketch.events,
            "distinct": column.sketch.distinct,
            "distinct_error": column.sketch.distinct_error,
            "max_id": column.max_id,
            "hottest_percent_share": profiled.access.share_of(0, profiled.rows / 100),
            "id_shares": list(profiled.id_shares),
        }
        for profiled, column in zip(tables, result.columns.values(), strict=True)
    ]
    return {
        "files": result.files,
        "log_rows": result.log_rows,
        "samples": result.samples,
        "lookups": result.lookups,
        "tables": columns,
        "left_out": dict(result.left_out),
        "doubts": [
            {"column": doubt.column, "reason": doubt.reason, "bytes": doubt.table.weight_bytes} for doubt in doubts
        ],
        "next": following,
    }


def _view(document: measuring.Profile) -> rich.table.Table:
    rows = [
        [
            profiled["name"],
            f"{profiled['rows']:,}",
            f"{profiled['lookups']:,}",
            f"{profiled['pooling']:.4g}",
            "pooled" if profiled["pooled"] else "sequence",
            percent(profiled["hottest_percent_share"]),
        ]
        for profiled in document["tables"]
    ]
    return table("tables", _COLUMNS, rows)


def _first_task(tables: Sequence[Table], file: Path, preset: str, path: Path) -> str:
    """The text of a task file to start from, on the fewest hosts whose memory stays half free; in YAML, comments mark fields to edit.

    Args:
        tables: the tables.
        file: their file.
        preset: preset of the hosts.
        path: where the task file will lie.
    """
    host = Topology.preset(preset)
    needed = sum(table.weight_bytes + optimizer_bytes("rowwise_adagrad", table.rows, table.dim) for table in tables)
    hosts = max(1, math.ceil(_ROOM * needed / sum(host.memory_bytes)))
    batch_size, relative = _SAMPLES * host.devices * hosts, os.path.relpath(file.absolute(), path.absolute().parent)
    if path.suffix.lower() == ".json":
        topology = {"preset": preset, "hosts": hosts}
        return dump_document({"batch_size": batch_size, "topology": topology, "tables": {"file": relative}}, path)
    presets = ", ".join(("cpu (this machine)", *(name for name in PRESETS if name != preset)))
    return (
        "# A task to start from: set the batch size and the devices that you have.\n"
        f"batch_size: {batch_size}  # samples a step, of all devices together\n"
        f"topology: {{preset: {preset}, hosts: {hosts}}}  # other presets: {presets}\n"
        f"tables: {{file: {json.dumps(relative)}}}\n"
    )


def _profiling_again(context: typer.Context, without: Collection[str], *more: str) -> str:
    """The command as it was called, with more options and without some columns."""
    words = ["shardwright profile", _files(context.params["logs"])]
    for parameter in given_parameters(context):
        name = str(parameter.name)
        given: Any = context.params[name]
        if name in ("logs", "as_json"):
            continue
        if given is True:
            words.append(parameter.opts[0])
            continue
        for value in given if isinstance(given, (list, tuple)) else [given]:
            if name not in ("sequence", "pooled", "hashed", "column") or value not in without:
                words += [min(parameter.opts, key=len), shlex.quote(str(value))]
    words += [*more, *(f"--exclude {shlex.quote(name)}" for name in without)]
    return " ".join(words)


def _files(paths: Sequence[Path]) -> str:
    """The files as a shell pattern if one matches exactly these files, else one by one."""
    folders, endings = {path.parent for path in paths}, {path.suffix for path in paths}
    if len(paths) > 1 and len(folders) == len(endings) == 1:
        (folder,), (ending,) = folders, endings
        if ending and set(folder.glob(f"[!.]*{ending}")) == set(paths) and shlex.quote(ending) == ending:
            return f"*{ending}" if folder == Path() else f"{shlex.quote(str(folder))}/*{ending}"
    return shlex.join(map(str, paths))
