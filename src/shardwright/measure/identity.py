"""The identity of a sample store: the hardware it was made on, and what was asked for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from shardwright.errors import InvalidInput
from shardwright.files import is_missing, parse_document
from shardwright.measure.hardware import DECISIVE, differences
from shardwright.measure.parts import FORMAT

IDENTITY = "identity.json"
COMMAND = "shardwright collect"
_REWRITE = "delete it, and the next collect writes it anew"
_UNNAMED = "unnamed (the usual)"


def read_identity(folder: Path, name: str = IDENTITY, command: str = COMMAND) -> dict[str, Any]:
    """What a store was made on and for: the keys `format`, `hardware` and `request`.

    Args:
        folder: the store.
        name: of the file; each kind of records has its own.
        command: what makes such a store.

    Raises:
        InvalidInput: the folder is no store, or one of another format version.
    """
    path = folder / name
    if is_missing(path):
        raise InvalidInput(f"{folder}: is no sample store ({name} is missing); make one with: {command} -o {folder}")
    identity = parse_document(path, "identity of a sample store")
    if not isinstance(identity, dict) or not {"format", "hardware", "request"} <= identity.keys():
        raise InvalidInput(f"{path}: must hold format, hardware and request; {_REWRITE}")
    if identity["format"] != FORMAT:
        raise InvalidInput(
            f"{path}: format version {identity['format']}, this release reads version {FORMAT}; collect into a new folder"
        )
    if not isinstance(identity["hardware"], dict) or not isinstance(identity["request"], dict):
        raise InvalidInput(f"{path}: hardware and request must be objects; {_REWRITE}")
    return identity


def check_claim(
    path: Path,
    found: Mapping[str, Any],
    mine: Mapping[str, Any],
    allow_other: bool,
    decisive: Sequence[str] = DECISIVE,
) -> None:
    """Check that a collection may go on with what it found.

    Args:
        path: the file that says so.
        found: identity in the file.
        mine: identity of the collection.
        allow_other: whether other hardware is fine.
        decisive: fields of the hardware that must agree.

    Raises:
        InvalidInput: the hardware differs, or something else is asked for.
    """
    if not allow_other:
        check_hardware(path, found["hardware"], mine["hardware"], decisive)
    before, now = found["request"], mine["request"]
    # A request leaves out what has its usual value, so a key that only one of the two names differs as well. What neither names is
    # usual in both: stores made before there was such a key go on.
    for key in [*now, *(key for key in before if key not in now)]:
        named = key in before and key in now
        if not named or before[key] != now[key]:
            raise InvalidInput(
                f"{path}: this store was collected with {key} {before.get(key, _UNNAMED)}, now {now.get(key, _UNNAMED)} is asked for; "
                f"use the same {'value' if named else 'options, such as --space'}, or another folder"
            )


def check_hardware(
    path: Path, found: Mapping[str, str], expected: Mapping[str, str], decisive: Sequence[str] = DECISIVE
) -> None:
    """Check a fingerprint.

    Raises:
        InvalidInput: it differs from the expected one in a decisive field.
    """
    differing = differences(found, expected, decisive)
    if differing:
        raise InvalidInput(
            f"{path}: measured on other hardware or software ({'; '.join(differing)}); use a store of this machine, or allow it "
            "with allow_other_hardware (--allow-other-hardware)"
        )
