"""What `shardwright train` reads: kernel samples and measured collectives of several stores."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shardwright.errors import InvalidInput, some_of
from shardwright.files import is_missing
from shardwright.schema import Place

if TYPE_CHECKING:
    import pyarrow as pa

    from shardwright.cost.dataset import Samples
    from shardwright.cost.links import Collectives


@dataclass(frozen=True)
class Stores:
    """The content of sample stores.

    Attributes:
        folders: the stores that have kernel samples.
        hardware: fingerprint of the machine that measured kernels.
        kernels: kernel samples of each store that has some.
        collectives: measured collectives of all stores, by number of devices and hosts.
    """

    folders: list[Path]
    hardware: dict[str, str]
    kernels: list[pa.Table]
    collectives: list[Collectives]

    def samples(self) -> Samples:
        """The kernel samples of all stores, to train on.

        Raises:
            InvalidInput: a store holds what cannot be trained on; the message names it.
        """
        from shardwright.cost.dataset import join, samples_of

        parts = []
        for folder, measured in zip(self.folders, self.kernels, strict=True):
            with Place(str(folder)).naming():
                parts.append(samples_of(measured))
        return join(parts)


def read_stores(folders: Sequence[Path], *, allow_other_hardware: bool) -> Stores:
    """Read sample stores; each holds kernel samples, collectives, or both.

    Raises:
        InvalidInput: a folder is named twice or holds neither, none holds kernel samples, or they were measured on different machines.
    """
    from shardwright.cost.links import collectives_of
    from shardwright.measure.collectives.records import COLLECTIVES, read_collectives
    from shardwright.measure.hardware import MACHINE
    from shardwright.measure.identity import IDENTITY, check_hardware, read_identity
    from shardwright.measure.store import read_samples

    _check_distinct(folders)
    name = COLLECTIVES.identity
    measured = [folder for folder in folders if not is_missing(folder / name)]
    kernels = [folder for folder in folders if not is_missing(folder / IDENTITY) or folder not in measured]
    if not kernels:
        raise InvalidInput(
            f"{measured[0]}: holds collectives but no kernel samples, which every model needs; name a folder with some too, or add some: "
            f"shardwright collect -o {measured[0]}"
        )
    hardware: dict[str, str] = read_identity(kernels[0])["hardware"]
    for folder in () if allow_other_hardware else measured:
        check_hardware(folder / name, read_identity(folder, name)["hardware"], hardware, MACHINE)
    allowed: dict[str, Any] = {"allow_other_hardware": allow_other_hardware}
    collectives = [read_collectives(folder, **allowed) for folder in measured]
    with Place(some_of(measured)).naming():
        fitted = collectives_of(collectives)
    return Stores(
        folders=kernels,
        hardware=hardware,
        kernels=[read_samples(folder, hardware=hardware, **allowed) for folder in kernels],
        collectives=fitted,
    )


def _check_distinct(folders: Sequence[Path]) -> None:
    """Samples read twice would lie both in what is trained on and in what is held out."""
    seen: set[str] = set()
    for folder in folders:
        place = os.path.realpath(folder)
        if place in seen:
            raise InvalidInput(f"{folder}: is named twice, so that its samples would count twice; name it once")
        seen.add(place)
