"""Roofline of a sample store: bytes that fused calls must move, over their time, against the copy bandwidth of the device.

    python -m benchmarks.gpu_roofline data/costs/h200/rowwise_adagrad data/costs/h200/sgd

A store made by `scripts/collect_gpu.sh` has the copy bandwidth in its checks.json; for other stores give --ceiling.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks import results_table
from benchmarks.program import options_of
from shardwright.cost.features import WorkArrays
from shardwright.errors import InvalidInput
from shardwright.files import parse_document
from shardwright.measure.checks import CHECKS
from shardwright.measure.samples import fingerprints, read_samples
from shardwright.modelling.dataset import Samples, samples_of

Floats = npt.NDArray[np.float64]

PHASES = ("forward", "backward")
TABLES = ((1, 1), (2, 2), (3, 4), (5, 8), (9, 15), (16, 30), (31, 60))
STATE_BYTES = {"sgd": 0, "rowwise_adagrad": 4}
"""Bytes of optimizer state per row."""

_SECTOR = 32  # bytes: the least that a GPU reads from its memory
_SMALLEST = 20  # sets whose median time stands for a launch without work
FEWEST = 5  # fewest sets for which a figure is stated


@dataclass(frozen=True)
class Roofline:
    """Measured times and moved bytes of n sets on one device.

    Attributes:
        moved: `(n, 2)` bytes that forward and backward must move at least.
        times: `(n, 2)` measured ms.
        tables: `(n,)` shards of each set.
        calls: `(n,)` fused calls of each set.
        batch_size: `(n,)` samples of the batch.
        ceiling: bytes per second that a copy reads and writes.
    """

    moved: Floats
    times: Floats
    tables: npt.NDArray[np.int64]
    calls: npt.NDArray[np.int64]
    batch_size: npt.NDArray[np.int64]
    ceiling: float

    @property
    def share(self) -> Floats:
        """`(n, 2)` share of the ceiling that each set reaches."""
        return self.moved / (self.times / 1e3) / self.ceiling

    @property
    def launch_ms(self) -> Floats:
        """`(2,)` ms of a fused call with next to no work: the median over the single calls that must move least."""
        single = np.flatnonzero(self.calls == 1)
        smallest = [single[np.argsort(self.moved[single, phase])[:_SMALLEST]] for phase in range(2)]
        return np.array([np.median(self.times[chosen, phase]) for phase, chosen in enumerate(smallest)])

    @property
    def latency_bound(self) -> npt.NDArray[np.bool_]:
        """`(n, 2)` whether moving the bytes at the ceiling would take less time than launching the set's calls."""
        return 1e3 * self.moved / self.ceiling < self.launch_ms * self.calls[:, None]


def main(arguments: Sequence[str] | None = None) -> None:
    options = options_of(
        __doc__, arguments,
        stores=(None, "sample stores of one machine, or Parquet files", {"positional": True, "nargs": "+", "type": Path}),
        ceiling=(float, "GB/s that a copy reads and writes (default: of checks.json)"),
        name=("gpu_roofline", "name of the page"),
    )  # fmt: skip
    ceiling = 1e9 * options.ceiling if options.ceiling else measured_ceiling(options.stores)
    sets = joined([roofline_of(read_samples(store), ceiling) for store in options.stores])
    hardware = fingerprints(options.stores[0])[0]
    results_table.write_results(
        options.name,
        f"Fused lookups against copy bandwidth on {hardware['processor']}",
        [size_table(sets), *(batch_table(sets, phase) for phase in range(2))],
        results_table.command_of("gpu_roofline", arguments),
        f"{hardware['processor']}, torch {hardware['torch']}, FBGEMM {hardware['fbgemm']}",
    )


def measured_ceiling(stores: Sequence[Path]) -> float:
    """Return bytes per second of the fastest memory copy, measured before the samples; copies that a cache holds do not count."""
    for store in stores:
        path = (store if store.is_dir() else store.parent) / CHECKS
        if path.exists():
            checks: Any = parse_document(path, "outcome of checks")
            return float(checks["ceiling_bytes_per_s"])
    raise InvalidInput(f"{stores[0]}: has no {CHECKS} with a copy bandwidth; give it with --ceiling GB/s")


def roofline_of(table: Any, ceiling: float) -> Roofline:
    """Return the sets of a store, without repeats."""
    samples = samples_of(table)
    optimizers = table["optimizer"].to_pylist()
    unknown = sorted(set(optimizers) - STATE_BYTES.keys())
    if unknown:
        raise InvalidInput(
            f"optimizer {unknown[0]}: the bytes of {' and '.join(STATE_BYTES)} are counted only; export these with --optimizer"
        )
    state = np.array([STATE_BYTES[name] for name in optimizers], dtype=np.float64)
    moved = bytes_moved(samples.works, np.repeat(state, samples.shard_counts))
    of_sets = np.add.reduceat(moved, samples.starts[:-1], axis=0)
    batch_sizes = np.asarray(table["batch_size"], dtype=np.int64)
    columns = (of_sets, samples.times, samples.shard_counts, fused_calls(samples), batch_sizes)
    return Roofline(*(column[samples.repeat == 0] for column in columns), ceiling)


def bytes_moved(works: WorkArrays, state: Floats) -> Floats:
    """`(m, 2)` bytes that the lookups and the update of m shards must move at least.

    Each input is read once and each output is written once: ids, offsets, every distinct row in whole sectors, and the looked-up values or
    their gradients. Backward also writes the rows, and reads and writes their state, in whole sectors too.

    Args:
        works: the shards.
        state: `(m,)` bytes of optimizer state per row.
    """
    outputs = 4 * works.outputs * works.dim
    ids = 8 * works.lookups + 8 * works.bags
    weights, states = in_sectors(works, works.dim * works.weight_size), in_sectors(works, state)
    return np.stack([ids + weights + outputs, ids + 2 * (weights + states) + outputs], axis=1)


def in_sectors(works: WorkArrays, size: Floats) -> Floats:
    """Return `(m,)` bytes of the sectors that hold `size` bytes of each distinct row.

    Looked-up rows lie scattered, so no two share a sector; but the count is never above all sectors of the table.
    """
    return _SECTOR * np.minimum(works.distinct * np.ceil(size / _SECTOR), np.ceil(works.rows * size / _SECTOR))


def fused_calls(samples: Samples) -> npt.NDArray[np.int64]:
    """`(n,)` fused calls of each set: see `shardwright.measure.backend`."""
    works = samples.works
    kinds = np.stack(
        [samples.owner, works.samples, works.pooled, works.weight_size, np.where(works.pooled > 0, 0, works.dim)]
    )
    owner = np.unique(kinds, axis=1)[0].astype(np.int64)
    return np.bincount(owner, minlength=len(samples))


def joined(parts: Sequence[Roofline]) -> Roofline:
    """Join the sets of several stores."""
    columns = {
        name: np.concatenate([getattr(part, name) for part in parts])
        for name in ("moved", "times", "tables", "calls", "batch_size")
    }
    return Roofline(**columns, ceiling=parts[0].ceiling)


def size_table(sets: Roofline) -> tuple[str, tuple[str, ...], list[tuple[str, ...]]]:
    """Share of the ceiling by the bytes that a set must move."""
    launch = " and ".join(f"{1e3 * ms:.0f} µs {phase}" for phase, ms in zip(PHASES, sets.launch_ms, strict=True))
    caption = (
        f"{len(sets.tables)} sets; a copy reads and writes {sets.ceiling / 1e9:,.0f} GB/s (the ceiling). A fused call with next to no "
        f"work takes {launch} (median of the {_SMALLEST} smallest). Bytes: each id and looked-up value once, each distinct row and its "
        f"optimizer state in whole sectors of {_SECTOR} bytes. A share above 1 would mean more moved bytes than counted, or caches that "
        f"keep data from one run to the next."
    )
    rows = []
    for phase, name in enumerate(PHASES):
        decade = np.floor(np.log10(sets.moved[:, phase])).astype(int)
        for power in np.unique(decade):
            inside = decade == power
            if inside.sum() >= FEWEST:
                low, middle, high = np.percentile(sets.share[inside, phase], (10, 50, 90))
                bound = sets.latency_bound[inside, phase].mean()
                size = f"10^{power} to 10^{power + 1}"
                rows.append(
                    (name, size, str(inside.sum()), f"{middle:.1%}", f"{low:.1%} to {high:.1%}", f"{bound:.0%}")
                )
    heads = (
        "phase", "bytes to move", "sets", "share of the ceiling, median", "10th to 90th percentile", "latency-bound",
    )  # fmt: skip
    return caption, heads, rows


def batch_table(sets: Roofline, phase: int) -> tuple[str, tuple[str, ...], list[tuple[str, ...]]]:
    """Share of latency-bound sets by batch size and number of tables."""
    caption = (
        f"{PHASES[phase].capitalize()}: share of sets that are latency-bound (their bytes at the ceiling would take less time than the "
        "launches of their calls), by batch size and number of tables; and the number of tables from which on fewer than half are."
    )
    names = [str(low) if low == high else f"{low}–{high}" for low, high in TABLES]
    rows = []
    for batch in np.unique(sets.batch_size):
        shares = [share_bound(sets, phase, int(batch), low, high) for low, high in TABLES]
        cells = ["–" if share is None else f"{share:.0%}" for share in shares]
        rows.append((f"{batch:,}", *cells, bound_until(shares)))
    return caption, ("batch", *(f"{name} tables" for name in names), "mostly bandwidth-bound from"), rows


def share_bound(sets: Roofline, phase: int, batch: int, low: int, high: int) -> float | None:
    """Share of latency-bound sets among those of a batch size and a range of tables; None if there are too few sets."""
    inside = (sets.batch_size == batch) & (sets.tables >= low) & (sets.tables <= high)
    return float(sets.latency_bound[inside, phase].mean()) if inside.sum() >= FEWEST else None


def bound_until(shares: Sequence[float | None]) -> str:
    """Return the first range of tables from which fewer than half of the sets are latency-bound."""
    known = [(position, share) for position, share in enumerate(shares) if share is not None]
    later = [position for position, share in known if share >= 0.5]
    first = next((position for position, _ in known if not later or position > later[-1]), None)
    return "none" if first is None else f"{TABLES[first][0]} tables"


if __name__ == "__main__":
    main()
