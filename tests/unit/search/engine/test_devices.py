"""A device is the sum of its calls, and a change prices exactly those that it touches."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from shardwright.cost.pricing import Pricing
from shardwright.jit import compiled
from shardwright.search.engine.devices import book_parts, times_after, times_of
from shardwright.search.engine.parts import Added, priced

CALLS, HIDDEN = 3, 4


@compiled
def trade(row_out, row_in, held, part, call, vectors, base, once, mix):
    """Times before, as promised, as booked, and what is left of the sums after everything has gone."""
    sums, counts = np.empty((1, CALLS, base.size)), np.zeros((1, CALLS), dtype=np.int64)
    priced = np.zeros((1, CALLS, 2))
    for kind in range(CALLS):
        sums[0, kind] = base
    for row in held:
        book_parts(0, row, 1, part, call, vectors, base, sums, counts, priced)
    forward, backward = times_of(0, once, sums, counts, priced, mix)
    promised = times_after(0, row_out, row_in, forward, backward, part, call, vectors, sums, counts, priced, mix)
    if row_out >= 0:
        book_parts(0, row_out, -1, part, call, vectors, base, sums, counts, priced)
    if row_in >= 0:
        book_parts(0, row_in, 1, part, call, vectors, base, sums, counts, priced)
    booked = times_of(0, once, sums, counts, priced, mix)
    for row in held:
        if row != row_out:
            book_parts(0, row, -1, part, call, vectors, base, sums, counts, priced)
    if row_in >= 0:
        book_parts(0, row_in, -1, part, call, vectors, base, sums, counts, priced)
    return (forward, backward), promised, booked, sums, times_of(0, once, sums, counts, priced, mix)


def by_definition(rows, added, pricing):
    """Sum over the calls that some row is in."""
    total = pricing.once.copy()
    for kind in range(CALLS):
        parts = [p for r in rows for p in range(added.part[r], added.part[r + 1]) if added.call[p] == kind]
        if parts:
            z = added.vectors[parts].sum(axis=0)
            hidden = np.maximum(z[:HIDDEN] + pricing.hidden_bias, 0.0)
            total += np.maximum(pricing.mix @ hidden + z[HIDDEN:] + pricing.bias, 0.0)
    return total


@given(st.data(), st.integers(0, 2**31))
@settings(max_examples=300)
def test_a_change_is_priced_as_if_all_calls_were_priced_anew(data, seed):
    rng, blocks = np.random.default_rng(seed), 20
    call, vectors = rng.integers(0, CALLS, blocks), rng.normal(0, 1, (blocks, HIDDEN + 2))
    groups = [rng.choice(blocks, rng.integers(1, 4), replace=False) for _ in range(8)]
    added = Added.of_groups(call, vectors, groups)
    pricing = Pricing(
        np.zeros((HIDDEN, 0)), rng.normal(0, 1, HIDDEN), rng.random((2, HIDDEN)), np.zeros((2, 0)),
        rng.normal(1, 1, 2), rng.random(2),
    )  # fmt: skip
    held = np.array(data.draw(st.lists(st.integers(0, 7), max_size=6)), dtype=np.int64)
    out = data.draw(st.sampled_from([-1, *held.tolist()]))
    into = data.draw(st.integers(-1, 7))
    base = np.concatenate([pricing.hidden_bias, pricing.bias])
    held_once = np.unique(held)
    before, promised, booked, left, nothing = trade(
        out, into, held_once, *added, base, pricing.once, np.ascontiguousarray(pricing.mix)
    )
    after = [row for row in held_once.tolist() if row != out] + [into] * (into >= 0)
    np.testing.assert_allclose(before, by_definition(held_once, added, pricing))
    np.testing.assert_allclose(booked, by_definition(after, added, pricing), atol=1e-12)
    np.testing.assert_allclose(promised, booked, atol=1e-12)
    np.testing.assert_array_equal(left[0], np.tile(base, (CALLS, 1)))
    np.testing.assert_array_equal(nothing, pricing.once)


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
