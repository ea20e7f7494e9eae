"""Collect times of all-to-alls in the sample store, continuing earlier processes; write and read rows of the store."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path
from time import monotonic, time
from typing import TYPE_CHECKING, Any

import numpy as np

from shardwright.errors import InvalidInput
from shardwright.hardware import MACHINE, Fingerprint, fingerprint
from shardwright.measure.collectives.group import GroupOptions, RankGroup, telling_what_is_kept
from shardwright.measure.collectives.links import Ask
from shardwright.measure.collectives.rank import RunPolicy, group_backend
from shardwright.measure.collectives.sampling import CollectiveSample, CollectiveSpace
from shardwright.measure.sampling import pool_digest
from shardwright.measure.stock import REPEAT_EVERY, StoreSummary, noise_of
from shardwright.measure.store import SampleStore, chosen_hardware, hardware_of, reading
from shardwright.measure.visits import Progress
from shardwright.task.table import Table

if TYPE_CHECKING:
    import pyarrow as pa

_REPEAT_AFTER = 10  # samples between a sample and its repeat

ALL_TO_ALL = "all_to_all"

# By kind of device: batch sizes, and bandwidth and latency that scale start delays.
_DEFAULTS = {
    "cpu": ((512, 1024, 2048, 4096), 1e9, 0.5),
    "cuda": ((8192, 16_384, 32_768, 65_536), 200e9, 0.05),
}


@dataclass(frozen=True)
class CollectiveCollection:
    """A collection of collectives.

    Attributes:
        folder: the store.
        samples: number of samples that the store is to hold in the end.
        space: the samples.
        device: "cpu" or "cuda".
        policy: how often a collective is run.
    """

    folder: Path
    samples: int
    space: CollectiveSpace
    device: str
    policy: RunPolicy = field(default_factory=RunPolicy)

    def __post_init__(self) -> None:
        if self.samples < 1:
            raise InvalidInput(f"samples is {self.samples}, must be at least 1")

    @property
    def digest(self) -> str:
        """A digest of all options that samples depend on, besides their number; different collections have different digests."""
        space = self.space
        asked = {
            "seed": space.seed,
            "world": space.world,
            "batch_sizes": list(space.batch_sizes),
            "kinds": [ALL_TO_ALL],
            "pool": pool_digest(space.pool),
        }
        return hashlib.sha256(json.dumps(asked, sort_keys=True).encode()).hexdigest()[:12]


def new_collection(
    folder: str | Path,
    *,
    samples: int,
    world: int,
    seed: int = 0,
    device: str = "cpu",
    batch_sizes: Sequence[int] | None = None,
    pool: Sequence[Table] | None = None,
    policy: RunPolicy | None = None,
) -> CollectiveCollection:
    """Make a collection, with the device's defaults for missing options; see `collect_collectives`."""
    group_backend(device)
    if pool is None:
        from shardwright.workload.generators import table_pool

        pool = table_pool("dlrm-2021")
    default_sizes, bandwidth, latency = _DEFAULTS[device]
    sizes = tuple(default_sizes if batch_sizes is None else batch_sizes)
    space = CollectiveSpace(tuple(pool), world, seed, sizes, bandwidth, latency)
    return CollectiveCollection(Path(folder), samples, space, device, policy or RunPolicy())


def collect_collectives(
    collection: CollectiveCollection,
    *,
    timeout_s: float = 60.0,
    progress: Progress | None = None,
    group: GroupOptions | None = None,
) -> StoreSummary:
    """Measure collectives between processes of this machine into a sample store; call it again to resume after any interruption.

    Sample i depends only on the seed and i. Every 20th sample is measured a second time, ten samples later.

    Args:
        collection: the collectives to measure, and the store.
        timeout_s: longest time of a sample.
        progress: called after each measurement.
        group: options of the group; by default from the collection and the timeout.

    Raises:
        InvalidInput: an option is out of range, or the store cannot be used.
        MeasurementFailed: a rank ended or hung; earlier measurements are kept.
    """
    if not 0 < timeout_s < float("inf"):
        raise InvalidInput(f"timeout is {timeout_s} s, must be a finite number greater than 0")
    options = group or GroupOptions(collection.space.world, collection.device, collection.policy, timeout_s)
    with telling_what_is_kept(), RankGroup(options) as ranks:
        return _collected(collection, ranks.ask, progress)


def _collected(collection: CollectiveCollection, ask: Ask, progress: Progress | None) -> StoreSummary:
    """Measure the sets that the store lacks."""
    started = monotonic()
    wanted, backend = list(_schedule(collection.samples)), group_backend(collection.device)
    with SampleStore(collection.folder, fingerprint(collection.device, backend), MACHINE) as store:
        settled = store.collectives(collection.digest)
        todo = [key for key in wanted if key not in settled]
        for done, (number, repeat) in enumerate(todo, len(wanted) - len(todo) + 1):
            sample = collection.space.draw(number)
            row = row_of(sample, backend, ask(asdict(sample), "for a sample"), collection.policy.runs)
            store.add_collective(collection.digest, number, repeat, row)
            if progress:
                progress(done, len(wanted), "")
    return summarise(collection.folder, len(todo), monotonic() - started)


def _schedule(samples: int) -> Iterator[tuple[int, int]]:
    """(sample, repeat) in the order of measuring; each repeat comes ten samples after its first measurement."""
    for sample in range(samples + _REPEAT_AFTER):
        if sample < samples:
            yield sample, 0
        earlier = sample - _REPEAT_AFTER
        if earlier >= 0 and earlier % REPEAT_EVERY == 0:
            yield earlier, 1


@cache
def schema() -> pa.Schema:
    """Columns of collectives; one row per measurement.

    Lists have one entry per device, in order of rank. `delays_ms` are the start delays before the forward pass.
    """
    import pyarrow as pa

    return pa.schema(
        [
            ("sample", pa.int64()),
            ("repeat", pa.int8()),
            ("kind", pa.string()),
            ("world", pa.int32()),
            ("batch_size", pa.int32()),
            ("dims", pa.list_(pa.int32())),
            ("delays_ms", pa.list_(pa.float64())),
            ("forward_ms", pa.list_(pa.float64())),
            ("backward_ms", pa.list_(pa.float64())),
            ("runs", pa.int16()),
            ("backend", pa.string()),
            ("measured_at", pa.timestamp("ms", tz="UTC")),
        ]
    )


def read_collectives(
    folder: str | Path,
    *,
    hardware: Fingerprint | str | None = None,
    allow_other_hardware: bool = False,
) -> pa.Table:
    """Read all measured all-to-alls of a store, in order of sample and repeat, even while another process collects.

    Args:
        folder: the store.
        hardware: hardware of the samples, for any kernel backend: a fingerprint, or a part of a processor's name; None if there is only one
            kind.
        allow_other_hardware: take samples of any machine, also of several machines.

    Returns:
        A table with the columns of `schema()`, one row per sample and repeat; samples of several collections are numbered
        consecutively.

    Raises:
        InvalidInput: there is no store or no measured collective, or the hardware does not match.
    """
    import pyarrow as pa

    with reading(folder) as db:
        known = hardware_of(db, "collectives")
        chosen = (
            chosen_hardware(folder, known, hardware, allow_other=allow_other_hardware, decisive=MACHINE)
            if known
            else []
        )
        rows, last, shift = list[dict[str, Any]](), (0, ""), 0
        for machine, collection, sample, repeat, text in db.execute(
            "SELECT hardware, collection, sample, repeat, document FROM collectives"
            " ORDER BY hardware, collection, sample, repeat"
        ):
            if machine in chosen:
                if (machine, collection) != last:
                    last, shift = (machine, collection), 1 + rows[-1]["sample"] if rows else 0
                row = json.loads(text) | {"sample": shift + sample, "repeat": repeat}
                if row["kind"] == ALL_TO_ALL and row["runs"] > 0:  # stores of earlier versions have other rows
                    rows.append(row)
        try:
            table = pa.Table.from_pylist(rows, schema=schema())
        except pa.ArrowException as error:
            raise ValueError(str(error)) from error
    if not table.num_rows:
        raise InvalidInput(
            f"{folder}: holds no all-to-alls; collect some: shardwright collect --collectives -o {folder}"
        )
    return table


def row_of(sample: CollectiveSample, backend: str, times: dict[str, Any], runs: int) -> dict[str, Any]:
    """The store's row of a sample, with the times that `Member.measure` returns."""
    return {
        "kind": ALL_TO_ALL,
        "world": len(sample.delays_ms),
        "batch_size": sample.batch_size,
        "dims": list(sample.dims),
        "delays_ms": list(sample.delays_ms),
        "forward_ms": times["forward_ms"],
        "backward_ms": times["backward_ms"],
        "runs": runs,
        "backend": backend,
        "measured_at": int(time() * 1000),
    }


def keys_of(table: pa.Table) -> list[tuple[int, int]]:
    """(sample, repeat) of each row."""
    return list(zip(table["sample"].to_pylist(), table["repeat"].to_pylist(), strict=True))


def step_ms(table: pa.Table) -> np.ndarray[Any, np.dtype[np.float64]]:
    """`(rows,)` ms until the last device is done, both passes added."""
    columns = (table[name].to_pylist() for name in ("forward_ms", "backward_ms"))
    return np.array([max(forward) + max(backward) for forward, backward in zip(*columns, strict=True)])


def summarise(folder: Path, measured: int, seconds: float) -> StoreSummary:
    """The summary of a store after a call that made `measured` measurements in `seconds`."""
    table = read_collectives(folder, allow_other_hardware=True)
    by_key = dict(zip(keys_of(table), step_ms(table), strict=True))
    pairs = [
        (by_key[sample, 0], value) for (sample, repeat), value in by_key.items() if repeat and (sample, 0) in by_key
    ]
    return StoreSummary(folder, sum(not repeat for _, repeat in by_key), measured, seconds, *noise_of(pairs))
