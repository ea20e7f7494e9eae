"""Collect collectives into the sample store, resuming where an earlier process stopped; write and read rows of the store.

A sample that could not be measured is a row without times: it is not tried again, and readers do not see it by default.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from time import monotonic, time
from typing import TYPE_CHECKING, Any

import numpy as np

from shardwright.errors import InvalidInput, MeasurementFailed
from shardwright.measure.collectives.group import GroupOptions, Runner
from shardwright.measure.collectives.rank import DeviceTimes, RunPolicy, group_backend
from shardwright.measure.collectives.sampling import (
    ALL_GATHER,
    ALL_REDUCE,
    ALL_TO_ALL,
    KINDS,
    REDUCE_SCATTER,
    CollectiveSample,
    CollectiveSpace,
    Volumes,
    all_to_all_volumes,
    ring_volumes,
)
from shardwright.measure.hardware import MACHINE, Fingerprint, fingerprint
from shardwright.measure.measuring import Progress
from shardwright.measure.sampling import pool_digest
from shardwright.measure.stock import REPEAT_EVERY, noise_of
from shardwright.measure.store import SampleStore, chosen_hardware, hardware_of, reading
from shardwright.task.table import Table

if TYPE_CHECKING:
    import pyarrow as pa

Measure = Callable[[CollectiveSample], DeviceTimes | None]
"""Measures a sample; returns None if it is given up."""

_REPEAT_AFTER = 10  # samples between a sample and its repeat

# By kind of device: batch sizes, largest buffer of kinds other than all-to-all, bandwidth and latency that scale start delays.
_DEFAULTS = {
    "cpu": ((512, 1024, 2048, 4096), 64 * 2**20, 1e9, 0.5),
    "cuda": ((8192, 16_384, 32_768, 65_536), 1024 * 2**20, 200e9, 0.05),
}


@dataclass(frozen=True)
class CollectiveCollection:
    """A collection of collectives.

    Attributes:
        folder: the store.
        samples: number of samples that the store is to hold in the end.
        space: the samples.
        hosts: number of hosts; each holds the same number of consecutive ranks.
        device: "cpu" or "cuda".
        policy: how often a collective is run.
    """

    folder: Path
    samples: int
    space: CollectiveSpace
    hosts: int
    device: str
    policy: RunPolicy = field(default_factory=RunPolicy)

    def __post_init__(self) -> None:
        if self.samples < 1:
            raise InvalidInput(f"samples is {self.samples}, must be at least 1")
        if self.hosts < 1 or self.space.world % self.hosts:
            raise InvalidInput(f"hosts is {self.hosts}, must be a divisor of the {self.space.world} ranks")

    def request(self) -> dict[str, Any]:
        """All options that samples depend on, besides their number."""
        space = self.space
        return {
            "seed": space.seed,
            "world": space.world,
            "hosts": self.hosts,
            "batch_sizes": list(space.batch_sizes),
            "kinds": list(space.kinds),
            "max_bytes": space.max_bytes,
            "pool": pool_digest(space.pool),
        }

    @property
    def digest(self) -> str:
        """A digest of the request; different collections have different digests."""
        return hashlib.sha256(json.dumps(self.request(), sort_keys=True).encode()).hexdigest()[:12]

    def open_store(self) -> SampleStore:
        """Open the store for writing."""
        return SampleStore(self.folder, fingerprint(self.device, group_backend(self.device)), MACHINE)


def new_collection(
    folder: str | Path,
    *,
    samples: int,
    world: int,
    hosts: int = 1,
    seed: int = 0,
    device: str = "cpu",
    batch_sizes: Sequence[int] | None = None,
    kinds: Sequence[str] = KINDS,
    pool: Sequence[Table] | None = None,
    policy: RunPolicy | None = None,
) -> CollectiveCollection:
    """Make a collection, with the device's defaults for missing options; see `collect_collectives`."""
    group_backend(device)
    if pool is None:
        from shardwright.workload.generators import table_pool

        pool = table_pool("dlrm-2021")
    default_sizes, max_bytes, bandwidth, latency = _DEFAULTS[device]
    sizes = tuple(default_sizes if batch_sizes is None else batch_sizes)
    space = CollectiveSpace(tuple(pool), world, seed, sizes, tuple(kinds), max_bytes, bandwidth, latency)
    return CollectiveCollection(Path(folder), samples, space, hosts, device, policy or RunPolicy())


def collect_collectives(
    collection: CollectiveCollection,
    *,
    timeout_s: float = 60.0,
    progress: Progress | None = None,
    group: GroupOptions | None = None,
) -> CollectivesSummary:
    """Measure collectives between processes of this machine into a sample store; call it again to resume after any interruption.

    Sample i depends only on the seed and i. Every 20th sample is measured a second time, ten samples later. A sample that hangs is
    skipped. If a rank ends during a sample, the sample is tried once more. Skipped samples are counted, and later calls skip them too.

    All ranks run on this machine. With more than one host, the store records which ranks share a host, but the links between hosts are
    loopback too. For links between real hosts see `shardwright.measure.collectives.torchrun`.

    Args:
        collection: what to measure, and the store.
        timeout_s: longest time of a sample.
        progress: called after each measurement.
        group: options of the group; by default from the collection and the timeout.

    Raises:
        InvalidInput: an option is out of range, or the store cannot be used.
        MeasurementFailed: the group cannot be started, or fails too often in a row; earlier measurements are kept.
    """
    check_timeout(timeout_s)
    options = group or GroupOptions(collection.space.world, collection.device, collection.policy, timeout_s)
    started = monotonic()
    with collection.open_store() as store, Runner(options) as runner:
        measured = measure_all(collection, store, runner.measure, progress)
    return summarise(collection.folder, measured, monotonic() - started)


def check_timeout(seconds: float) -> None:
    """Check the timeout of a sample.

    Raises:
        InvalidInput: the timeout is not a finite number above 0.
    """
    if not 0 < seconds < float("inf"):
        raise InvalidInput(f"timeout is {seconds} s, must be a finite number greater than 0")


def measure_all(
    collection: CollectiveCollection, store: SampleStore, measure: Measure, progress: Progress | None
) -> int:
    """Measure what the store lacks; return the number of measurements that succeeded.

    A sample that was given up is stored as soon as a later one succeeds or the collection ends. It is not stored if the collection ends
    because the group failed too often in a row, since then the samples are not to blame.
    """
    wanted = list(_schedule(collection.samples))
    settled = store.collectives(collection.digest)
    todo = [key for key in wanted if key not in settled]
    backend, measured, held = group_backend(collection.device), 0, list[tuple[int, int, dict[str, Any]]]()
    try:
        for done, (number, repeat) in enumerate(todo, len(wanted) - len(todo) + 1):
            sample = collection.space.draw(number)
            times = measure(sample)
            row = row_of(sample, collection.hosts, backend, times, collection.policy.runs)
            held.append((number, repeat, row))
            if times is not None:
                measured += 1
                _keep(held, collection, store)
            if progress:
                progress(done, len(wanted), "")
    except MeasurementFailed:
        held.clear()
        raise
    finally:
        _keep(held, collection, store)
    return measured


def _schedule(samples: int) -> Iterator[tuple[int, int]]:
    """(sample, repeat) in the order of measuring; each repeat comes ten samples after its first measurement."""
    for sample in range(samples + _REPEAT_AFTER):
        if sample < samples:
            yield sample, 0
        earlier = sample - _REPEAT_AFTER
        if earlier >= 0 and earlier % REPEAT_EVERY == 0:
            yield earlier, 1


def _keep(held: list[tuple[int, int, dict[str, Any]]], collection: CollectiveCollection, store: SampleStore) -> None:
    for sample, repeat, row in held:
        store.add_collective(collection.digest, sample, repeat, row)
    held.clear()


@cache
def schema() -> pa.Schema:
    """Columns of collectives; one row per measurement.

    Lists have one entry per device, in order of rank. `bytes` is the size of the device's own input buffer. `sent_*` and `received_*` are
    the bytes on its links inside its host and between hosts (see `Volumes`) in the forward pass. `delays_ms` are the start delays before
    the forward pass. `dims` and `backward_ms` are empty for kinds other than all_to_all.
    """
    import pyarrow as pa

    volumes = [
        (name, pa.list_(pa.int64())) for name in ("sent_intra", "sent_inter", "received_intra", "received_inter")
    ]
    return pa.schema(
        [
            ("sample", pa.int64()),
            ("repeat", pa.int8()),
            ("kind", pa.string()),
            ("world", pa.int32()),
            ("hosts", pa.int32()),
            ("batch_size", pa.int32()),
            ("dims", pa.list_(pa.int32())),
            ("bytes", pa.list_(pa.int64())),
            *volumes,
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
    skipped: bool = False,
) -> pa.Table:
    """Read all measured collectives of a store, in order of sample and repeat, even while another process collects.

    Args:
        folder: the store.
        hardware: hardware of the samples, whatever the kernel backend: a fingerprint, or a part of a processor's name; None if there
            is only one kind.
        allow_other_hardware: take samples of any machine, also of several machines.
        skipped: also take samples that could not be measured.

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
                rows.append(json.loads(text) | {"sample": shift + sample, "repeat": repeat})
        try:
            table = pa.Table.from_pylist(rows, schema=schema())
        except pa.ArrowException as error:
            raise ValueError(str(error)) from error
    taken = table if skipped else table.filter(np.asarray(table["runs"].to_numpy() > 0))
    if not taken.num_rows:
        if rows:
            raise InvalidInput(
                f"{folder}: all {len(rows)} collectives were skipped because they hung or failed; collect into another folder with fewer "
                "ranks or a longer --timeout"
            )
        raise InvalidInput(
            f"{folder}: holds no collectives; collect some: shardwright collect --collectives -o {folder}"
        )
    return taken


def volumes_of(sample: CollectiveSample, hosts: int) -> Volumes:
    """The volumes of a sample; for all-to-all, of the forward pass."""
    if sample.kind == ALL_TO_ALL:
        return all_to_all_volumes(sample.batch_size, sample.dims, hosts)
    gathers, reduces = sample.kind in (ALL_GATHER, ALL_REDUCE), sample.kind in (REDUCE_SCATTER, ALL_REDUCE)
    return ring_volumes(sample.elements, len(sample.delays_ms), hosts, gathers=gathers, reduces=reduces)


def row_of(sample: CollectiveSample, hosts: int, backend: str, times: DeviceTimes | None, runs: int) -> dict[str, Any]:
    """The store's row of a sample; without times, the row of a skipped sample."""
    volumes = volumes_of(sample, hosts)
    sent, received = volumes.sent.tolist(), volumes.received.tolist()
    return {
        "kind": sample.kind,
        "world": len(sample.delays_ms),
        "hosts": hosts,
        "batch_size": sample.batch_size,
        "dims": list(sample.dims),
        "bytes": volumes.buffer.tolist(),
        "sent_intra": sent[0],
        "sent_inter": sent[1],
        "received_intra": received[0],
        "received_inter": received[1],
        "delays_ms": list(sample.delays_ms),
        "forward_ms": list(times.forward_ms) if times else [],
        "backward_ms": list(times.backward_ms) if times else [],
        "runs": runs if times else 0,
        "backend": backend,
        "measured_at": int(time() * 1000),
    }


def keys_of(table: pa.Table) -> list[tuple[int, int]]:
    """(sample, repeat) of each row."""
    return list(zip(table["sample"].to_pylist(), table["repeat"].to_pylist(), strict=True))


def step_ms(table: pa.Table) -> np.ndarray[Any, np.dtype[np.float64]]:
    """`(rows,)` ms until the last device is done, both passes added."""
    columns = (table[name].to_pylist() for name in ("forward_ms", "backward_ms"))
    return np.array([max(forward) + max(backward, default=0.0) for forward, backward in zip(*columns, strict=True)])


@dataclass(frozen=True)
class CollectivesSummary:
    """What a store holds after collecting collectives.

    Attributes:
        folder: the store.
        samples: measured samples in the store, without repeats.
        skipped: samples in the store that hung or ended the group, without repeats.
        measured: measurements made by this call.
        seconds: duration of this call.
        repeat_median: median relative difference between a sample and its repeat, in the time until the last device is done; NaN
            without repeats.
        repeat_mean: mean of these differences.
    """

    folder: Path
    samples: int
    skipped: int
    measured: int
    seconds: float
    repeat_median: float
    repeat_mean: float


def summarise(folder: Path, measured: int, seconds: float) -> CollectivesSummary:
    """The summary of a store after a call that made `measured` measurements in `seconds`."""
    table = read_collectives(folder, allow_other_hardware=True, skipped=True)
    first, valid = table["repeat"].to_numpy() == 0, table["runs"].to_numpy() > 0
    kept = table.filter(valid)
    by_key = dict(zip(keys_of(kept), step_ms(kept), strict=True))
    pairs = [
        (by_key[sample, 0], value) for (sample, repeat), value in by_key.items() if repeat and (sample, 0) in by_key
    ]
    repeat_median, repeat_mean = noise_of(pairs)
    return CollectivesSummary(
        folder=folder,
        samples=int((first & valid).sum()),
        skipped=int((first & ~valid).sum()),
        measured=measured,
        seconds=seconds,
        repeat_median=repeat_median,
        repeat_mean=repeat_mean,
    )
