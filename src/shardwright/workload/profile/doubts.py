"""Columns that hold ids by their type, and by their values are hardly features: times, numbers, labels, keys of sessions.

A table of one costs memory and learns nothing, or learns the answer. The rules are made for few false alarms, so they miss some.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import date, datetime

from shardwright.task import DTYPE_BYTES, Table
from shardwright.task.units import format_bytes
from shardwright.workload.profile.column import ColumnProfile

_UNITS = {"seconds": 10**9, "milliseconds": 10**12, "microseconds": 10**15, "nanoseconds": 10**18}
_LATEST = 2.2  # billions of seconds since 1970: the range is 2001 to 2039, where few ids of other kinds all lie
_MOST_NANOSECONDS = (
    4e16  # 15 months: ids that begin with a time, as those of posts do, are as large and spread over years
)
_TIME_TEXT = re.compile(r"\d{4}-\d\d-\d\d([T ]\d\d:\d\d.*)?|\d\d:\d\d(:\d\d.*)?")
_NUMBER_TEXT = re.compile(r"[+-]?\d*\.\d+([eE][+-]?\d+)?")
_LABEL_WORDS = {"label", "labels", "target", "click", "clicked", "converted", "conversion", "purchased"}

_FEWEST_TIMES = 3
_FEWEST_NUMBERS = 100  # versions are numbers with a dot, and few
_MOST_LABELS = 10
_FEWEST_FLAGS = 100
_FEWEST_NEW = 1000
_NEW_SHARE = 0.9


@dataclass(frozen=True)
class Doubt:
    """A column that is hardly a feature.

    Attributes:
        column: its name.
        reason: what it looks like, and by which of its values.
        table: the table that was made of it.
    """

    column: str
    reason: str
    table: Table

    def __str__(self) -> str:
        one = self.table
        return (
            f"{self.column!r} {self.reason}; its table takes {format_bytes(one.weight_bytes)} "
            f"({one.rows:,} rows x dim {one.dim} x {DTYPE_BYTES[one.dtype]} bytes)"
        )


def doubts(columns: Iterable[ColumnProfile], tables: Iterable[Table]) -> list[Doubt]:
    """The columns that are hardly features, each with the first reason that applies.

    Args:
        columns: the columns.
        tables: the table of each.
    """
    found = []
    for column, table in zip(columns, tables, strict=True):
        reason = _like_time(column) or _like_number(column) or _like_label(column) or _always_new(column)
        if reason:
            found.append(Doubt(column.name, reason, table))
    return found


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
    """The day that a number such as 20240117 writes, from 1990 to 2039."""
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
