"""What profiling found, and the tables that follow from it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, TypeAlias, get_args

from shardwright.errors import InvalidInput
from shardwright.sharding.rank_map import RankMap
from shardwright.task import Table
from shardwright.workload.profile.column import ColumnProfile
from shardwright.workload.profile.curve import access_profile, flat_profile
from shardwright.workload.profile.doubts import Doubt, doubts
from shardwright.workload.profile.ranking import hottest_ids

RowsRule: TypeAlias = Literal["distinct", "max_id", "numbered"]

LARGEST_ROW = 2**48
"""Largest id that is taken for the number of a row."""


@dataclass(frozen=True, eq=False)
class ProfileResult:
    """Profile of one or more logs; profiles of parts of a log merge into that of the whole.

    Attributes:
        columns: the columns of ids by name.
        log_rows: rows (or event lines) read.
        files: number of files read.
        is_events: whether the logs were `user item` lines, of which all of a user's make one sample.
        left_out: type, or why not profiled, of every other column by name.
    """

    columns: Mapping[str, ColumnProfile]
    log_rows: int
    files: int
    is_events: bool = False
    left_out: Mapping[str, str] = field(default_factory=dict)

    @property
    def lookups(self) -> int:
        """Id lookups seen in all columns together."""
        return sum(column.sketch.events for column in self.columns.values())

    @property
    def samples(self) -> int:
        """Training samples: the rows of the log; in event files the users, each with a history."""
        return self.columns["user"].sketch.distinct if self.is_events else self.log_rows

    def merged(self, other: ProfileResult) -> ProfileResult:
        """Profile of both logs together: what one profile of all files would be, within the sketches' error.

        Raises:
            InvalidInput: the profiles are of different columns or kinds of log.
        """
        if set(self.columns) != set(other.columns) or self.is_events != other.is_events:
            raise InvalidInput(
                f"profiles of different columns do not merge: {', '.join(self.columns)} and {', '.join(other.columns)}; "
                "profile logs with the same columns, or select common ones with `columns`"
            )
        return replace(
            self,
            columns={name: column.merged(other.columns[name]) for name, column in self.columns.items()},
            log_rows=self.log_rows + other.log_rows,
            files=self.files + other.files,
            left_out={**self.left_out, **other.left_out},
        )

    def tables(self, *, dim: int = 64, rows: RowsRule = "distinct") -> list[Table]:
        """The tables, in the order of the columns.

        Args:
            dim: embedding dimension of all of them; a log does not tell.
            rows: "distinct" for as many rows as ids were seen (estimated where there are very many); right where ids are hashed
                or looked up in a vocabulary. "max_id" for the largest id + 1: right where ids are row numbers. "numbered": the largest
                id + 1 where ids can be row numbers, distinct ids where they are text or numbers above 2 ** 40.

        Raises:
            InvalidInput: dim is not positive, or rows is "max_id" and a column holds text.
        """
        if rows not in get_args(RowsRule):
            raise InvalidInput(f"rows is {rows!r}, must be 'distinct', 'max_id' or 'numbered'")
        return [self._table(column, dim, rows) for column in self.columns.values()]

    def rank_maps(self, limit: int | None = None) -> dict[str, RankMap]:
        """The ids of every column by hotness, where they can be row numbers; for tables with the rows of "max_id" or "numbered".

        Args:
            limit: most ids of a column; default all of which the order is known.

        Raises:
            InvalidInput: limit is not positive.
        """
        if limit is not None and limit < 1:
            raise InvalidInput(f"rank maps of {limit} ids; they must have at least 1")
        return {
            name: RankMap(max((column.max_id or 0) + 1, column.sketch.distinct), hottest_ids(column.sketch, limit))
            for name, column in self.columns.items()
            if column.is_numbered
        }

    def doubts(self, tables: Sequence[Table]) -> list[Doubt]:
        """The columns that are hardly features, such as times, labels and keys of sessions; none of events, which name their columns.

        Args:
            tables: what `tables` returned.
        """
        return [] if self.is_events else doubts(self.columns.values(), tables)

    def notes(self) -> list[str]:
        """What was found, a line for the log and one for each column, for people."""
        unit = "events" if self.is_events else "samples"
        lines = [
            f"{self.files} {'file' if self.files == 1 else 'files'}, {self.log_rows:,} {unit}, {self.lookups:,} lookups"
        ]
        lines += [self._note(column) for column in self.columns.values()]
        lines += [f"{name!r} is left out: {reason}" for name, reason in self.left_out.items()]
        return lines

    def _table(self, column: ColumnProfile, dim: int, rule: RowsRule) -> Table:
        rows = column.sketch.distinct
        if rule == "max_id" or (rule == "numbered" and column.is_numbered):
            if column.max_id is None:
                raise InvalidInput(
                    f"column '{column.name}' holds text, which has no largest id; use rows='distinct' or exclude the column"
                )
            if column.max_id > LARGEST_ROW:
                raise InvalidInput(
                    f"column '{column.name}': its largest id {column.max_id} is no row number (above 2**48); use rows='distinct'"
                )
            rows = max(column.max_id + 1, rows)
        if self.is_events and column.name == "user":
            # A sample is the whole history of a user: every user seen is looked up once.
            return Table(column.name, rows, dim, access=flat_profile(column.sketch.distinct, rows))
        return Table(
            column.name,
            rows,
            dim,
            pooling=float(f"{column.sketch.events / self.samples:.6g}"),
            pooled=not (self.is_events or column.is_sequence),
            access=access_profile(column.sketch, rows),
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
        return f"{column.name!r}: {sketch.distinct:,} distinct ids ({spread}), {sketch.events:,} lookups{largest}; {reason}"
