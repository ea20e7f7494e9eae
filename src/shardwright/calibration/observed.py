"""What calibrations have measured: in this process, and before it in the cache folder; and how two of them keep out of each other's way."""

from __future__ import annotations

import fcntl
import platform
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import numpy as np

from shardwright.calibration.sets import Set
from shardwright.cost.dataset import Samples, join, samples_of, samples_of_works
from shardwright.errors import InvalidInput
from shardwright.measure.device_work import DeviceWork, Visit
from shardwright.measure.hardware import Fingerprint
from shardwright.measure.measuring import Controls, settled, time_of
from shardwright.measure.samples import read_samples
from shardwright.measure.store import SampleStore, reading


class Visitor(Protocol):
    """What times a device's work: a `shardwright.measure.measuring.Measurer`."""

    def visit(self, work: DeviceWork) -> Visit:
        """Time a work once."""
        ...


@dataclass
class Observed:
    """Visits to sets, and the sets of earlier calibrations.

    Attributes:
        keep: takes every visit, so that it survives the process.
        earlier: what was measured before; None where nothing was.
        usual_ms: state of the machine to convert times to, as those of before were; None for that of this process.
        sets: those of this calibration, in the order of their first visit.
        failed: why sets could not be measured, in the order of trying.
    """

    keep: Callable[[Set, Visit], None]
    earlier: Samples | None = None
    usual_ms: float | None = None
    sets: dict[Set, None] = field(default_factory=dict)
    failed: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._visits: dict[DeviceWork, list[Visit]] = {}

    def __len__(self) -> int:
        return len(self.sets) + (len(self.earlier) if self.earlier is not None else 0)

    def add(self, one: Set, visit: Visit) -> None:
        """Take a visit to what a set does."""
        self._visits.setdefault(one.work, []).append(visit)
        self.keep(one, visit)
        self.take(one)

    def take(self, one: Set) -> None:
        """Take a set whose work was visited, be it for another set."""
        if one.kind != "control":
            self.sets[one] = None

    def known(self, one: Set) -> bool:
        """Whether what a set does was visited."""
        return one.work in self._visits

    def disturbed(self) -> list[Set]:
        """Sets that need another visit, the most disturbed first."""
        found = {one.work: one for one in self.sets if not settled(self._visits[one.work])}
        return sorted(found.values(), key=lambda one: -min(visit.sentinel for visit in self._visits[one.work]))

    def controls(self, works: Sequence[DeviceWork]) -> Controls:
        """What the controls took; nothing where one of them was not visited."""
        if not all(self._visits.get(work) for work in works):
            return Controls()
        return Controls(tuple(sum(time_of(self._visits[work], self.usual_ms)) for work in works))

    def samples(self) -> Samples:
        """All sets with their times, earlier ones first."""
        if self.earlier is not None and not self.sets:
            return self.earlier
        times = np.array([time_of(self._visits[one.work], self.usual_ms) for one in self.sets]).reshape(-1, 2)
        own = samples_of_works([one.work.works for one in self.sets], times, [one.label for one in self.sets])
        return own if self.earlier is None else join([self.earlier, own])


@contextmanager
def kept_observed(folder: Path, machine: Fingerprint, optimizer: str, batch_size: int) -> Iterator[Observed]:
    """What was measured on this machine with an optimizer and a batch size; visits that are added are kept in the folder."""
    with SampleStore(folder, machine) as store:

        def keep(one: Set, visit: Visit) -> None:
            store.add(one.work, visit, kind=one.kind, label=one.label, batch_size=batch_size)

        yield Observed(keep, _earlier(folder, machine, optimizer, batch_size), store.usual_ms())


def _earlier(folder: Path, machine: Fingerprint, optimizer: str, batch_size: int) -> Samples | None:
    """What was measured so before; None where nothing was."""
    import pyarrow.compute as pc

    with reading(folder) as db:
        if not db.execute("SELECT count(*) FROM sets WHERE kind <> 'control'").fetchone()[0]:
            return None
    try:
        table = read_samples(folder, hardware=machine, optimizer=optimizer)
    except InvalidInput:  # of other hardware, or another optimizer
        return None
    table = table.filter(pc.and_(pc.equal(table["batch_size"], batch_size), pc.equal(table["repeat"], 0)))
    return samples_of(table) if table.num_rows else None


@contextmanager
def calibration_lock(folder: Path) -> Iterator[None]:
    """Keep other calibrations of this machine away; the kernel lets go of the lock when the process ends, however it ends.

    Raises:
        InvalidInput: another one is under way, or the cache folder cannot be written to.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = (folder / f"calibrating-{platform.node()}.lock").open("wb")
    except OSError as error:
        raise InvalidInput(
            f"{folder}: the cache folder cannot be written to ({error.strerror}); name another one with SHARDWRIGHT_CACHE"
        ) from None
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise InvalidInput(
                "another calibration is under way on this machine, and two would disturb each other: wait until it ends"
            ) from None
        yield
