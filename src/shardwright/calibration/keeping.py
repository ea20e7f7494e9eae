"""Where calibrations keep what they measured, and how two of them keep out of each other's way."""

from __future__ import annotations

import fcntl
import platform
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from shardwright.calibration.sets import Set
from shardwright.cost.dataset import Samples, samples_of
from shardwright.errors import InvalidInput
from shardwright.measure.device_work import Visit
from shardwright.measure.hardware import Fingerprint
from shardwright.measure.samples import read_samples
from shardwright.measure.store import SampleStore, reading


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


@dataclass
class Kept:
    """Samples in the cache folder.

    Attributes:
        store: where they lie.
        batch_size: samples of a batch.
        earlier: those of earlier calibrations; None where there are none.
        usual_ms: state of the machine that their times are converted to; None where there are none.
    """

    store: SampleStore
    batch_size: int
    earlier: Samples | None = None
    usual_ms: float | None = None

    def add(self, one: Set, visit: Visit) -> None:
        """Keep a visit."""
        self.store.add(one.work, visit, kind=one.kind, label=one.label, batch_size=self.batch_size)


@contextmanager
def kept_samples(folder: Path, machine: Fingerprint, optimizer: str, batch_size: int) -> Iterator[Kept]:
    """The samples of this machine with an optimizer and a batch size."""
    with SampleStore(folder, machine) as store:
        yield Kept(store, batch_size, _earlier(folder, machine, optimizer, batch_size), store.usual_ms())


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
