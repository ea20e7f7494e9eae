"""Tables from training logs: count every id lookup of the chosen columns in bounded memory."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeAlias

from shardwright.cluster import Pool
from shardwright.errors import InvalidInput, require
from shardwright.files import check_distinct
from shardwright.workload.profile.counting import ColumnProfile, CountingJob, Counts, count_part, counts_by, merge_all
from shardwright.workload.profile.formats import ColumnKind, MixedIds, Reading
from shardwright.workload.profile.readers import LogFile, open_log, parts_of
from shardwright.workload.profile.result import ProfileResult
from shardwright.workload.profile.selection import Selection, matching
from shardwright.workload.profile.sketch import BYTES_PER_ID, AccessSketch

Progress: TypeAlias = Callable[[int, int | None], None]

SKETCH_BYTES = 192 * 2**20
_PENDING_BYTES = 96 * 2**20
_MOST_IDS = 1 << 20
_FEWEST_IDS = 64


def profile_logs(
    paths: str | Path | Sequence[str | Path],
    *,
    columns: Collection[str] | None = None,
    exclude: Collection[str] = (),
    sequence: Collection[str] = (),
    pooled: Collection[str] = (),
    hashed: Collection[str] = (),
    list_separator: str | None = None,
    header: bool = True,
    names: Sequence[str] = (),
    sketch_bytes: int = SKETCH_BYTES,
    progress: Progress | None = None,
    pool: Pool[None] | None = None,
) -> ProfileResult:
    """Profile the embedding ids of training logs.

    A log is a Parquet, CSV or JSON-lines file with a sample a row, or a text file with a `user item` event a line. Columns of integers,
    text or lists of these hold embedding ids; the others (floats, booleans, times, structures, negative integers) are left out,
    with a reason in the result. Memory stays below 1 GB for logs of any size: each column counts
    up to `sketch_bytes` / 28 / columns distinct ids (at most 1,048,576) exactly. Beyond that, hot ids are still counted, and a hash sample
    stands for the rest.

    The log is counted in parts that depend on its files alone (`readers.parts_of`), and their sketches are merged in the order of the log.
    So the result is the same bit by bit with and without a `pool`, for any number of workers and any order in which they finish. The order
    of the files matters: if not all ids are counted exactly, another order gives other heavy hitters within the sketch's error, but the
    same sample and number of distinct ids.

    Args:
        paths: the files, all with the same columns.
        columns: the only columns to profile; by default all that hold ids. This and the next four also take patterns such as "I*".
        exclude: columns to leave out, such as an integer label or time.
        sequence: list columns whose looked-up rows stay separate.
        pooled: list columns whose looked-up rows are summed. A list column named in neither is a sequence if a sample has more
            than 100 ids.
        hashed: columns of integers that are hashes: negative ones are ids too, and none is a row number.
        list_separator: separator of ids in a CSV field; lists of integers are recognised without it.
        header: whether the first line of a CSV file names its columns.
        names: names of the columns of CSV files without a header; by default "column_1" and so on.
        sketch_bytes: memory for all counts together; a log of several parts takes it twice, for the merged counts and the part's.
        progress: called with the lookups counted so far and their number in all files; the number is None if a file does not state it or a
            `pool` counts.
        pool: workers that count the parts; they must see the files under the same absolute paths. By default this process counts.

    Raises:
        InvalidInput: a file is missing, empty, damaged or has other columns than the first, a column does not exist or holds no
            valid ids, or options contradict each other; or a column that `columns` names holds an id that is negative or too long.
        MissingDependency: pyarrow is not installed.
    """
    require("profile", "profiling logs")
    files = _distinct_paths(paths)
    reading = Reading(list_separator, header, tuple(names))
    while True:
        try:
            return _profiled(
                files, reading, Selection(columns, exclude), sequence, pooled, hashed, sketch_bytes, progress, pool
            )
        except MixedIds as mixed:  # the ids of such a column are text from the first line on
            if mixed.column in reading.texts:
                raise
            reading = replace(reading, texts=(*reading.texts, mixed.column))


def _profiled(
    files: Sequence[Path],
    reading: Reading,
    selection: Selection,
    sequence: Collection[str],
    pooled: Collection[str],
    hashed: Collection[str],
    sketch_bytes: int,
    progress: Progress | None,
    pool: Pool[None] | None,
) -> ProfileResult:
    looked_at = []
    for path in files:
        log = open_log(path, reading)
        selection.include(log)
        looked_at.append(LogFile.of(log))
    kinds = selection.id_columns()
    choices = _pooling_choices(kinds, sequence, pooled)
    if selection.is_events and (selection.columns is not None or selection.exclude or choices or hashed):
        raise InvalidInput(
            f"{files[0]}: is an event file: columns, exclude, sequence, pooled and hashed do not apply to it; leave them out"
        )
    empty = _empty_columns(kinds, choices, sketch_bytes)
    for name in (name for pattern in hashed for name in _fitting("hashed", pattern, kinds)):
        empty[name] = replace(empty[name], hashed=True)
    pending = max(_FEWEST_IDS, min(_MOST_IDS, _PENDING_BYTES // 8 // len(kinds)))
    jobs = [CountingJob(part, empty, pending, reading) for part in parts_of(looked_at)]
    total = _total_lookups(files, reading, list(kinds)) if progress and pool is None else None
    lookups = 0

    def counted(more: int) -> None:
        nonlocal lookups
        lookups += more
        if progress:
            progress(lookups, total)

    here = (count_part(job, counted=counted) for job in jobs)
    parts = here if pool is None else counts_by(pool, jobs, counted)
    return _result(files, selection, merge_all(empty, parts))


def _distinct_paths(paths: str | Path | Sequence[str | Path]) -> list[Path]:
    files = [Path(path) for path in ([paths] if isinstance(paths, (str, Path)) else paths)]
    if not files:
        raise InvalidInput("paths: no log is named; name at least one file")
    check_distinct(files, "events")
    return files


def _pooling_choices(
    kinds: Mapping[str, ColumnKind], sequence: Collection[str], pooled: Collection[str]
) -> dict[str, bool]:
    """Return whether a column is pooled, for the columns that the caller named."""
    lists = [name for name, kind in kinds.items() if kind.is_list]
    separate = [
        name for pattern in sequence for name in _fitting("sequence", pattern, lists, "profiled column of lists")
    ]
    summed = [name for pattern in pooled for name in _fitting("pooled", pattern, lists, "profiled column of lists")]
    for name in separate:
        if name in summed:
            raise InvalidInput(f"column '{name}' is named both in sequence and in pooled; name it in one of them")
    return {**dict.fromkeys(separate, False), **dict.fromkeys(summed, True)}


def _fitting(option: str, pattern: str, names: Collection[str], what: str = "profiled column") -> list[str]:
    """The columns that a name or pattern of an option fits.

    Raises:
        InvalidInput: it fits none.
    """
    columns = matching(pattern, names)
    if not columns:
        raise InvalidInput(f"{option}: '{pattern}' is not a {what}; those are: {', '.join(names) or 'none'}")
    return columns


def _empty_columns(
    kinds: Mapping[str, ColumnKind], choices: Mapping[str, bool], sketch_bytes: int
) -> dict[str, ColumnProfile]:
    """Return the columns without counts; they share the memory evenly."""
    limit = max(_FEWEST_IDS, min(_MOST_IDS, sketch_bytes // BYTES_PER_ID // len(kinds)))
    return {name: ColumnProfile(name, kind, AccessSketch(limit), choices.get(name)) for name, kind in kinds.items()}


def _total_lookups(files: Sequence[Path], reading: Reading, names: Sequence[str]) -> int | None:
    counts = [open_log(path, reading).lookups(names) for path in files]
    known = [count for count in counts if count is not None]
    return sum(known) if len(known) == len(counts) else None


def _result(files: Sequence[Path], selection: Selection, counts: Counts) -> ProfileResult:
    if not counts.rows:
        raise InvalidInput(
            f"{files[0]}: the log is empty (0 rows in {len(files)} files); name a log with at least one row"
        )
    columns = counts.columns
    refused = {name: column.refused for name, column in columns.items() if column.refused}
    wanted = columns if selection.is_events else selection.columns or ()
    if reasons := [reason for name, reason in refused.items() if name in wanted]:
        raise InvalidInput("; ".join(reasons))
    unused = {
        name: "holds only nulls" for name in selection.kinds if name not in columns or not columns[name].sketch.events
    } | refused
    used = {name: column for name, column in columns.items() if name not in unused}
    if not used and refused:
        raise InvalidInput("; ".join(refused.values()))
    if not used:
        raise InvalidInput(
            f"{files[0]}: no id in any of the columns {', '.join(unused)}; name a log in which ids are not null"
        )
    return ProfileResult(used, counts.rows, len(files), selection.is_events, {**selection.left_out, **unused})
