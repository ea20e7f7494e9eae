"""Where in a folder the samples of a machine lie: in the folder itself, or, beside those of other hardware, in a store of their own.

samples/                                the store of one kind of hardware, and
samples/cpu-amd-epyc-9654-1a2b3c4d/     those of others, each a whole store that can be trained on
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from shardwright.measure.hardware import DECISIVE, Fingerprint, differences
from shardwright.measure.identity import IDENTITY, read_identity

_LONGEST_NAME = 40


def home_of(folder: Path, hardware: Fingerprint, *, allow_other_hardware: bool = False) -> Path:
    """The store that the samples of a machine go to when it collects alone.

    That is the folder itself, unless its samples lie in a store of their own there already.

    Args:
        folder: what was asked for.
        hardware: of the machine.
        allow_other_hardware: whether samples of all hardware go into the folder itself.

    Raises:
        InvalidInput: the folder's identity cannot be read.
    """
    own = folder / name_of(hardware)
    if allow_other_hardware or _is_of(folder, hardware) or not (own / IDENTITY).exists():
        return folder
    return own


def homes_of(folder: Path, found: Sequence[Fingerprint], mine: Fingerprint | None) -> list[Path]:
    """The stores that the samples of several machines go to, each kind of hardware to one.

    The folder itself is the store of the hardware whose samples it holds already; else of the machine that writes it, if that measures too;
    else of the only kind there is. Decided anew, it stays the same as long as there are samples.

    Args:
        folder: what was asked for.
        found: the kinds of hardware.
        mine: that of this machine; None where it has no such device.

    Returns:
        A store for each of `found`.

    Raises:
        InvalidInput: the folder's identity cannot be read.
    """
    if (folder / IDENTITY).exists():
        return [folder if _is_of(folder, hardware) else folder / name_of(hardware) for hardware in found]
    only = all(alike(hardware, found[0]) for hardware in found)
    homes = []
    for hardware in found:
        own = folder / name_of(hardware)
        first = only or (mine is not None and alike(hardware, mine))
        homes.append(folder if first and not (own / IDENTITY).exists() else own)
    return homes


def alike(first: Mapping[str, str], second: Mapping[str, str]) -> bool:
    """Whether measurements on the one hardware are comparable with those on the other."""
    return not differences(first, second)


def name_of(hardware: Mapping[str, str]) -> str:
    """The name of a hardware's own store: readable, and another one wherever a decisive field differs."""
    digest = hashlib.sha256("\n".join(f"{key}={hardware.get(key)}" for key in DECISIVE).encode()).hexdigest()[:8]
    words = re.sub(r"[^a-z0-9]+", "-", f"{hardware.get('device_kind')} {hardware.get('processor')}".lower())
    return f"{words[:_LONGEST_NAME].strip('-')}-{digest}"


def _is_of(folder: Path, hardware: Fingerprint) -> bool:
    """Whether a folder is the store of a hardware."""
    return (folder / IDENTITY).exists() and alike(read_identity(folder)["hardware"], hardware)
