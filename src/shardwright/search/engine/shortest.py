"""The cheapest way to cut a width into blocks: a shortest path over widths, for all forms at once."""

from __future__ import annotations

import numpy as np

from shardwright.jit import compiled, inner
from shardwright.search.engine.devices import Floats, Ints


@compiled
def cheapest_widths(first: Ints, price: Floats) -> tuple[Floats, Ints]:
    """Cut each form into blocks so that the sum of their prices is smallest.

    Args:
        first: `(f + 1,)` rows of `price` by form: blocks of 1, 2, … units.
        price: `(rows,)` any sign; infinite where a block is not allowed.

    Returns:
        `(f,)` cheapest sums, infinite where no way is allowed; `(rows,)` how often each block is used.
    """
    forms = first.size - 1
    result = np.empty(forms)
    uses = np.zeros(price.size, dtype=np.int64)
    best, step = np.zeros(_widest(first) + 1), np.zeros(_widest(first) + 1, dtype=np.int64)
    for form in range(forms):
        begin, units = first[form], first[form + 1] - first[form]
        for width in range(1, units + 1):
            best[width], step[width] = np.inf, 0
            for part in range(1, width + 1):
                cost = best[width - part] + price[begin + part - 1]
                if cost < best[width]:
                    best[width], step[width] = cost, part
        result[form] = best[units]
        left = units if best[units] < np.inf else 0
        while left > 0:
            uses[begin + step[left] - 1] += 1
            left -= step[left]
    return result, uses


@compiled
def least_bottlenecks(first: Ints, value: Floats) -> Floats:
    """Cut each form into blocks so that the largest of their values is smallest.

    Args:
        first: `(f + 1,)` rows of `value` by form: blocks of 1, 2, … units.
        value: `(rows,)`; infinite where a block is not allowed.

    Returns:
        `(f,)` the largest value of a block in the best way; infinite where no way is allowed.
    """
    result = np.empty(first.size - 1)
    best = np.zeros(_widest(first) + 1)
    best[0] = -np.inf
    for form in range(first.size - 1):
        begin, units = first[form], first[form + 1] - first[form]
        for width in range(1, units + 1):
            best[width] = np.inf
            for part in range(1, width + 1):
                best[width] = min(best[width], max(best[width - part], value[begin + part - 1]))
        result[form] = best[units]
    return result


@inner
def _widest(first: Ints) -> int:
    """The most units that a form has. A loop, since `np.diff` takes seconds to compile."""
    most = 0
    for form in range(first.size - 1):
        most = max(most, first[form + 1] - first[form])
    return most
