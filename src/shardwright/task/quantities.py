"""Convert quantities and names that callers and files state ("80 GB", "450 GB/s", "40M", "float16") to plain Python values.

Bools do not count as numbers: `rows=True` is a slip, not one row. A task keeps plain values only, so that files can hold them.
"""

from __future__ import annotations

import math
import operator
import re
import reprlib
from collections.abc import Callable, Collection, Iterable, Mapping, Set
from decimal import Decimal
from difflib import get_close_matches
from numbers import Real
from typing import TypeVar

import numpy as np

from shardwright.errors import InvalidInput

_Item = TypeVar("_Item", int, str)


def whole(value: object) -> int | None:
    """Return the value as an int if its type is a whole number; None for anything else, such as 2.0 and True."""
    if type(value) is int:  # the common case first: a task has thousands of tables
        return value
    if isinstance(value, bool):
        return None
    try:
        return operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        return None


def real(value: object) -> float | None:
    """Return the value as a float if it is a real number, infinity if it is too large for a float; None for anything else."""
    if type(value) is float:
        return value
    if isinstance(value, bool) or not isinstance(value, Real):
        return None
    try:
        return float(value)
    except OverflowError:
        return math.inf


def listed(value: object) -> tuple[object, ...] | None:
    """Return the items of a list, tuple, range, array or another iterable; None for text, mappings and values without items."""
    if type(value) is tuple:
        return value
    if isinstance(value, (str, bytes, bytearray, Mapping)) or not isinstance(value, Iterable):
        return None
    try:
        return tuple(value)
    except TypeError:  # an array without dimensions has `__iter__`, but no items
        return None


def text(value: object) -> str | None:
    """Return a text as a plain one; None for anything else."""
    return str(value) if isinstance(value, str) else None


def list_of(kind: Callable[[object], _Item | None], value: object) -> tuple[_Item, ...] | None:
    """Return the items of an iterable as `kind` (`whole`, `text`) converts them, a set's in order; None if it is none or an item fails."""
    items = listed(value)
    converted = [plain for item in items or () if (plain := kind(item)) is not None]
    if items is None or len(converted) < len(items):
        return None
    return tuple(sorted(converted) if isinstance(value, Set) else converted)


def checked_whole(value: object, what: str, most: int | None = None) -> int:
    """Return the value as an int.

    Args:
        value: value from a caller.
        what: its name in the message, such as "table 't': rows".
        most: largest allowed value, a power of two; None for no limit.

    Raises:
        InvalidInput: the value is not a whole number, less than 1, or more than `most`.
    """
    number = whole(value)
    if number is None or number < 1 or (most is not None and number > most):
        bounds = "of at least 1" if most is None else f"from 1 to 2**{most.bit_length() - 1}"
        raise InvalidInput(f"{what} is {reprlib.repr(value)}, must be a whole number {bounds}")
    return number


def checked_number(value: object, what: str, *, zero: bool = False) -> float:
    """Return the value as a float.

    Args:
        value: value from a caller.
        what: its name in the message, such as "table 't': pooling".
        zero: whether 0 is allowed.

    Raises:
        InvalidInput: the value is not a finite number, or negative, or 0 if that is not allowed.
    """
    number = real(value)
    if number is None or not 0 <= number < math.inf or (number == 0 and not zero):
        bound = "of at least 0" if zero else "greater than 0"
        raise InvalidInput(f"{what} is {reprlib.repr(value)}, must be a finite number {bound}")
    return number


def checked_flag(value: object, what: str) -> bool:
    """Return the value as a bool.

    Raises:
        InvalidInput: the value is not a bool; text and numbers do not count, although Python can test their truth.
    """
    if not isinstance(value, (bool, np.bool_)):
        raise InvalidInput(f"{what} is {reprlib.repr(value)}, must be True or False")
    return bool(value)


_COUNT = re.compile(r"\s*([0-9][0-9_]*(?:,[0-9]{3})*(?:\.[0-9]+)?(?:[eE]\+?[0-9]{1,2})?)\s*([kKMGBT]i?)?\s*")
_THOUSANDS = {"k": 1, "K": 1, "M": 2, "G": 3, "B": 3, "T": 4}


def parse_count(value: object, field: str) -> int:
    """Return a count given as a number or as text such as "128", "40M", "4e7", "1,000,000" or "64Ki" (65,536).

    Raises:
        InvalidInput: the value is not a whole number of at least 0, or a text or float of at least 2**63.
    """
    number = whole(value)
    if number is not None:
        return number
    exact = Decimal(value) if isinstance(value, float) and math.isfinite(value) else _count_in(value)
    if exact is None or exact != exact.to_integral_value() or exact >= 2**63:
        raise InvalidInput(
            f"{field} is {reprlib.repr(value)}, must be a whole number, as in 40000000, 40M, 4e7 or 64Ki (k, M, B and T are "
            "thousands, Ki and Mi 1024 and its square), and below 2**63"
        )
    return int(exact)


def parse_number(value: object, field: str) -> float:
    """Return a number given as one or as text such as "1.5", "2e3" or "1.2k".

    Raises:
        InvalidInput: the value is not a number.
    """
    number = real(value)
    exact = _count_in(value) if number is None else None
    if number is None and exact is None:
        raise InvalidInput(f"{field} is {reprlib.repr(value)}, must be a number, as in 1.5, 2e3 or 1.2k")
    return float(exact) if exact is not None else number or 0.0


def _count_in(value: object) -> Decimal | None:
    match = _COUNT.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        return None
    unit = match[2] or ""
    base = 1024 if unit.endswith("i") else 1000
    number = Decimal(match[1].replace("_", "").replace(",", ""))
    return number * Decimal(base) ** (_THOUSANDS[unit[0]] if unit else 0)


def known_name(value: object, known: Collection[str], also: Mapping[str, str] | None = None) -> str | None:
    """Return the known name that a text spells, in any case and with "-", "_" or a blank between words.

    Args:
        value: value from a caller.
        known: the known names.
        also: other names for them, in lower case with "_".

    Returns:
        The name; None if it is none of them, or no text.
    """
    if not isinstance(value, str):
        return None
    if value in known:
        return value
    spelt = _spelt(value)
    names = {_spelt(name): name for name in known}
    return names.get(spelt) or (also or {}).get(spelt)


def checked_name(value: object, what: str, known: Collection[str], also: Mapping[str, str] | None = None) -> str:
    """Return the known name that a text spells, as `known_name`.

    Raises:
        InvalidInput: it spells none.
    """
    name = known_name(value, known, also)
    if name is None:
        raise InvalidInput(
            f"{what} is {reprlib.repr(value)}, must be one of {', '.join(known)}{did_you_mean(value, known)}"
        )
    return name


def did_you_mean(value: object, known: Iterable[str]) -> str:
    """Return "; did you mean 'x'?" for the known name that is closest to a text, or starts with it; empty if none is."""
    spelt, names = _spelt(value) if isinstance(value, str) else "", {_spelt(name): name for name in known}
    starting = [name for name in names if spelt and name.startswith(spelt)]
    close = starting or get_close_matches(spelt, names, n=1)
    return f"; did you mean '{names[close[0]]}'?" if close else ""


def _spelt(name: str) -> str:
    return re.sub(r"[-_ ]+", "_", name.strip().lower())


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
    """Return the bytes of a size given as an integer or as text such as "80 GB" or "4 GiB".

    Raises:
        InvalidInput: the value is not a size, is not positive, or has an unknown unit.
    """
    number = whole(value)  # an int must not pass through a float, which does not hold every whole number
    size = round(_parse(value, field, per_second=False)) if number is None else number
    if not 1 <= size < 2**63:
        raise InvalidInput(f"{field}: {reprlib.repr(value)} must be at least 1 byte and less than 2**63 bytes")
    return size


def parse_bandwidth(value: object, field: str = "bandwidth") -> float:
    """Return the bytes per second of a bandwidth given as a number or as text such as "450 GB/s" or "200 Gbit/s".

    Raises:
        InvalidInput: the value is not a bandwidth, is below 1 byte per second, or has an unknown unit.
    """
    bandwidth = _parse(value, field, per_second=True)
    if bandwidth < 1:
        raise InvalidInput(
            f"{field}: {reprlib.repr(value)} must be at least 1 byte per second; give it as in '450 GB/s'"
        )
    return bandwidth


def check_unit(value: object, field: str, *, per_second: bool = False) -> None:
    """Refuse a small number without a unit: "memory: 80" hardly means 80 bytes.

    Raises:
        InvalidInput: the value is a bare number below `LEAST_BARE`.
    """
    match = _QUANTITY.fullmatch(value) if isinstance(value, str) else None
    bare = float(match[1].replace("_", "")) if match and not match[2] else real(value)
    if bare is not None and 0 < bare < LEAST_BARE:
        unit, example = ("bytes per second", f"'{bare:g} GB/s'") if per_second else ("bytes", f"'{bare:g} GB'")
        raise InvalidInput(f"{field}: {reprlib.repr(value)} would be {bare:g} {unit}; add a unit, as in {example}")


def format_bytes(size: float) -> str:
    """Return a size as text for people, in decimal units: 61_000_000_000 → "61.0 GB"."""
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
    unit = unit and re.sub("^k", "K", unit)  # the prefix of SI
    if unit is not None and unit not in units:
        raise InvalidInput(f"{field}: unknown unit {unit!r} in {text!r}; known units are {', '.join(units)}")
    if bool(slash) != per_second and (unit is not None or slash):
        raise InvalidInput(f"{field}: {text!r} should {'end' if per_second else 'not end'} in '/s', as in {example}")
    return float(number.replace("_", "")) * (units[unit] if unit else 1)
