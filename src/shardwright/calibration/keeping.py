"""Where calibrations keep what they measured, and how two of them keep out of each other's way."""

from __future__ import annotations

import fcntl
import platform
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from shardwright.calibration.sets import Set
from shardwright.cost.dataset import Samples
from shardwright.errors import InvalidInput
from shardwright.measure.device_work import Visit
from shardwright.measure.hardware import Fingerprint


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
        earlier: those of earlier calibrations; None where there are none.
    """

    earlier: Samples | None = None

    def add(self, one: Set, visit: Visit) -> None:
        """Keep a visit."""


@contextmanager
def kept_samples(folder: Path, machine: Fingerprint, optimizer: str, batch_size: int) -> Iterator[Kept]:
    """The samples of this machine with an optimizer and a batch size."""
    yield Kept()
