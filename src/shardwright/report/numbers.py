"""Short numbers for JSON: figures for people need no 17 digits."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

EXACT = 6
SHARE = 3


def short(value: float, digits: int = EXACT) -> float | int:
    """The value rounded to so many significant digits, whole numbers without a point."""
    rounded = float(f"{value:.{digits}g}")
    return int(rounded) if rounded.is_integer() else rounded


def shorts(values: Iterable[float], digits: int = EXACT) -> list[float | int]:
    """The values, each as `short` makes it."""
    return [short(value, digits) for value in np.asarray(list(values), dtype=np.float64).tolist()]
