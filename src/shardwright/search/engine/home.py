"""Where the pieces of a plan to start from lie, so that a search can price what would have to move."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from shardwright.search.engine.blocks import Floats, Ints


class Home(NamedTuple):
    """The plan to start from, as `state.Setting` holds it.

    Attributes:
        form: `(items,)` form of each item, or -1; `(0,)` without a plan.
        first: `(items + 1,)` where the devices of each item begin; `(0,)` without a plan.
        device: devices that hold a part.
        width: units they hold.
        price: `(1,)` ms a byte that a device has to receive.
    """

    form: Ints
    first: Ints
    device: Ints
    width: Ints
    price: Floats


_NONE = np.zeros(0, dtype=np.int64)
NO_HOME = Home(_NONE, _NONE, _NONE, _NONE, np.zeros(1))
"""No plan to start from."""
