import itertools

import numpy as np
import pytest

from shardwright.search.engine.shortest import cheapest_widths


def compositions(units):
    for cuts in itertools.product([False, True], repeat=units - 1):
        parts, part = [], 1
        for cut in cuts:
            if cut:
                parts.append(part)
                part = 1
            else:
                part += 1
        yield [*parts, part]


@pytest.mark.parametrize("seed", range(20))
def test_it_is_the_cheapest_of_all_compositions(seed):
    rng = np.random.default_rng(seed)
    units = rng.integers(1, 9, 4)
    first = np.concatenate([[0], np.cumsum(units)])
    price = rng.normal(1, 2, first[-1])
    least, most = rng.integers(1, 3, 4), np.where(rng.random(4) < 0.3, 1, units)
    least[most < 2] = 1
    result, uses, blocks = cheapest_widths(first, least, most, price)
    for table in range(4):
        costs = {
            tuple(parts): sum(price[first[table] + part - 1] for part in parts)
            for parts in compositions(int(units[table]))
            if len(parts) >= least[table] and (most[table] > 1 or len(parts) == 1)
        }
        assert result[table] == pytest.approx(min(costs.values()) if costs else np.inf)
        if costs:
            mine = uses[first[table] : first[table + 1]]
            assert (mine * np.arange(1, units[table] + 1)).sum() == units[table]
            assert mine.sum() == blocks[table]
