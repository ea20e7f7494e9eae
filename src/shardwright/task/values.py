"""Numbers, truth values and lists as callers have them (of NumPy and pandas too), as plain Python values.

Bools are no numbers here: `rows=True` is a slip, not one row. Everything a task keeps is plain, so that files can hold it.
"""

from __future__ import annotations

import math
import operator
import reprlib
from collections.abc import Iterable, Mapping, Set
from numbers import Real

import numpy as np

from shardwright.errors import InvalidInput


def whole(value: object) -> int | None:
    """The value as an int where it is a whole number by its type; None for anything else, as for 2.0 and True."""
    if type(value) is int:  # nearly always, and a task has thousands of tables
        return value
    if isinstance(value, bool):
        return None
    try:
        return operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        return None


def real(value: object) -> float | None:
    """The value as a float where it is a real number, infinite where it is too large for one; None for anything else."""
    if type(value) is float:
        return value
    if isinstance(value, bool) or not isinstance(value, Real):
        return None
    try:
        return float(value)
    except OverflowError:
        return math.inf


def listed(value: object) -> tuple[object, ...] | None:
    """The items of a list, tuple, range, array or any other iterable, as they come; None for text, mappings and what has no items."""
    if type(value) is tuple:
        return value
    if isinstance(value, (str, bytes, bytearray, Mapping)) or not isinstance(value, Iterable):
        return None
    try:
        return tuple(value)
    except TypeError:  # an array without dimensions has the method, but no items
        return None


def whole_list(value: object) -> tuple[int, ...] | None:
    """The whole numbers of a list or another iterable, those of a set sorted; None if it is none or an item is no whole number."""
    items = listed(value)
    numbers = None if items is None else [number for item in items if (number := whole(item)) is not None]
    if items is None or numbers is None or len(numbers) < len(items):
        return None
    return tuple(sorted(numbers) if isinstance(value, Set) else numbers)


def text_list(value: object) -> tuple[str, ...] | None:
    """The texts of a list or another iterable, those of a set sorted; None if it is none or an item is no text."""
    items = listed(value)
    texts = None if items is None else [str(item) for item in items if isinstance(item, str)]
    if items is None or texts is None or len(texts) < len(items):
        return None
    return tuple(sorted(texts) if isinstance(value, Set) else texts)


def checked_whole(value: object, what: str, most: int | None = None) -> int:
    """The value as an int.

    Args:
        value: what a caller gave.
        what: what to call it in the message: "table 't': rows".
        most: the largest it may be, a power of two; None for no limit.

    Raises:
        InvalidInput: it is no whole number, less than 1, or more than `most`.
    """
    number = whole(value)
    if number is None or number < 1 or (most is not None and number > most):
        bounds = "of at least 1" if most is None else f"from 1 to 2**{most.bit_length() - 1}"
        raise InvalidInput(f"{what} is {reprlib.repr(value)}, must be a whole number {bounds}")
    return number


def checked_flag(value: object, what: str) -> bool:
    """The value as a bool.

    Raises:
        InvalidInput: it is none: text and numbers, which Python takes for true or false, are not.
    """
    if not isinstance(value, (bool, np.bool_)):
        raise InvalidInput(f"{what} is {reprlib.repr(value)}, must be True or False")
    return bool(value)
