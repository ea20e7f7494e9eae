"""What rows of pieces add to calls."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from shardwright.search.engine.blocks import Added, priced

CALLS = 3


@given(st.integers(0, 2**31))
def test_rows_keep_their_parts_in_any_order(seed):
    rng = np.random.default_rng(seed)
    call, vectors = rng.integers(0, CALLS, 12), rng.normal(0, 1, (12, 3))
    groups = [rng.choice(12, rng.integers(1, 5), replace=False) for _ in range(6)]
    added = Added.of_groups(call, vectors, groups)
    prices = rng.normal(0, 1, (CALLS, 3))
    by_block = priced(vectors, call, prices)
    np.testing.assert_allclose(by_block, [vectors[i] @ prices[call[i]] for i in range(12)])
    of_rows = np.array([by_block[rows].sum() for rows in groups])
    np.testing.assert_allclose(added.priced(prices), of_rows)
    order = rng.integers(0, 6, 9)
    np.testing.assert_allclose(added.take(order).priced(prices), of_rows[order])
    both = added.then(Added.of(call, vectors))
    np.testing.assert_allclose(both.priced(prices), np.concatenate([of_rows, by_block]))
    for row in range(6):  # one part for each call
        kinds = added.call[added.part[row] : added.part[row + 1]].tolist()
        assert sorted(kinds) == sorted(set(kinds))
