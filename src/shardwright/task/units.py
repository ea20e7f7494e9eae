"""Sizes and bandwidths as people write them: "80 GB", "4 GiB", "450 GB/s", "200 Gbit/s"."""

from __future__ import annotations

import math
import re
import reprlib

from shardwright.errors import InvalidInput
from shardwright.task.values import real, whole

_BYTES = {"B": 1} | {
    prefix + suffix: base**power
    for power, prefix in enumerate("KMGTP", start=1)
    for suffix, base in (("B", 1000), ("iB", 1024))
}
_BITS = {prefix + "bit": 1000**power / 8 for power, prefix in enumerate(("", "K", "M", "G", "T"))}
LEAST_BARE = 1_000_000
"""Smallest size or bandwidth that a file may give without a unit."""
_QUANTITY = re.compile(r"\s*([0-9][0-9_]*(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?)\s*([A-Za-z]+)?(/s)?\s*")


def parse_bytes(value: object, field: str = "memory") -> int:
    """Bytes of a size given as an integer or as text such as "80 GB" or "4 GiB".

    Raises:
        InvalidInput: the value is no size, is not positive, or its unit is unknown.
    """
    number = whole(value)  # not by way of a float, which does not hold every whole number
    size = round(_parse(value, field, per_second=False)) if number is None else number
    if not 1 <= size < 2**63:
        raise InvalidInput(f"{field}: {reprlib.repr(value)} must be at least 1 byte and less than 2**63 bytes")
    return size


def parse_bandwidth(value: object, field: str = "bandwidth") -> float:
    """Bytes per second of a bandwidth given as a number or as text such as "450 GB/s" or "200 Gbit/s".

    Raises:
        InvalidInput: the value is no bandwidth, is not positive, or its unit is unknown.
    """
    return _parse(value, field, per_second=True)


def check_unit(value: object, field: str, *, per_second: bool = False) -> None:
    """Refuse a small number without a unit, as in "memory: 80": whoever writes it hardly means bytes.

    Raises:
        InvalidInput: the value is a bare number below `LEAST_BARE`.
    """
    match = _QUANTITY.fullmatch(value) if isinstance(value, str) else None
    bare = float(match[1].replace("_", "")) if match and not match[2] else real(value)
    if bare is not None and 0 < bare < LEAST_BARE:
        unit, example = ("bytes per second", f"'{bare:g} GB/s'") if per_second else ("bytes", f"'{bare:g} GB'")
        raise InvalidInput(f"{field}: {reprlib.repr(value)} would be {bare:g} {unit}; add a unit, as in {example}")


def format_bytes(size: float) -> str:
    """A size for people, in decimal units: 61_000_000_000 → "61.0 GB"."""
    for unit in ("B", "KB", "MB", "GB", "TB"):
        if abs(size) < 1000:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} PB"


def _parse(value: object, field: str, *, per_second: bool) -> float:
    example = "'450 GB/s'" if per_second else "'80 GB' or '4 GiB'"
    amount = _parse_text(value, field, example, per_second) if isinstance(value, str) else real(value)
    if amount is None:
        raise InvalidInput(
            f"{field}: {reprlib.repr(value)} is not a quantity; write a number or text such as {example}"
        )
    if not math.isfinite(amount) or amount <= 0:
        raise InvalidInput(f"{field}: {reprlib.repr(value)} must be finite and greater than 0")
    return amount


def _parse_text(text: str, field: str, example: str, per_second: bool) -> float:
    match = _QUANTITY.fullmatch(text)
    if match is None:
        raise InvalidInput(f"{field}: {text!r} is not a quantity; write a number or text such as {example}")
    number, unit, slash = match.groups()
    units = {**_BYTES, **_BITS} if per_second else _BYTES
    if unit is not None and unit not in units:
        raise InvalidInput(f"{field}: unknown unit {unit!r} in {text!r}; known units are {', '.join(units)}")
    if bool(slash) != per_second and (unit is not None or slash):
        raise InvalidInput(f"{field}: {text!r} should {'end' if per_second else 'not end'} in '/s', as in {example}")
    return float(number.replace("_", "")) * (units[unit] if unit else 1)
