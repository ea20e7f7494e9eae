"""Collect inside a group that torchrun started, on one or several hosts.

    torchrun --nnodes 2 --nproc-per-node 8 --rdzv-backend c10d --rdzv-endpoint host0:29500 --max-restarts 10
        -m shardwright.measure.collectives -o samples/ --device cuda

(one line). Every process is a rank; rank 0 writes the store. If torchrun may give rank 0 to another host after a restart, name a folder
that all hosts share. A rank that hangs in a sample ends itself after the timeout; torchrun then ends the other ranks, and with
`--max-restarts` restarts all of them. The sample is noted in the store's folder; after its second failure it is skipped and counted.
"""

from __future__ import annotations

import faulthandler
import hashlib
import json
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import Any

from shardwright.errors import InvalidInput, MeasurementFailed
from shardwright.files import write_atomically
from shardwright.measure.collectives.collect import (
    CollectiveCollection,
    CollectivesSummary,
    check_timeout,
    collect_collectives,
    measure_all,
    new_collection,
    summarise,
)
from shardwright.measure.collectives.rank import DeviceTimes, Member, group_backend, joined_group
from shardwright.measure.collectives.sampling import CollectiveSample
from shardwright.measure.hardware import MACHINE, fingerprint
from shardwright.measure.measuring import Progress

_VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
_TRIES = 2
_END = -1


@dataclass(frozen=True)
class PlaceInGroup:
    """Place of this process in a group that torchrun started.

    Attributes:
        rank: number of this process.
        world: number of ranks on all hosts.
        local_rank: number of this process on this host.
        local_world: number of ranks on this host.
    """

    rank: int
    world: int
    local_rank: int
    local_world: int

    @property
    def hosts(self) -> int:
        """Number of hosts of the group."""
        return self.world // self.local_world


def place_of_this_process(environment: Mapping[str, str] | None = None) -> PlaceInGroup | None:
    """The place that torchrun's environment variables give to this process; None if torchrun did not start it.

    Raises:
        InvalidInput: the hosts have different numbers of ranks.
    """
    given = os.environ if environment is None else environment
    if not all(given.get(name) for name in _VARIABLES):
        return None
    rank, world, local_rank, local_world = (int(given[name]) for name in _VARIABLES[:4])
    if world % local_world:
        raise InvalidInput(
            f"WORLD_SIZE is {world}, LOCAL_WORLD_SIZE {local_world}: every host must have as many ranks; use the same --nproc-per-node"
        )
    return PlaceInGroup(rank, world, local_rank, local_world)


def collect_in_group(
    collection: CollectiveCollection, place: PlaceInGroup, *, timeout_s: float = 60.0, progress: Progress | None = None
) -> CollectivesSummary | None:
    """Measure collectives with the other processes of the group; every process must call this with the same arguments.

    Args:
        collection: what to measure; `world` must be the group's.
        place: this process's place in the group.
        timeout_s: longest time of a sample.
        progress: called on rank 0 after each measurement.

    Returns:
        The summary on rank 0, None on the others.

    Raises:
        InvalidInput: an option is out of range, or the store cannot be used.
        MeasurementFailed: the ranks were started with different options or on different hardware.
    """
    check_timeout(timeout_s)
    if collection.space.world != place.world:
        raise InvalidInput(
            f"world is {collection.space.world}, the group has {place.world} ranks; leave it out under torchrun"
        )
    with joined_group(
        collection.device,
        place.rank,
        place.world,
        local_rank=place.local_rank,
        local_world=place.local_world,
        timeout_s=timeout_s,
    ) as member:
        _check_agreement(collection, member)
        if place.rank == 0:
            return _lead(collection, member, timeout_s, progress)
        _follow(collection, member, timeout_s)
        return None


def collect_as_started(
    folder: str | Path,
    *,
    world: int | None = None,
    hosts: int | None = None,
    timeout_s: float = 60.0,
    progress: Progress | None = None,
    **options: Any,
) -> CollectivesSummary | None:
    """Measure collectives in the group if torchrun started this process, else between processes of this machine.

    Args:
        folder: the store.
        world: ranks; by default the group's, else 2.
        hosts: number of hosts that the ranks represent; by default the group's, else 1.
        timeout_s: longest time of a sample.
        progress: called after each measurement.
        **options: options of `new_collection`.

    Returns:
        The summary; None on ranks that torchrun numbered above 0.

    Raises:
        InvalidInput: an option is out of range, or the store cannot be used.
        MeasurementFailed: the collectives cannot be measured.
    """
    place = place_of_this_process()
    found_world, found_hosts = (place.world, place.hosts) if place else (2, 1)
    collection = new_collection(
        folder,
        world=found_world if world is None else world,
        hosts=found_hosts if hosts is None else hosts,
        **options,
    )
    if place:
        return collect_in_group(collection, place, timeout_s=timeout_s, progress=progress)
    return collect_collectives(collection, timeout_s=timeout_s, progress=progress)


def _lead(
    collection: CollectiveCollection, member: Member, timeout_s: float, progress: Progress | None
) -> CollectivesSummary:
    """Rank 0: announce each sample, and store its times."""
    started = monotonic()
    with collection.open_store() as store:
        attempts = Attempts(collection.folder)

        def measure(sample: CollectiveSample) -> DeviceTimes | None:
            if attempts.failed(sample.sample) >= _TRIES:
                return None
            attempts.begin(sample.sample)
            _announce(sample.sample, member)
            times = _within(timeout_s, member, sample, collection)
            attempts.end()
            return times

        try:
            measured = measure_all(collection, store, measure, progress)
        except KeyboardInterrupt:
            attempts.end()
            raise
        attempts.forget()
        _announce(_END, member)
    return summarise(collection.folder, measured, monotonic() - started)


def _follow(collection: CollectiveCollection, member: Member, timeout_s: float) -> None:
    """The other ranks: measure the announced samples until rank 0 announces the end."""
    while (number := _announce(_END, member)) != _END:
        _within(timeout_s, member, collection.space.draw(number), collection)


def _within(
    timeout_s: float, member: Member, sample: CollectiveSample, collection: CollectiveCollection
) -> DeviceTimes:
    """Measure a sample. If it takes too long, end this process with a traceback, wherever it hangs."""
    faulthandler.dump_traceback_later(timeout_s, exit=True)
    try:
        return member.measure(sample, collection.policy)
    finally:
        faulthandler.cancel_dump_traceback_later()


def _announce(number: int, member: Member) -> int:
    """Broadcast the number that rank 0 passes; return it on every rank."""
    import torch
    import torch.distributed as dist

    said = torch.tensor([number], device=member.device)
    dist.broadcast(said, src=0)
    return int(said)


def _check_agreement(collection: CollectiveCollection, member: Member) -> None:
    """Check that all ranks have the same options on the same kind of machine."""
    import torch
    import torch.distributed as dist

    hardware = fingerprint(collection.device, group_backend(collection.device))
    decisive = {key: hardware[key] for key in MACHINE}
    text = json.dumps([collection.request(), collection.samples, decisive], sort_keys=True)
    mine = int.from_bytes(hashlib.sha256(text.encode()).digest()[:7], "big")
    range_ = torch.tensor([mine, -mine], device=member.device)
    dist.all_reduce(range_, dist.ReduceOp.MAX)
    if int(range_[0]) != -int(range_[1]):
        raise MeasurementFailed(
            "the ranks were started with different options, or run on different hardware or versions of torch; start all hosts with "
            "the same command, on machines that are alike"
        )


class Attempts:
    """Notes on disk about the sample that is being measured, so that a restarted group knows which samples ended it.

    Args:
        folder: the store.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / "collectives-attempts.json"
        self._failures: dict[int, int] = {}
        with suppress(OSError, ValueError, AttributeError, TypeError):
            noted = json.loads(self._path.read_text())
            self._failures = {int(sample): int(failures) for sample, failures in noted.items()}
        self._measured: int | None = None

    def failed(self, sample: int) -> int:
        """How often the group ended while it measured this sample."""
        return self._failures.get(sample, 0)

    def begin(self, sample: int) -> None:
        """Note that a sample is about to be measured; if no `end` follows, this counts as a failure."""
        self._measured = sample
        self._write({**self._failures, sample: self.failed(sample) + 1})

    def end(self) -> None:
        """Note that the sample did not fail: it was measured, or the user stopped the collection."""
        if self._measured is not None:
            self._failures.pop(self._measured, None)
            self._measured = None
            self._write(self._failures)

    def forget(self) -> None:
        """Remove all notes, since the store now holds all samples, also the skipped ones."""
        self._failures = {}
        self._write({})

    def _write(self, failures: Mapping[int, int]) -> None:
        if failures:
            write_atomically(self._path, json.dumps(failures))
        else:
            self._path.unlink(missing_ok=True)
