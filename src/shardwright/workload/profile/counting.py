"""Counting the parts of a log, here or on the workers of a cluster, to the same profile bit by bit.

Sketches are merged in the order of the parts, whatever order the workers finish in. Where all ids are counted exactly, any order gives the
same; beyond that, which heavy hitters are forgotten depends on it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

from shardwright.errors import InvalidInput
from shardwright.jobs import WorkerPool
from shardwright.workload.profile.column import ColumnCounter, ColumnProfile
from shardwright.workload.profile.parts import Part, Span

_AHEAD = 4
"""Parts for each worker that may be counted ahead of the first one that is missing: so many wait here to be merged, at most."""


@dataclass(frozen=True, eq=False)
class CountingJob:
    """One part to count.

    Attributes:
        part: the part.
        columns: the columns by name, with nothing counted yet.
        pending: most keys of a column to gather before they go into its sketch.
        list_separator: what separates ids in a CSV field.
    """

    part: Part
    columns: Mapping[str, ColumnProfile]
    pending: int
    list_separator: str | None


@dataclass(frozen=True, eq=False)
class Counts:
    """What was counted.

    Attributes:
        columns: the columns by name.
        rows: rows read.
    """

    columns: Mapping[str, ColumnProfile]
    rows: int = 0

    @property
    def lookups(self) -> int:
        """Lookups of all columns together."""
        return sum(column.sketch.events for column in self.columns.values())


def merge_all(empty: Mapping[str, ColumnProfile], parts: Iterable[Counts]) -> Counts:
    """The counts of all parts together, merged in this order and column by column: two sketches of each are held at once."""
    total, rows = dict(empty), 0
    for part in parts:
        rows += part.rows
        for name, column in part.columns.items():
            total[name] = total[name].merged(column)
        del part, column  # or they would take their memory until the next part is counted
    return Counts(total, rows)


def count_part(
    job: CountingJob, threads: int | None = None, counted: Callable[[int], None] = lambda lookups: None
) -> Counts:
    """Count a part, the columns of a batch side by side.

    Args:
        job: the part.
        threads: how many threads count; by default one for each core.
        counted: called with the lookups of each batch.

    Raises:
        InvalidInput: a file of it is gone, damaged or another one, or an id is not valid.
    """
    first, *_ = names = list(job.columns)
    counters = {name: ColumnCounter(column, job.pending) for name, column in job.columns.items()}
    rows = 0
    with ThreadPoolExecutor(max_workers=threads or len(os.sched_getaffinity(0))) as pool:
        for span in job.part.spans:
            log = span.open(job.list_separator)
            for batch in log.batches(names, range(span.first, span.stop)):
                found = [name for name in names if name in batch.schema.names]
                work = [(counters[name], batch.column(name), f"{log.path}: column '{name}'") for name in found]
                counted(sum(pool.map(ColumnCounter.add, *zip(*work, strict=True))))
                rows += batch.num_rows * (first in found)
    return Counts({name: counter.finish() for name, counter in counters.items()}, rows)


def counts_here(jobs: Sequence[CountingJob], counted: Callable[[int], None]) -> Iterator[Counts]:
    """The counts of parts in their order, counted one after another in this process; see `count_part`."""
    return (count_part(job, counted=counted) for job in jobs)


def counts_by(pool: WorkerPool, jobs: Sequence[CountingJob], counted: Callable[[int], None]) -> Iterator[Counts]:
    """The counts of parts in their order, counted by workers that see the files under the same absolute paths.

    Raises:
        InvalidInput: as `count_part`, of the first part that cannot be counted, whichever was the first to fail.
    """
    early: dict[int, Counts | str] = {}
    given = 0
    for due, job in enumerate(jobs):
        while due not in early:
            while pool.free and given < min(len(jobs), due + _AHEAD * pool.size):
                pool.give(given, _counted_or_refused, _with_absolute_paths(jobs[given]))
                given += 1
            for number, found in pool.wait():
                early[number] = found
                if not isinstance(found, str):
                    counted(found.lookups)
        part = early.pop(due)
        if isinstance(part, str):
            _wait_for(given - due - 1 - len(early), pool)
            raise InvalidInput(_as_named(part, job.part))
        yield part


def _wait_for(jobs: int, pool: WorkerPool) -> None:
    """Let the jobs that are handed out finish, so that the pool may be used again."""
    while jobs > 0:
        jobs -= len(pool.wait())


def no_state() -> None:
    """What workers that count keep between two parts."""


def _counted_or_refused(_: None, job: CountingJob) -> Counts | str:
    """The counts, or why there are none: a part before this one may have a complaint that comes first."""
    try:
        return count_part(job, threads=1)
    except InvalidInput as error:
        return str(error)


def _with_absolute_paths(job: CountingJob) -> CountingJob:
    """For workers, which run in another folder."""
    return replace(job, part=Part(tuple(map(_absolute, job.part.spans))))


def _absolute(span: Span) -> Span:
    return replace(span, file=replace(span.file, path=span.file.path.absolute()))


def _as_named(message: str, part: Part) -> str:
    """A worker's complaint with the paths as the user named them."""
    names: dict[Path, Path] = {span.file.path.absolute(): span.file.path for span in part.spans}
    for absolute, named in names.items():
        if message.startswith(f"{absolute}: "):
            return f"{named}{message.removeprefix(str(absolute))}"
    return message
