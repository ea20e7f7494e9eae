"""Sketches against exact counts: bounds that hold for any stream, and merging in any order."""

from __future__ import annotations

from collections import Counter
from functools import reduce

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from shardwright.task import AccessProfile
from shardwright.workload.profile.sketch import AccessSketch, access_profile, ranked_counts, scramble

skewed_ids = st.one_of(st.integers(0, 5), st.integers(0, 60), st.integers(0, 2**64 - 1))
streams = st.lists(skewed_ids, max_size=400)
parted_streams = st.lists(st.lists(skewed_ids, max_size=80), min_size=1, max_size=8)
limits = st.integers(2, 40)


def keys_of(ids: list[int]) -> np.ndarray:
    return scramble(np.array(ids, dtype=np.uint64))


def sketch_of(parts: list[list[int]], limit: int) -> AccessSketch:
    return reduce(AccessSketch.merged, (AccessSketch.of(keys_of(part), limit) for part in parts), AccessSketch(limit))


def flat(parts: list[list[int]]) -> list[int]:
    return [one for part in parts for one in part]


@given(parted_streams, limits)
def test_every_count_lies_within_its_bounds(parts, limit):
    ids = flat(parts)
    sketch = sketch_of(parts, limit)
    true = Counter(keys_of(ids).tolist())
    assert sketch.events == len(ids)
    assert sketch.sample_keys.size <= limit
    assert sketch.heavy_keys.size <= limit // 2
    sample = dict(zip(sketch.sample_keys.tolist(), sketch.sample_counts.tolist(), strict=True))
    assert sample == {key: count for key, count in true.items() if key < 1 << (64 - sketch.level)}
    bounds = zip(sketch.heavy_keys.tolist(), sketch.heavy_counts.tolist(), sketch.heavy_missed.tolist(), strict=True)
    held = set(sample)
    for key, count, missed in bounds:
        assert 0 <= missed <= sketch.error
        assert count <= true[key] <= count + missed
        held.add(key)
    assert all(count <= sketch.error for key, count in true.items() if key not in held)
    assert sketch.error <= len(ids) / (limit // 2 + 1)


@given(parted_streams, limits, st.randoms())
def test_the_sample_does_not_depend_on_the_split_or_order(parts, limit, random):
    one_pass = AccessSketch.of(keys_of(flat(parts)), limit)
    random.shuffle(parts)
    merged = sketch_of(parts, limit)
    assert (merged.level, merged.events) == (one_pass.level, one_pass.events)
    assert np.array_equal(merged.sample_keys, one_pass.sample_keys)
    assert np.array_equal(merged.sample_counts, one_pass.sample_counts)


@given(streams, limits)
def test_the_level_is_the_lowest_that_fits(ids, limit):
    sketch = AccessSketch.of(keys_of(ids), limit)
    if sketch.level:
        below = {key for key in keys_of(ids).tolist() if key < 1 << (64 - sketch.level + 1)}
        assert len(below) > limit


@given(parted_streams.filter(any))
def test_it_is_exact_while_the_ids_fit(parts):
    counts = list(Counter(flat(parts)).values())
    sketch = sketch_of(parts, limit=max(2, len(counts)))
    assert sketch.exact
    assert sketch.error == 0
    assert sketch.distinct == len(counts)
    assert sorted(ranked_counts(sketch)[0]) == sorted(counts)
    profile, exact = access_profile(sketch), AccessProfile.from_counts(counts)
    np.testing.assert_allclose(profile.share, np.interp(profile.rows, exact.rows, exact.share), atol=1e-6)


@given(parted_streams.filter(any), limits, st.integers(0, 10**9))
def test_the_profile_is_valid_for_any_stream(parts, limit, unseen):
    sketch = sketch_of(parts, limit)
    profile = access_profile(sketch, sketch.distinct + unseen)
    assert profile.total_rows == sketch.distinct + unseen
    assert profile.rows.size <= 103
    assert profile.share_of(0, sketch.distinct) == 1


@given(parted_streams.filter(any), limits)
def test_ranked_counts_add_up_to_ids_and_events(parts, limit):
    sketch = sketch_of(parts, limit)
    counts, weights = ranked_counts(sketch)
    assert (np.diff(counts) <= 0).all()
    if sketch.exact:
        assert weights.sum() == sketch.distinct
        assert counts @ weights == sketch.events
