"""Tables from training logs: count every id lookup of the chosen columns in bounded memory."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

from shardwright.cluster import Pool
from shardwright.errors import InvalidInput, require
from shardwright.workload.profile.counting import ColumnProfile, CountingJob, Counts, count_part, counts_by, merge_all
from shardwright.workload.profile.formats import ColumnKind, LogReader, column_kind, is_empty_type, is_nested
from shardwright.workload.profile.readers import LogFile, open_log, parts_of
from shardwright.workload.profile.result import ProfileResult
from shardwright.workload.profile.sketch import BYTES_PER_ID, AccessSketch

Progress: TypeAlias = Callable[[int, int | None], None]

SKETCH_BYTES = 192 * 2**20
_PENDING_BYTES = 96 * 2**20
_MOST_IDS = 1 << 20
_FEWEST_IDS = 64
_NAMED = 20


@dataclass
class Selection:
    """The columns of ids that a set of files has in common.

    Attributes:
        columns: the only columns wanted; None for all that hold ids.
        exclude: columns not wanted.
        kinds: kind of each column of ids; None until a file has a value in it.
        left_out: for every other column, its type or why it is left out.
        first: the first file, with which the others must agree.
        is_events: whether the files are event files.
    """

    columns: Collection[str] | None
    exclude: Collection[str]
    kinds: dict[str, ColumnKind | None] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)
    first: Path | None = None
    is_events: bool = False

    def include(self, log: LogReader) -> None:
        """Add one more file.

        Raises:
            InvalidInput: a named column does not exist or holds no ids, or the file disagrees with the first.
        """
        kinds = self._kinds_of(log)
        if self.first is None:
            self.first, self.kinds, self.is_events = log.path, kinds, log.is_events
            return
        if log.is_events != self.is_events:
            raise InvalidInput(
                f"{log.path}: event files (`user item` lines) do not mix with files of samples such as {self.first}; profile them apart"
            )
        for name in [*self.kinds, *kinds]:
            if name not in kinds or name not in self.kinds:
                has, lacks = (log.path, self.first) if name in kinds else (self.first, log.path)
                raise InvalidInput(
                    f"{lacks}: column '{name}' is missing or holds no ids, but holds ids in {has}; all files need the same columns"
                )
            ours, theirs = self.kinds[name], kinds[name]
            if ours is not None and theirs is not None and ours != theirs:
                raise InvalidInput(
                    f"{log.path}: column '{name}' holds {theirs}, but {ours} in {self.first}; write both with one type"
                )
            self.kinds[name] = ours or theirs

    def id_columns(self) -> dict[str, ColumnKind]:
        """Return the kind of each column that has ids.

        Raises:
            InvalidInput: no column has ids.
        """
        found = {name: kind for name, kind in self.kinds.items() if kind is not None}
        if not found and self.kinds:
            raise InvalidInput(
                f"{self.first}: the log is empty: columns {_listed(self.kinds)} have no value; name a log with ids"
            )
        if not found:
            others = _listed(f"{name} ({reason})" for name, reason in self.left_out.items())
            raise InvalidInput(
                f"{self.first}: no column holds embedding ids (integers, text or lists of these); its columns: {others}"
            )
        return found

    def _kinds_of(self, log: LogReader) -> dict[str, ColumnKind | None]:
        self._check_names(log)
        kinds: dict[str, ColumnKind | None] = {}
        for name, column_type in zip(log.schema.names, log.schema.types, strict=True):
            kind = column_kind(column_type)
            if name in self.exclude:
                self.left_out[name] = "excluded"
            elif self.columns is not None and name not in self.columns:
                self.left_out[name] = "not selected"
            elif kind is not None or is_empty_type(column_type):
                kinds[name] = kind
            elif self.columns is not None or is_nested(column_type):
                raise InvalidInput(
                    f"{log.path}: column '{name}' has type {column_type}; "
                    "ids are integers, text or lists of these: convert or exclude the column"
                )
            else:
                self.left_out[name] = f"{column_type} (ids are integers or text)"
        return kinds

    def _check_names(self, log: LogReader) -> None:
        names = log.schema.names
        twice = [name for name, count in Counter(names).items() if count > 1]
        if twice:
            raise InvalidInput(f"{log.path}: column '{twice[0]}' occurs twice; column names must be unique")
        for position, name in enumerate(names, start=1):
            if not name or not name.isprintable():
                raise InvalidInput(
                    f"{log.path}: column {position} is named {name!r}, must be printable text; rename it"
                )
        for name in (*(self.columns or ()), *self.exclude):
            if name not in names:
                raise InvalidInput(f"{log.path}: there is no column '{name}'; its columns are {_listed(names)}")


def _listed(items: Iterable[str]) -> str:
    texts = list(items)
    more = f" and {len(texts) - _NAMED} more" if len(texts) > _NAMED else ""
    return ", ".join(texts[:_NAMED]) + more


def profile_logs(
    paths: str | Path | Sequence[str | Path],
    *,
    columns: Collection[str] | None = None,
    exclude: Collection[str] = (),
    sequence: Collection[str] = (),
    pooled: Collection[str] = (),
    list_separator: str | None = None,
    sketch_bytes: int = SKETCH_BYTES,
    progress: Progress | None = None,
    pool: Pool[None] | None = None,
) -> ProfileResult:
    """Profile the embedding ids of training logs.

    A log is a Parquet or CSV file with a sample a row, or a text file with a `user item` event a line. Columns of integers, text or lists
    of these hold embedding ids; floats, booleans and times are left out. Memory stays below 1 GB for logs of any size: each column counts
    up to `sketch_bytes` / 28 / columns distinct ids (at most 1,048,576) exactly. Beyond that, hot ids are still counted, and a hash sample
    stands for the rest.

    The log is counted in parts that depend on its files alone (`readers.parts_of`), and their sketches are merged in the order of the log.
    So the result is the same bit by bit, whether this process or the workers of a `pool` count, however many workers there are and in
    whatever order they finish. The order of the files matters: where not all ids are counted exactly, another order gives other heavy
    hitters within the sketch's error, though the same sample and number of distinct ids.

    Args:
        paths: the files, all with the same columns.
        columns: the only columns to profile; default all that hold ids.
        exclude: columns to leave out, such as an integer label or time.
        sequence: list columns whose looked-up rows stay separate.
        pooled: list columns whose looked-up rows are summed. A list column named in neither is a sequence if a sample has more
            than 100 ids.
        list_separator: separator of ids in a CSV field; lists of integers are recognised without it.
        sketch_bytes: memory for all counts together; a log of several parts takes it twice, for the merged counts and the part's.
        progress: called with the lookups counted so far and their number in all files; the number is None if a file does not say it or
            a `pool` counts.
        pool: workers that count the parts; they must see the files under the same absolute paths. By default this process counts.

    Raises:
        InvalidInput: a file is missing, empty, damaged or has other columns than the first, a column does not exist or holds no
            valid ids, or options contradict each other.
        MissingDependency: pyarrow is not installed.
    """
    require("profile", "profiling logs")
    files = _distinct_paths(paths)
    selection = Selection(columns, exclude)
    looked_at = []
    for path in files:
        log = open_log(path, list_separator)
        selection.include(log)
        looked_at.append(LogFile.of(log))
    kinds = selection.id_columns()
    choices = _pooling_choices(kinds, sequence, pooled)
    if selection.is_events and (columns is not None or exclude or choices):
        raise InvalidInput(
            f"{files[0]}: is an event file: columns, exclude, sequence and pooled do not apply to it; leave them away"
        )
    empty = _empty_columns(kinds, choices, sketch_bytes)
    pending = max(_FEWEST_IDS, min(_MOST_IDS, _PENDING_BYTES // 8 // len(kinds)))
    jobs = [CountingJob(part, empty, pending, list_separator) for part in parts_of(looked_at)]
    total = _total_lookups(files, list_separator, list(kinds)) if progress and pool is None else None
    lookups = 0

    def counted(more: int) -> None:
        nonlocal lookups
        lookups += more
        if progress:
            progress(lookups, total)

    here = (count_part(job, counted=counted) for job in jobs)
    found = here if pool is None else counts_by(pool, jobs, counted)
    return _result(files, selection, merge_all(empty, found))


def _distinct_paths(paths: str | Path | Sequence[str | Path]) -> list[Path]:
    files = [Path(path) for path in ([paths] if isinstance(paths, (str, Path)) else paths)]
    if not files:
        raise InvalidInput("paths: no log is named; name at least one file")
    seen: set[str] = set()
    for file in files:
        place = os.path.realpath(file)
        if place in seen:
            raise InvalidInput(f"{file}: is named twice, so that its events would count twice; name it once")
        seen.add(place)
    return files


def _pooling_choices(
    kinds: Mapping[str, ColumnKind], sequence: Collection[str], pooled: Collection[str]
) -> dict[str, bool]:
    """Return whether a column is pooled, for the columns that the caller named."""
    for option, names in (("sequence", sequence), ("pooled", pooled)):
        for name in names:
            if name not in kinds or not kinds[name].is_list:
                lists = ", ".join(column for column, kind in kinds.items() if kind.is_list) or "none"
                raise InvalidInput(f"{option}: '{name}' is not a profiled column of lists; those are: {lists}")
            if name in sequence and name in pooled:
                raise InvalidInput(f"column '{name}' is named both in sequence and in pooled; name it in one of them")
    return {**dict.fromkeys(sequence, False), **dict.fromkeys(pooled, True)}


def _empty_columns(
    kinds: Mapping[str, ColumnKind], choices: Mapping[str, bool], sketch_bytes: int
) -> dict[str, ColumnProfile]:
    """Return the columns without counts; they share the memory evenly."""
    limit = max(_FEWEST_IDS, min(_MOST_IDS, sketch_bytes // BYTES_PER_ID // len(kinds)))
    return {name: ColumnProfile(name, kind, AccessSketch(limit), choices.get(name)) for name, kind in kinds.items()}


def _total_lookups(files: Sequence[Path], list_separator: str | None, names: Sequence[str]) -> int | None:
    counts = [open_log(path, list_separator).lookups(names) for path in files]
    known = [count for count in counts if count is not None]
    return sum(known) if len(known) == len(counts) else None


def _result(files: Sequence[Path], selection: Selection, counts: Counts) -> ProfileResult:
    if not counts.rows:
        raise InvalidInput(
            f"{files[0]}: the log is empty (0 rows in {len(files)} files); name a log with at least one row"
        )
    columns = counts.columns
    unused = {
        name: "holds only nulls" for name in selection.kinds if name not in columns or not columns[name].sketch.events
    }
    used = {name: column for name, column in columns.items() if name not in unused}
    if not used:
        raise InvalidInput(
            f"{files[0]}: no id in any of the columns {', '.join(unused)}; name a log in which ids are not null"
        )
    return ProfileResult(used, counts.rows, len(files), selection.is_events, {**selection.left_out, **unused})
