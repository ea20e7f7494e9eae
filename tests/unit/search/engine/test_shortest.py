import itertools

import numpy as np
import pytest

from shardwright._engine import cheapest_widths


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
def test_it_has_as_many_blocks_as_asked_for(seed):
    rng = np.random.default_rng(seed)
    units, fewest = rng.integers(1, 8, 4), rng.integers(0, 9, 4)
    first = np.concatenate([[0], np.cumsum(units)])
    price = np.where(rng.random(first[-1]) < 0.2, np.inf, rng.normal(0, 2, first[-1]))
    result, uses = cheapest_widths(first, price, fewest)
    for form in range(4):
        cuts = [parts for parts in compositions(int(units[form])) if len(parts) >= fewest[form]]
        best = min((sum(price[first[form] + part - 1] for part in parts) for parts in cuts), default=np.inf)
        assert result[form] == pytest.approx(best)
        mine = uses[first[form] : first[form + 1]]
        assert mine.sum() == 0 if np.isinf(best) else mine.sum() >= fewest[form]


@pytest.mark.parametrize("seed", range(20))
def test_it_is_the_cheapest_of_all_compositions(seed):
    rng = np.random.default_rng(seed)
    units = rng.integers(1, 9, 4)
    first = np.concatenate([[0], np.cumsum(units)])
    price = np.where(rng.random(first[-1]) < 0.3, np.inf, rng.normal(1, 2, first[-1]))
    result, uses = cheapest_widths(first, price)
    for form in range(4):
        best = min(sum(price[first[form] + part - 1] for part in parts) for parts in compositions(int(units[form])))
        assert result[form] == pytest.approx(best)
        mine = uses[first[form] : first[form + 1]]
        if np.isfinite(best):
            assert (mine * np.arange(1, units[form] + 1)).sum() == units[form]
            assert mine @ np.where(mine > 0, price[first[form] : first[form + 1]], 0) == pytest.approx(best)
        else:
            assert mine.sum() == 0
