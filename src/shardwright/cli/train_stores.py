"""Read the input of `shardwright train`: kernel samples and measured collectives of several stores."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from shardwright.errors import InvalidInput, some_of
from shardwright.schema import Place

if TYPE_CHECKING:
    import pyarrow as pa

    from shardwright.cost.dataset import Samples
    from shardwright.cost.neuroshard.collectives import Collectives
    from shardwright.measure.hardware import Fingerprint


@dataclass(frozen=True)
class Stores:
    """The content of sample stores.

    Attributes:
        folders: the stores and files that have kernel samples.
        machines: fingerprints of the machines that measured kernels.
        kernels: kernel samples of each store that has some.
        collectives: measured collectives of all stores, by number of devices.
    """

    folders: list[Path]
    machines: list[Fingerprint]
    kernels: list[pa.Table]
    collectives: list[Collectives]

    def samples(self) -> Samples:
        """The kernel samples of all stores, to train on.

        Raises:
            InvalidInput: a store holds samples that cannot be trained on; the message names it.
        """
        from shardwright.cost.dataset import join, samples_of

        parts = []
        for folder, measured in zip(self.folders, self.kernels, strict=True):
            with Place(str(folder)).naming():
                parts.append(samples_of(measured))
        return join(parts)


def read_stores(paths: Sequence[Path], *, hardware: str | None, allow_other_hardware: bool) -> Stores:
    """Read sample stores and Parquet files; each store holds kernel samples, collectives, or both.

    If several stores hold the same set, it is taken from the first: a set must not be both in the training and in the held-out samples.

    Args:
        paths: folders and files.
        hardware: part of the name of the processor or backend that measured; None if there is only one.
        allow_other_hardware: take samples of all hardware.

    Raises:
        InvalidInput: a path is named twice or has no samples, no path has kernel samples, or they were measured on different machines.
    """
    from shardwright.cost.neuroshard.collectives import collectives_of
    from shardwright.measure.collectives.collect import read_collectives
    from shardwright.measure.hardware import MACHINE
    from shardwright.measure.samples import fingerprints, read_samples
    from shardwright.measure.store import chosen_hardware

    _check_distinct(paths)
    measured = [path for path in paths if _has_collectives(path)]
    kernels = [path for path in paths if path not in measured or fingerprints(path)]
    if not kernels:
        raise InvalidInput(
            f"{measured[0]}: holds collectives but no kernel samples, which every model needs; name a folder with some too, or add some: "
            f"shardwright collect -o {measured[0]}"
        )
    machines: list[Fingerprint] = []
    tables, known = [], np.zeros(0, np.int64)
    for path in kernels:
        wanted = machines[0] if machines else hardware
        table = read_samples(path, hardware=wanted, allow_other_hardware=allow_other_hardware)
        there = list(enumerate(fingerprints(path)))
        chosen = chosen_hardware(path, there, wanted, allow_other=allow_other_hardware)
        machines += [there[number][1] for number in chosen if there[number][1] not in machines]
        numbers = table["sample"].to_numpy()
        tables.append(table.filter(~np.isin(numbers, known)))
        known = np.union1d(known, numbers)
    wanted_links = {key: machines[0][key] for key in MACHINE if key in machines[0]}
    collectives = [
        read_collectives(path, hardware=wanted_links, allow_other_hardware=allow_other_hardware) for path in measured
    ]
    with Place(some_of(measured)).naming():
        fitted = collectives_of(collectives)
    kept = [(path, table) for path, table in zip(kernels, tables, strict=True) if table.num_rows]
    return Stores([path for path, _ in kept], machines, [table for _, table in kept], fitted)


def _has_collectives(path: Path) -> bool:
    from shardwright.measure.store import hardware_of, reading

    if path.suffix == ".parquet":
        return False
    with reading(path) as db:
        return bool(hardware_of(db, "collectives"))


def _check_distinct(folders: Sequence[Path]) -> None:
    """Check that no folder is named twice: its samples would be both in the training and in the held-out samples."""
    seen: set[str] = set()
    for folder in folders:
        place = os.path.realpath(folder)
        if place in seen:
            raise InvalidInput(f"{folder}: is named twice, so that its samples would count twice; name it once")
        seen.add(place)
