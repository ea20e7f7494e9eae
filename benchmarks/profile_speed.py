"""Speed and memory of `profile_logs` on generated Parquet logs: writes results/profile_speed.md.

    python -m benchmarks.profile_speed [--events 50_000_000] [--folder /tmp]

Each log is written first, untimed, then profiled in its own process. The page gives the wall time from the call to the tables, and the peak
memory with imports. The default number of events takes under 2 minutes.
"""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.program import HIDDEN, options_of, peak_memory, run_apart

Integers = npt.NDArray[np.int64]

ROWS_AT_ONCE = 1 << 18
SCALAR_ROWS = (10, 1_000, 20_000, 100_000, 500_000, 1_000_000, 3_000_000, 10_000_000, 40_000_000, 100_000_000)


def zipf(rng: np.random.Generator, size: int, rows: int, exponent: float) -> Integers:
    """Draw `(size,)` ids in [0, rows), about Zipf distributed, with hot ids scattered."""
    power = 1 - exponent
    ranks = ((rows**power - 1) * rng.random(size) + 1) ** (1 / power)
    return (ranks.astype(np.int64) * 2_654_435_761) % rows


def mixed_batch(rng: np.random.Generator, samples: int) -> dict[str, Any]:
    """10 columns of one id, a multi-hot column (mean 10 ids), a sequence column (mean 60), a float column that is left out."""
    batch: dict[str, Any] = {f"id_{rows}": zipf(rng, samples, rows, 1.05) for rows in SCALAR_ROWS}
    batch["tags"] = lists(rng.integers(0, 21, samples), lambda size: zipf(rng, size, 50_000, 1.2))
    batch["history"] = lists(rng.integers(0, 121, samples), lambda size: zipf(rng, size, 20_000_000, 1.1))
    batch["price"] = rng.random(samples)
    return batch


def distinct_batch(rng: np.random.Generator, samples: int) -> dict[str, Any]:
    """The worst case: one column in which hardly any id occurs twice."""
    return {"request": rng.integers(0, 2**62, samples)}


def text_batch(rng: np.random.Generator, samples: int) -> dict[str, Any]:
    """Two columns of text ids."""
    import pyarrow as pa

    numbers = (zipf(rng, samples, 1_000, 1.05), zipf(rng, samples, 30_000_000, 1.05))
    return {f"text_{i}": pa.array(ids).cast(pa.string()) for i, ids in enumerate(numbers)}


def lists(lengths: Integers, ids: Callable[[int], Integers]) -> Any:
    """Return a column of lists of these lengths."""
    import pyarrow as pa

    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    return pa.ListArray.from_arrays(pa.array(offsets), pa.array(ids(int(offsets[-1]))))


CASES: dict[str, tuple[Callable[[np.random.Generator, int], dict[str, Any]], float, float]] = {
    # name: (batch, events per sample, share of the events asked for)
    "mixed: 10 scalar, 2 list columns": (mixed_batch, 80, 1.0),
    "one column, all ids distinct": (distinct_batch, 1, 1.0),
    "two text columns": (text_batch, 2, 0.4),
}


def write_log(path: Path, case: str, events: int) -> None:
    """Write a log of about this many events."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    make, events_per_sample, share = CASES[case]
    rng = np.random.default_rng(0)
    samples = max(1, round(events * share / events_per_sample))
    with pq.ParquetWriter(path, pa.table(make(rng, 1)).schema) as writer:
        for start in range(0, samples, ROWS_AT_ONCE):
            writer.write_table(pa.table(make(rng, min(ROWS_AT_ONCE, samples - start))))


def profile_here(path: str) -> dict[str, Any]:
    """Profile a log in this process."""
    from shardwright.workload.profile import profile_logs

    begin = time.perf_counter()
    result = profile_logs(path)
    tables = result.tables()
    seconds = time.perf_counter() - begin
    return {"events": result.lookups, "tables": len(tables), "seconds": seconds, "peak_bytes": peak_memory()}


def measured_rows(events: int, folder: str | None) -> list[tuple[str, ...]]:
    """Measure each case; returns one row per case."""
    rows = []
    with tempfile.TemporaryDirectory(dir=folder) as temporary:
        for case in CASES:
            path = Path(temporary, "log.parquet")
            write_log(path, case, events)
            figures = run_apart("profile_speed", "--profile-only", path)
            rows.append((
                case, f"{figures['events']:,}", str(figures["tables"]), f"{path.stat().st_size / 1e6:.0f}", f"{figures['seconds']:.2f}",
                f"{figures['events'] / figures['seconds'] / 1e6:.1f}", f"{figures['peak_bytes'] / 1e6:.0f}",
            ))  # fmt: skip
    return rows


def main() -> None:
    options = options_of(
        __doc__, None, events=(50_000_000, "id lookups of the largest log"),
        folder=(None, "where to write the logs; default the system's temporary folder"), profile_only=(None, HIDDEN, {"metavar": "LOG"}),
    )  # fmt: skip
    if options.profile_only:
        print(json.dumps(profile_here(options.profile_only)))
        return
    from benchmarks.results_table import write_results

    caption = "One Parquet log each, profiled in a separate process."
    heads = ("log", "events", "tables", "file MB", "seconds", "million events/s", "peak memory MB")
    command = f"python -m benchmarks.profile_speed --events {options.events}"
    tables = [(caption, heads, measured_rows(options.events, options.folder))]
    write_results("profile_speed", "Profiling logs", tables, command)


if __name__ == "__main__":
    main()
