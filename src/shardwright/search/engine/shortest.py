"""The cheapest way to cut a width into blocks: a shortest path over widths, for all tables at once."""

from __future__ import annotations

import numpy as np
from numba import njit

from shardwright.search.engine.devices import Floats, Ints


@njit(cache=True)
def cheapest_widths(first: Ints, least: Ints, most: Ints, price: Floats) -> tuple[Floats, Floats, Ints]:
    """Cut each table into at least `least` and at most `most` blocks so that the sum of their prices is smallest.

    The limit on the number of blocks is kept where it is 1 and dropped where it is larger: dropping it only lowers the result.

    Args:
        first: `(tables + 1,)` rows of `price` by table: blocks of 1, 2, … units.
        least: `(tables,)` 1 or 2; infeasible where 2 and the table has a single unit.
        most: `(tables,)`.
        price: `(rows,)` any sign.

    Returns:
        `(tables,)` cheapest sums, infinite where infeasible; `(rows,)` how often each block is used; `(tables,)` blocks.
    """
    tables = first.size - 1
    result = np.empty(tables)
    uses = np.zeros(price.size)
    blocks = np.ones(tables, dtype=np.int64)
    for table in range(tables):
        begin, units = first[table], first[table + 1] - first[table]
        if most[table] < 2 or units < 2:
            result[table] = price[begin + units - 1] if least[table] < 2 else np.inf
            uses[begin + units - 1] = least[table] < 2
            continue
        best = np.zeros(units + 1)
        step = np.zeros(units + 1, dtype=np.int64)
        for width in range(1, units + 1):
            best[width] = np.inf
            longest = width if width < units or least[table] < 2 else width - 1
            for part in range(1, longest + 1):
                cost = best[width - part] + price[begin + part - 1]
                if cost < best[width]:
                    best[width], step[width] = cost, part
        result[table] = best[units]
        left, count = units, 0
        while left > 0:
            uses[begin + step[left] - 1] += 1
            left -= step[left]
            count += 1
        blocks[table] = count
    return result, uses, blocks
