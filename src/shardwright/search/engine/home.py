"""Where the pieces of a plan to start from lie, and what it costs a search to have devices receive others."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from shardwright.search.engine.blocks import Floats, Ints


class Home(NamedTuple):
    """The plan to start from, in the terms of a search.

    A device holds the units `[start, start + width)` of an item's form; where it held several ranges, the widest counts.

    Attributes:
        form: `(items,)` form of each item, or -1; `(0,)` without a plan.
        first: `(items + 1,)` where the devices of each item begin; `(0,)` without a plan.
        device: devices that hold a part, ascending for each item.
        width: units they hold.
        start: the first unit they hold.
        unit_ms: `(f,)` ms that a unit of each form costs its receiver; 0 of tables that have to be made anew wherever they lie.
        spread_ms: `(spreads,)` ms that taking each spread costs, over all its devices.
        least_ms: `(items,)` ms that every way of an item costs at least: what no device holds has to be received by some.
    """

    form: Ints
    first: Ints
    device: Ints
    width: Ints
    start: Ints
    unit_ms: Floats
    spread_ms: Floats
    least_ms: Floats


_NO_INTS, _NO_FLOATS = np.zeros(0, dtype=np.int64), np.zeros(0)
NO_HOME = Home(_NO_INTS, _NO_INTS, _NO_INTS, _NO_INTS, _NO_INTS, _NO_FLOATS, _NO_FLOATS, _NO_FLOATS)
"""No plan to start from."""
