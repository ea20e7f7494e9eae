"""How near sketches that forget come to the truth, on streams long enough for statistics."""

import numpy as np
import pytest

from shardwright.task import AccessProfile
from shardwright.workload.profile.curve import access_profile, ranked_counts
from shardwright.workload.profile.keys import scramble
from shardwright.workload.profile.sketch import AccessSketch

LIMIT = 1 << 12
EVENTS = 600_000


def zipf_stream(exponent, rows=200_000, seed=0):
    probability = np.arange(1, rows + 1.0) ** -exponent
    return np.random.default_rng(seed).choice(rows, EVENTS, p=probability / probability.sum())


def sketched(ids, limit=LIMIT, chunk=50_000):
    sketch = AccessSketch(limit)
    for start in range(0, ids.size, chunk):
        sketch = sketch.merged(AccessSketch.of(scramble(ids[start : start + chunk].astype(np.uint64)), limit))
    return sketch


@pytest.mark.parametrize("exponent", [0.0, 0.8, 1.05, 1.5])
def test_distinct_and_profile_of_a_long_stream(exponent):
    ids = zipf_stream(exponent)
    sketch = sketched(ids)
    counts = np.unique(ids, return_counts=True)[1]
    assert not sketch.exact
    assert sketch.distinct == pytest.approx(counts.size, rel=4 * sketch.distinct_error)
    profile, exact = access_profile(sketch), AccessProfile.from_counts(counts)
    ranks = np.geomspace(1, counts.size, 100)
    error = np.interp(ranks, profile.rows, profile.share) - np.interp(ranks, exact.rows, exact.share)
    assert np.abs(error).max() < 0.02


def test_hot_ids_are_counted_exactly():
    ids = zipf_stream(1.2)
    sketch = sketched(ids)
    hottest = np.sort(np.unique(ids, return_counts=True)[1])[::-1][:50]
    assert ranked_counts(sketch)[0][:50].tolist() == hottest.tolist()


def test_weights_stand_for_all_ids_and_events():
    sketch = sketched(zipf_stream(0.9))
    counts, weights = ranked_counts(sketch)
    assert weights.sum() == pytest.approx(sketch.distinct)
    assert counts @ weights == pytest.approx(EVENTS)


def test_merging_two_halves_is_near_to_one_pass():
    ids = zipf_stream(1.05)
    whole, halves = sketched(ids), sketched(ids[::2]).merged(sketched(ids[1::2]))
    assert halves.events == whole.events
    assert halves.level == whole.level
    assert np.array_equal(halves.sample_counts, whole.sample_counts)
    ranks = np.geomspace(1, whole.distinct, 100)
    left, right = access_profile(whole), access_profile(halves)
    difference = np.interp(ranks, left.rows, left.share) - np.interp(ranks, right.rows, right.share)
    assert np.abs(difference).max() < 0.01


def test_ids_chosen_against_the_hash_still_give_a_profile():
    keys = np.arange(2**63, 2**63 + 1000, dtype=np.uint64)  # all in the upper half: none is sampled
    sketch = AccessSketch.of(keys, 64)
    assert sketch.sample_keys.size == 0
    assert access_profile(sketch).total_rows == sketch.distinct == 1
    more = sketch.merged(AccessSketch.of(keys[:10], 64))
    assert access_profile(more).total_rows == more.distinct == 10


def test_an_empty_chunk_changes_nothing():
    sketch = sketched(zipf_stream(1.05)[:1000])
    same = sketch.merged(AccessSketch.of(np.zeros(0, np.uint64), LIMIT))
    assert (same.events, same.distinct, same.level) == (sketch.events, sketch.distinct, sketch.level)
