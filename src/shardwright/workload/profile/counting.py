"""The profile of one column of ids, and the counting of a log's parts, in this process or on the workers of a cluster.

Both give the same profile bit by bit. Sketches are merged in the order of the parts, even if workers finish in another order. While all ids
are counted exactly, any order gives the same result; beyond that, the order decides which heavy hitters are forgotten.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from shardwright.cluster import Pool
from shardwright.errors import InvalidInput
from shardwright.workload.profile.formats import ColumnKind, Reading, is_empty_type, is_text_type
from shardwright.workload.profile.readers import Part
from shardwright.workload.profile.sketch import AccessSketch, Keys, hash_keys, integer_keys, text_keys

if TYPE_CHECKING:
    import pyarrow as pa

SEQUENCE_LENGTH = 100
"""A list column counts as a sequence if a sample has more ids than this (multi-hot features of MLPerf's DLRM have up to 100)."""


_AHEAD = 4
"""Parts per worker that are counted before they are merged; this bounds how many wait here."""

_ROW_NUMBERS = 2**40
_EXAMPLES = 20
_EXAMPLE_CHARACTERS = 40


@dataclass(frozen=True, eq=False)
class ColumnProfile:
    """The profile of one column of ids.

    Attributes:
        name: name of the column.
        kind: integers or text, as one id a sample or as lists.
        sketch: number of lookups of each id.
        pooled: whether the user stated that the ids of a sample are summed; None: the longest list decides.
        longest: most ids of one sample.
        max_id: the largest id; None if ids are text or there are none.
        min_id: the smallest id; None like `max_id`.
        examples: the first few ids if they are text, long ones cut short.
        hashed: whether integers are hashes: they may be negative, and their size means nothing.
        refused: why the column's ids cannot be counted; empty if they can.
    """

    name: str
    kind: ColumnKind
    sketch: AccessSketch
    pooled: bool | None = None
    longest: int = 0
    max_id: int | None = None
    min_id: int | None = None
    examples: tuple[str, ...] = ()
    hashed: bool = False
    refused: str = ""

    @property
    def is_numbered(self) -> bool:
        """Whether its ids can be row numbers: integers up to 2 ** 40, since no table has more rows."""
        return self.max_id is not None and self.max_id <= _ROW_NUMBERS

    @property
    def is_sequence(self) -> bool:
        """Whether the looked-up rows of a sample stay separate.

        Logs do not state it. The user's choice decides; without one, a list column is a sequence if a list has over `SEQUENCE_LENGTH` ids.
        """
        if self.pooled is not None:
            return not self.pooled
        return self.kind.is_list and self.longest > SEQUENCE_LENGTH

    @property
    def pooling_reason(self) -> str:
        """Why the table counts as pooled or as a sequence."""
        if self.pooled is not None:
            return "sequence, as told" if self.is_sequence else "pooled, as told"
        if not self.kind.is_list:
            return "pooled: one id a sample"
        if self.is_sequence:
            return f"sequence: its longest list has {self.longest:,} ids, more than {SEQUENCE_LENGTH}"
        return f"pooled: its longest list has {self.longest:,} ids, at most {SEQUENCE_LENGTH}"

    def merged(self, other: ColumnProfile) -> ColumnProfile:
        """Return the profile of both columns' events together."""
        return replace(
            self,
            sketch=self.sketch.merged(other.sketch),
            longest=max(self.longest, other.longest),
            examples=(self.examples + other.examples)[:_EXAMPLES],
            refused=self.refused or other.refused,
        )._with_ids(other.min_id, other.max_id)

    def _with_ids(self, *ids: int | None) -> ColumnProfile:
        """Return this column with these ids added."""
        known = [number for number in (self.min_id, self.max_id, *ids) if number is not None]
        return replace(self, min_id=min(known, default=None), max_id=max(known, default=None))


class ColumnCounter:
    """Count one column: keys are gathered until merging them into the sketch is worthwhile.

    Args:
        column: the profile to continue.
        pending: most keys to gather.
    """

    def __init__(self, column: ColumnProfile, pending: int) -> None:
        self.column = column
        self._most_pending = pending
        self._pending: list[Keys] = []
        self._pending_keys = 0

    def add(self, values: pa.Array, where: str) -> int:
        """Count the ids of a batch; a column with an id that is negative or too long is refused, and counts no more.

        Args:
            values: `(samples,)` ids or lists of ids.
            where: file and column, for messages.

        Returns:
            The number of lookups.
        """
        if is_empty_type(values.type) or self.column.refused:
            return 0
        try:
            return self._add(values, where)
        except InvalidInput as error:
            self._pending, self._pending_keys = [], 0
            empty = AccessSketch(self.column.sketch.limit)
            self.column = replace(self.column, sketch=empty, refused=str(error))
            return 0

    def _add(self, values: pa.Array, where: str) -> int:
        if self.column.kind.is_list:
            import pyarrow.compute as pc

            longest = pc.max(pc.list_value_length(values)).as_py() or 0
            values = values.flatten()
        else:
            longest = int(values.null_count < len(values))
        values = values.drop_null()
        lookups = 0
        for start in range(0, len(values), self._most_pending):
            some = values.slice(start, self._most_pending)
            keys, *ends = _keys(some, where, self.column.hashed)
            lookups += keys.size
            self._gather(keys)
            self.column = self.column._with_ids(*ends)
        self.column = replace(
            self.column,
            longest=max(self.column.longest, longest),
            examples=self.column.examples + self._examples(values),
        )
        return lookups

    def _examples(self, values: pa.Array) -> tuple[str, ...]:
        """Return as many of these ids as there are examples missing."""
        if self.column.kind.ids != "text":
            return ()
        texts = values.slice(0, _EXAMPLES - len(self.column.examples)).to_pylist()
        known = [
            text.decode("utf-8", "replace") if isinstance(text, bytes) else text for text in texts if text is not None
        ]
        return tuple(text[:_EXAMPLE_CHARACTERS] for text in known)

    def finish(self) -> ColumnProfile:
        """Return the column's profile with everything counted."""
        if self._pending:
            chunk = AccessSketch.of(np.concatenate(self._pending), self.column.sketch.limit)
            self._pending, self._pending_keys = [], 0
            self.column = replace(self.column, sketch=self.column.sketch.merged(chunk))
        return self.column

    def _gather(self, keys: Keys) -> None:
        if self._pending_keys + keys.size > self._most_pending:
            self.finish()
        self._pending.append(keys)
        self._pending_keys += keys.size


def _keys(ids: pa.Array, where: str, hashed: bool) -> tuple[Keys, int | None, int | None]:
    """Return `(n,)` keys of ids without nulls, and the smallest and largest id if they are integers that number rows."""
    import pyarrow as pa

    if pa.types.is_dictionary(ids.type):
        words = ids.dictionary
        if is_text_type(words.type) and not words.null_count and len(words) <= len(ids):
            return text_keys(words, where)[ids.indices.to_numpy()], None, None  # each text is hashed once
        return _keys(ids.dictionary_decode().drop_null(), where, hashed)
    if pa.types.is_integer(ids.type):
        return (hash_keys(ids), None, None) if hashed else integer_keys(ids, where)
    return text_keys(ids, where), None, None


@dataclass(frozen=True, eq=False)
class CountingJob:
    """The counting of one part.

    Attributes:
        part: the part.
        columns: the columns by name, with no counts yet.
        pending: most keys of a column to gather before merging them into its sketch.
        reading: properties that the files do not state.
    """

    part: Part
    columns: Mapping[str, ColumnProfile]
    pending: int
    reading: Reading


@dataclass(frozen=True, eq=False)
class Counts:
    """The counts of one or more parts.

    Attributes:
        columns: the columns by name.
        rows: number of rows read.
    """

    columns: Mapping[str, ColumnProfile]
    rows: int = 0

    @property
    def lookups(self) -> int:
        """Lookups of all columns together."""
        return sum(column.sketch.events for column in self.columns.values())


def merge_all(empty: Mapping[str, ColumnProfile], parts: Iterable[Counts]) -> Counts:
    """Merge the counts of all parts, in this order and column by column, with at most two sketches of a column in memory."""
    total, rows = dict(empty), 0
    for part in parts:
        rows += part.rows
        for name, column in part.columns.items():
            total[name] = total[name].merged(column)
        del part, column  # free their memory while the next part is counted
    return Counts(total, rows)


def count_part(
    job: CountingJob, threads: int | None = None, counted: Callable[[int], None] = lambda lookups: None
) -> Counts:
    """Count a part, with the columns of a batch in parallel.

    Args:
        job: the part.
        threads: number of threads; by default one for each core.
        counted: called with the lookups of each batch.

    Raises:
        InvalidInput: a file of the part is missing, damaged or has changed.
    """
    first, *_ = names = list(job.columns)
    counters = {name: ColumnCounter(column, job.pending) for name, column in job.columns.items()}
    rows = 0
    with ThreadPoolExecutor(max_workers=threads or len(os.sched_getaffinity(0))) as pool:
        for span in job.part:
            log = span.open(job.reading)
            for batch in log.batches(names, range(span.first, span.stop)):
                present = [name for name in names if name in batch.schema.names]
                work = [(counters[name], batch.column(name), f"{log.path}: column '{name}'") for name in present]
                counted(sum(pool.map(ColumnCounter.add, *zip(*work, strict=True))))
                rows += batch.num_rows * (first in present)
    return Counts({name: counter.finish() for name, counter in counters.items()}, rows)


def counts_by(pool: Pool[None], jobs: Sequence[CountingJob], counted: Callable[[int], None]) -> Iterator[Counts]:
    """Yield the counts of parts in their order, from workers that see the files under the same absolute paths.

    Raises:
        InvalidInput: as `count_part`, for the first part in the log's order that fails, even if another failed earlier.
    """
    at_once = _AHEAD * pool.size
    for first in range(0, len(jobs), at_once):
        parts = jobs[first : first + at_once]
        outcomes: dict[int, Counts | InvalidInput] = {}
        for (number, _), part in pool.map(_counted_or_refused, enumerate(map(_with_absolute_paths, parts))):
            outcomes[number] = part
            if isinstance(part, Counts):
                counted(part.lookups)
        for number, job in enumerate(parts):
            part = outcomes.pop(number)
            if isinstance(part, InvalidInput):
                part.args = (_as_named(str(part), job.part),)
                raise part
            named = {
                name: replace(each, refused=_as_named(each.refused, job.part)) for name, each in part.columns.items()
            }
            yield replace(part, columns=named)


def no_state() -> None:
    """The state that counting workers keep between two parts: none."""


def _counted_or_refused(_: None, numbered: tuple[int, CountingJob]) -> Counts | InvalidInput:
    """Return the counts, or the error: that of an earlier part must come first."""
    try:
        return count_part(numbered[1], threads=1)
    except InvalidInput as error:
        return error


def _with_absolute_paths(job: CountingJob) -> CountingJob:
    """Make the paths absolute for workers, which run in another folder."""
    files = ((span, replace(span.file, path=span.file.path.absolute())) for span in job.part)
    return replace(job, part=tuple(replace(span, file=file) for span, file in files))


def _as_named(message: str, part: Part) -> str:
    """Return a worker's error with the paths as the user named them."""
    for span in part:
        named, absolute = span.file.path, str(span.file.path.absolute())
        if message.startswith(f"{absolute}: "):
            return f"{named}{message.removeprefix(absolute)}"
    return message
