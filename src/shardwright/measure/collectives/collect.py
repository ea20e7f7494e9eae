"""Collecting collectives: measure random ones until there are enough, resuming where an earlier process stopped."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic
from typing import Any

from shardwright.errors import InvalidInput, MeasurementFailed
from shardwright.measure.collectives.group import GroupOptions, Runner
from shardwright.measure.collectives.membership import group_backend
from shardwright.measure.collectives.records import CollectivesSummary, row_of, summarise
from shardwright.measure.collectives.sampling import KINDS, CollectiveSample, CollectiveSpace
from shardwright.measure.collectives.timing import DeviceTimes, RunPolicy
from shardwright.measure.hardware import MACHINE, fingerprint
from shardwright.measure.measuring import Progress
from shardwright.measure.sampling import pool_digest
from shardwright.measure.stock import REPEAT_EVERY
from shardwright.measure.store import SampleStore
from shardwright.task.table import Table

Measure = Callable[[CollectiveSample], DeviceTimes | None]
"""Measures a sample; None where it is given up."""

_REPEAT_AFTER = 10  # samples between a sample and its repeat

# By kind of device: batch sizes; largest buffer of the other kinds; bandwidth and latency that start delays are scaled with.
_DEFAULTS = {
    "cpu": ((512, 1024, 2048, 4096), 64 * 2**20, 1e9, 0.5),
    "cuda": ((8192, 16_384, 32_768, 65_536), 1024 * 2**20, 200e9, 0.05),
}


@dataclass(frozen=True)
class Collection:
    """What is to be collected.

    Attributes:
        folder: the store.
        samples: how many samples the store is to hold in the end.
        space: the samples.
        hosts: hosts of the ranks, each with as many ranks in a row.
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
        """What makes sample numbers mean the same samples."""
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
        """Tells collections apart."""
        return hashlib.sha256(json.dumps(self.request(), sort_keys=True).encode()).hexdigest()[:12]

    def open_store(self) -> SampleStore:
        """The store, for writing."""
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
) -> Collection:
    """A collection with the device's defaults for what is not given: see `collect_collectives`."""
    group_backend(device)
    if pool is None:
        from shardwright.workload.pools import table_pool

        pool = table_pool("dlrm-2021")
    default_sizes, max_bytes, bandwidth, latency = _DEFAULTS[device]
    sizes = tuple(default_sizes if batch_sizes is None else batch_sizes)
    space = CollectiveSpace(tuple(pool), world, seed, sizes, tuple(kinds), max_bytes, bandwidth, latency)
    return Collection(Path(folder), samples, space, hosts, device, policy or RunPolicy())


def collect_collectives(
    collection: Collection,
    *,
    timeout_s: float = 60.0,
    progress: Progress | None = None,
    group: GroupOptions | None = None,
) -> CollectivesSummary:
    """Measure collectives between processes of this machine into a sample store; call it again to resume after any interruption.

    Sample i follows from the seed and i alone; every 20th is measured a second time ten samples later. A sample that hangs is skipped,
    and one during which a rank ends is tried once more; skipped samples are counted, and not tried again by later calls.

    All ranks run on this machine. With more than one host, which ranks share a host is recorded, but the links between the hosts are
    loopback too: for links between real hosts see `shardwright.measure.collectives.torchrun`.

    Args:
        collection: what to measure, and where to.
        timeout_s: longest time of a sample.
        progress: called after each measurement.
        group: how the group is set up; by default from the collection and the timeout.

    Raises:
        InvalidInput: an option breaks a rule, or the store cannot be used.
        MeasurementFailed: the group cannot be started or fails again and again; what was measured before is kept.
    """
    if not 0 < timeout_s < float("inf"):
        raise InvalidInput(f"timeout is {timeout_s} s, must be positive")
    options = group or GroupOptions(collection.space.world, collection.device, collection.policy, timeout_s)
    started = monotonic()
    with collection.open_store() as store, Runner(options) as runner:
        measured = measure_all(collection, store, runner.measure, progress)
    return summarise(collection.folder, measured, monotonic() - started)


def measure_all(collection: Collection, store: SampleStore, measure: Measure, progress: Progress | None) -> int:
    """Measure what the store lacks; returns how many measurements succeeded.

    A sample that was given up is kept as soon as a later one succeeds, or the collection ends; not when it ends because the group fails
    again and again: then the samples are not to blame.
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


def _keep(held: list[tuple[int, int, dict[str, Any]]], collection: Collection, store: SampleStore) -> None:
    for sample, repeat, row in held:
        store.add_collective(collection.digest, sample, repeat, row)
    held.clear()
