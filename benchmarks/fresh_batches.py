"""Step time on fresh batches against one repeated batch, by the bytes that a batch reads.

    python -m benchmarks.fresh_batches --sets 120

Random sets of tables are timed three times in a row in one process: on fresh batches, on one batch repeated, and on fresh batches again.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from benchmarks import results_table
from benchmarks.program import options_of
from shardwright.hardware import cache_bytes
from shardwright.measure import fused
from shardwright.measure.device_work import DeviceWork, Visit
from shardwright.measure.sampling import SampleSpace
from shardwright.measure.worker import ReservedCore, Session, WorkerOptions
from shardwright.task.table import row_bytes
from shardwright.workload.generators import table_pool

EDGES = (0.0, 1 / 16, 1 / 4, 1.0, np.inf)
ARENA_BYTES = 4_000_000_000


def main(arguments: Sequence[str] | None = None) -> None:
    options = options_of(__doc__, arguments, sets=120)
    core = ReservedCore()
    core.pin()
    space = SampleSpace(tuple(table_pool("dlrm-2021")), seed=5)
    session = Session(WorkerOptions("cpu", "fbgemm", ARENA_BYTES))
    every = [timed(session, space.draw(number).work) for number in range(options.sets)]
    quiet = [timed_set for timed_set in every if timed_set[1]]
    heads = (
        "rows of a batch / last-level cache", "sets", "fresh / repeated, median", "10th to 90th percentile", "fresh / fresh",
    )  # fmt: skip
    rows = [row for low, high in pairwise(EDGES) if (row := row_of(quiet, low, high)) is not None]
    caption = (
        f"Forward and backward of {len(quiet)} random sets of tables, of {len(every)}: those during which the machine was quiet. Fresh: as "
        f"many batches as fill the last-level cache ({cache_bytes()[1] >> 20} MiB) twice. The last column is the same set timed twice."
    )
    command = results_table.command_of("fresh_batches", arguments)
    results_table.write_results(
        "fresh_batches", "Fresh batches against one repeated", [(caption, heads, rows)], command
    )


def timed(session: Session, work: DeviceWork) -> tuple[float, bool, float, float]:
    """Return bytes of distinct rows in a batch, whether all visits were quiet, fresh / repeated time, and fresh / fresh."""
    first, repeated, again = (visit(session, work, batches) for batches in (None, 1, None))
    read = sum(shard.access.distinct_rows(shard.lookups) * row_bytes(shard.dtype, shard.dim) for shard in work.works)
    times = [visited.forward_ms + visited.backward_ms for visited in (first, repeated, again)]
    return read, first.quiet and repeated.quiet and again.quiet, times[0] / times[1], times[2] / times[0]


def visit(session: Session, work: DeviceWork, batches: int | None) -> Visit:
    """Visit a set with this many batches; None for the usual number."""
    usual = fused.fresh_batches
    if batches is not None:
        fused.fresh_batches = lambda works, cache_bytes: batches
    try:
        return session.visit(work)
    finally:
        fused.fresh_batches = usual


def row_of(sets: Sequence[tuple[float, bool, float, float]], low: float, high: float) -> tuple[str, ...] | None:
    """Return the row of the sets that read between two multiples of the cache; None without such sets."""
    cache = cache_bytes()[1]
    inside = np.array([(ratio, again) for read, _, ratio, again in sets if low <= read / cache < high])
    if not len(inside):
        return None
    less, middle, more = np.percentile(inside[:, 0], (10, 50, 90))
    name = f"{low:.2f} to {high:.2f}" if np.isfinite(high) else f"over {low:.2f}"
    return name, str(len(inside)), f"{middle:.3f}", f"{less:.3f} to {more:.3f}", f"{np.median(inside[:, 1]):.3f}"


if __name__ == "__main__":
    main()
