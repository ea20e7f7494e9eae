"""The result of profiling, the tables that follow from it, and the files that it writes.

Some columns hold ids by their type, but their values show that they are hardly features: times, numbers, labels, keys of sessions. A table
for such a column takes memory and learns nothing, or learns the label. The rules avoid false alarms, so they miss some such columns.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime
from pathlib import Path
from typing import Literal, TypeAlias, get_args

import numpy as np

from shardwright.errors import InvalidInput, counted
from shardwright.files import dump_document, write_atomically
from shardwright.sharding.rank_map import RankMap
from shardwright.task import DTYPE_BYTES, Table
from shardwright.task.files import FORMAT, table_to_dict
from shardwright.task.quantities import format_bytes
from shardwright.workload.profile.counting import ColumnProfile
from shardwright.workload.profile.sketch import (
    ID_RANGES,
    access_profile,
    flat_profile,
    hottest_ids,
    id_shares,
    scramble,
)

RowsRule: TypeAlias = Literal["distinct", "max_id", "numbered"]

LARGEST_ROW = 2**48
"""Largest id that counts as a row number."""

_UNITS = {"seconds": 10**9, "milliseconds": 10**12, "microseconds": 10**15, "nanoseconds": 10**18}
_LATEST = 2.2  # billions of seconds since 1970: with `_UNITS`, 2001 to 2039; ids of other kinds seldom all lie there
_MOST_NANOSECONDS = 4e16  # 15 months: ids that begin with a time, such as those of posts, are as large but span years
_TIME_TEXT = re.compile(r"\d{4}-\d\d-\d\d([T ]\d\d:\d\d.*)?|\d\d:\d\d(:\d\d.*)?")
_NUMBER_TEXT = re.compile(r"[+-]?\d*\.\d+([eE][+-]?\d+)?")
_LABEL_WORDS = {"label", "labels", "target", "click", "clicked", "converted", "conversion", "purchased"}

_FEWEST_TIMES = 3
_FEWEST_NUMBERS = 100  # versions are numbers with a dot too, but there are few of them
_MOST_LABELS = 10
_FEWEST_FLAGS = 100
_FEWEST_NEW = 1000
_INTEGERS_BESIDE = (
    (re.compile("I([1-9]|1[0-3])"), re.compile("C[0-9]+")),
    (re.compile("int_[0-9]+"), re.compile("cat_[0-9]+")),
    (re.compile("dense_[0-9]+"), re.compile("sparse_[0-9]+")),
)
"""Names of integers, and of the categories beside them, in Criteo's logs as Criteo, TorchRec and others write them."""
_COUNTS = 0.05  # distinct numbers per lookup, and per number up to the largest; fewer are sparse
_SMALL, _DENSE = 32, 0.9  # numbers that are small, and the share of them that occurs
_FEWEST_IDS = 1024  # with fewer ids, dense ranges occur by chance
_CROWDED = 2.0  # lookups of a range over its share of ids, hottest id excluded, above which it is reported
_NEW_SHARE = 0.9


@dataclass(frozen=True)
class Doubt:
    """A column that is probably not a feature.

    Attributes:
        column: name of the column.
        reason: the likely meaning of the column, and values that show it.
        table: the table made from the column.
    """

    column: str
    reason: str
    table: Table

    def __str__(self) -> str:
        table = self.table
        return (
            f"{self.column!r} {self.reason}; its table takes {format_bytes(table.weight_bytes)} "
            f"({table.rows:,} rows x dim {table.dim} x {DTYPE_BYTES[table.dtype]} bytes)"
        )


def doubts_by_line(doubts: Sequence[Doubt]) -> dict[str, list[str]]:
    """Columns with one reason to doubt them, by a line that states the reason and the memory of their tables."""
    alike: dict[str, list[Doubt]] = {}
    for doubt in doubts:
        alike.setdefault(doubt.reason, []).append(doubt)
    lines = {}
    for reason, same in alike.items():
        names, size = [doubt.column for doubt in same], sum(doubt.table.weight_bytes for doubt in same)
        several = f"each of {', '.join(map(repr, names))} {reason}; the tables take {format_bytes(size)}"
        lines[several if len(same) > 1 else str(same[0])] = names
    return lines


def _like_time(column: ColumnProfile) -> str | None:
    if column.examples and all(_TIME_TEXT.fullmatch(text) for text in column.examples):
        return f"looks like a time: its values are such as {column.examples[0]!r}"
    first, last = column.min_id, column.max_id
    if first is None or last is None or column.sketch.distinct < _FEWEST_TIMES:
        return None
    for unit, least in _UNITS.items():
        if least <= first <= last <= _LATEST * least and (least < 10**18 or last - first < _MOST_NANOSECONDS):
            return f"looks like a time: its ids are from {first:,} to {last:,}, as {unit} since 1970 are"
    days = _day(first), _day(last)
    if days[0] and days[1] and column.sketch.distinct <= (days[1] - days[0]).days + 1:
        return f"looks like a date: its ids are from {first} to {last}"
    return None


def _day(number: int) -> date | None:
    """Return the day that a number such as 20240117 spells, from 1990 to 2039; None otherwise."""
    try:
        return datetime.strptime(str(number), "%Y%m%d").date() if 19900101 <= number < 20400101 else None
    except ValueError:
        return None


def _like_number(column: ColumnProfile) -> str | None:
    if not column.examples or column.sketch.distinct < _FEWEST_NUMBERS:
        return None
    if all(_NUMBER_TEXT.fullmatch(text) for text in column.examples):
        return f"looks like a measured number: its values are text such as {column.examples[0]!r}"
    return None


def _like_count(column: ColumnProfile, columns: Collection[str]) -> str | None:
    """A count, by its name in the public logs of clicks, or because small numbers are dense and large ones sparse.

    Ids are not distributed like that: hashes are sparse everywhere, and a vocabulary in order of hotness is dense over a large range.
    """
    sketch, last = column.sketch, column.max_id
    if column.kind.is_list or column.hashed or last is None:
        return None
    for integers, categories in _INTEGERS_BESIDE:
        if integers.fullmatch(column.name) and any(map(categories.fullmatch, columns)):
            return "looks like a number that was measured, not an id: its name is that of an integer beside categories"
    if sketch.distinct > _COUNTS * min(sketch.events, last + 1) or sketch.events < _FEWEST_NEW:
        return None
    seen = np.isin(scramble(np.arange(_SMALL, dtype=np.uint64)), sketch.sample_keys)
    if sketch.exact and seen.mean() >= _DENSE:
        return (
            f"looks like a number that was measured, not an id: nearly all numbers below {_SMALL} occur, "
            f"but just {sketch.distinct:,} of those up to {last:,}"
        )
    return None


def _like_label(column: ColumnProfile) -> str | None:
    if column.kind.is_list:
        return None
    distinct, events = column.sketch.distinct, column.sketch.events
    words = re.findall(r"[a-z]+", re.sub(r"([a-z])([A-Z])", r"\1 \2", column.name).lower())
    if words and words[-1] in _LABEL_WORDS and distinct <= _MOST_LABELS:
        return f"looks like a label, by its name and its few values ({distinct})"
    if column.min_id == 0 and column.max_id == 1 and events >= _FEWEST_FLAGS:
        return "looks like a label or a flag: it holds 0 and 1 alone"
    return None


def _always_new(column: ColumnProfile) -> str | None:
    sketch = column.sketch
    if sketch.events < _FEWEST_NEW or sketch.distinct < _NEW_SHARE * sketch.events:
        return None
    share = min(sketch.distinct / sketch.events, 1.0)
    return f"has a new id in nearly every lookup ({share:.1%} of {sketch.events:,}), as the key of a session has"


@dataclass(frozen=True, eq=False)
class ProfileResult:
    """Profile of one or more logs.

    Attributes:
        columns: the columns of ids by name.
        log_rows: rows (or event lines) read.
        files: number of files read.
        is_events: whether the logs were `user item` lines; all lines of a user make one sample.
        left_out: for every other column by name, its type or why it was not profiled.
    """

    columns: Mapping[str, ColumnProfile]
    log_rows: int
    files: int
    is_events: bool = False
    left_out: Mapping[str, str] = field(default_factory=dict)

    @property
    def lookups(self) -> int:
        """Number of id lookups in all columns together."""
        return sum(column.sketch.events for column in self.columns.values())

    @property
    def samples(self) -> int:
        """Number of training samples: rows of the log; for event files users, each with a history."""
        return self.columns["user"].sketch.distinct if self.is_events else self.log_rows

    def tables(self, *, dim: int = 64, rows: RowsRule = "distinct") -> list[Table]:
        """Return the tables, in the order of the columns.

        Args:
            dim: embedding dimension of all tables, which a log does not state.
            rows: "distinct" for as many rows as distinct ids (estimated if there are very many); right if ids are hashed or looked up
                in a vocabulary. "max_id" for the largest id + 1; right if ids are row numbers. "numbered": the largest id + 1 if ids
                can be row numbers, distinct ids if they are text or numbers above 2 ** 40.

        Raises:
            InvalidInput: dim is not positive, or rows is "max_id" and a column holds text.
        """
        if rows not in get_args(RowsRule):
            raise InvalidInput(f"rows is {rows!r}, must be 'distinct', 'max_id' or 'numbered'")
        return [self._table(column, dim, rows) for column in self.columns.values()]

    def rank_maps(self, limit: int | None = None) -> dict[str, RankMap]:
        """Return the ids by hotness of every column whose ids can be row numbers; for tables made with rows "max_id" or "numbered".

        Args:
            limit: most ids per column; by default all ids with a known order.

        Raises:
            InvalidInput: limit is not positive.
        """
        if limit is not None and limit < 1:
            raise InvalidInput(f"limit is {limit}; a rank map needs at least 1 id")
        return {
            name: RankMap(max((column.max_id or 0) + 1, column.sketch.distinct), hottest_ids(column.sketch, limit))
            for name, column in self.columns.items()
            if column.is_numbered
        }

    def doubts(self, tables: Sequence[Table]) -> list[Doubt]:
        """Return columns that are probably not features, such as times, labels and keys of sessions; none for event files.

        Args:
            tables: what `tables` returned.
        """
        if self.is_events:
            return []
        doubts = []
        for column, table in zip(self.columns.values(), tables, strict=True):
            reason = (
                _like_time(column)
                or _like_number(column)
                or _like_label(column)
                or _like_count(column, self.columns)
                or _always_new(column)
            )
            if reason:
                doubts.append(Doubt(column.name, reason, table))
        return doubts

    def uneven(self, tables: Sequence[Table]) -> list[str]:
        """Return a warning that names the features whose ids lie in order of popularity, or whose hot ids lie together otherwise.

        Args:
            tables: what `tables` returned.
        """
        crowded, doubted = [], {doubt.column for doubt in self.doubts(tables)}
        for name, column in self.columns.items():
            if name in doubted or column.max_id is None or not _FEWEST_IDS <= column.max_id + 1 <= LARGEST_ROW:
                continue
            shares = id_shares(column.sketch, column.max_id + 1)
            hottest = access_profile(column.sketch).share_of(0, 1)  # lies in one range, however ids are numbered
            busiest = int(np.argmax(shares))
            if shares[busiest] - hottest > _CROWDED / ID_RANGES:
                first = busiest * (column.max_id + 1) // ID_RANGES
                crowded.append(f"{column.name!r} ({shares[busiest]:.0%}, from {first:,} on)")
        if not crowded:
            return []
        return [
            f"most lookups go to one sixteenth of the ids of {', '.join(crowded)}: TorchRec cuts rows by ranges of ids, so that one device "
            "would serve them all; hash or shuffle these ids, or keep row_wise out of the constraints of their tables"
        ]

    def notes(self) -> list[str]:
        """Return a summary for people: a line for the log and one for each column."""
        unit = "event" if self.is_events else "sample"
        lines = [f"{counted(self.files, 'file')}, {counted(self.log_rows, unit)}, {counted(self.lookups, 'lookup')}"]
        lines += [self._note(column) for column in self.columns.values()]
        lines += [f"{name!r} is left out: {reason}" for name, reason in self.left_out.items()]
        return lines

    def _table(self, column: ColumnProfile, dim: int, rule: RowsRule) -> Table:
        rows = column.sketch.distinct
        if rule == "max_id" or (rule == "numbered" and column.is_numbered):
            if column.max_id is None:
                raise InvalidInput(
                    f"column '{column.name}' holds text or hashes, which have no largest id; use rows='distinct' or exclude the column"
                )
            if column.max_id > LARGEST_ROW:
                raise InvalidInput(
                    f"column '{column.name}': its largest id {column.max_id} is no row number (above 2**48); use rows='distinct'"
                )
            rows = max(column.max_id + 1, rows)
        if self.is_events and column.name == "user":
            # A sample is the whole history of a user, so every user is looked up once.
            return Table(column.name, rows, dim, access=flat_profile(column.sketch.distinct, rows))
        return Table(
            column.name,
            rows,
            dim,
            pooling=float(f"{column.sketch.events / self.samples:.6g}"),
            pooled=not (self.is_events or column.is_sequence),
            access=access_profile(column.sketch, rows),
            id_shares=id_shares(column.sketch, rows) if column.max_id is not None and column.max_id < rows else (),
        )

    def _note(self, column: ColumnProfile) -> str:
        sketch = column.sketch
        reason = column.pooling_reason
        if self.is_events:
            reason = (
                "pooled: one sample is the history of a user"
                if column.name == "user"
                else "sequence: the histories of users"
            )
        spread = "exact" if sketch.exact else f"± {sketch.distinct_error:.1%}"
        largest = "" if column.max_id is None else f"; largest id {column.max_id:,}"
        lookups = counted(sketch.events, "lookup")
        return f"{column.name!r}: {counted(sketch.distinct, 'distinct id')} ({spread}), {lookups}{largest}; {reason}"


def save_tables(result: ProfileResult, path: str | Path, *, dim: int = 64, rows: RowsRule = "distinct") -> None:
    """Write the tables of a profile as the `tables` of a task, with its findings as comments (none in JSON); atomic.

    Args:
        result: the profile.
        path: file to write: YAML, or JSON if its name ends in .json.
        dim: embedding dimension of all tables.
        rows: see `ProfileResult.tables`.

    Raises:
        InvalidInput: the options break a rule, or the file cannot be written.
    """
    tables = result.tables(dim=dim, rows=rows)
    text = dump_document({"format": FORMAT, "tables": [table_to_dict(table) for table in tables]}, path)
    if Path(path).suffix.lower() != ".json":
        comments = [
            "Made by `shardwright profile`.",
            *result.notes(),
            *doubts_by_line(result.doubts(tables)),
            *result.uneven(tables),
        ]
        text = "".join(f"# {' '.join(line.split())}\n" for line in comments) + text
    write_atomically(path, text)
