from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.strategies import access_profiles

from shardwright.sharding.work import ShardWork
from shardwright.task.access import AccessProfile
from shardwright.workload.batches import Scatter, draw_batch, draw_ranks


@st.composite
def works(draw: st.DrawFn) -> ShardWork:
    rows = draw(st.integers(1, 10**6))
    access = draw(access_profiles(rows))
    if draw(st.booleans()):  # a random block: fractions of rows
        rows = draw(st.integers(1, rows))
        access = access.thinned(rows)
    samples = draw(st.integers(1, 64))
    weights = draw(st.lists(st.floats(0.1, 1), min_size=1, max_size=4))
    shares = tuple(weight / sum(weights) for weight in weights)
    lookups, pooled = draw(st.floats(0.01, 500)), draw(st.booleans())
    return ShardWork(rows, 8, samples, lookups, pooled, access, feature_shares=shares)


@given(works(), st.integers(0, 2**32))
def test_a_batch_is_well_formed(work: ShardWork, seed: int) -> None:
    batch = draw_batch(work, np.random.default_rng(seed))
    assert batch.indices.dtype == batch.offsets.dtype == np.int64
    assert batch.offsets.shape == (work.bags + 1,)
    assert batch.offsets[0] == 0
    assert batch.offsets[-1] == batch.indices.size
    assert (np.diff(batch.offsets) >= 0).all()
    for share, sizes in zip(work.feature_shares, np.diff(batch.offsets).reshape(-1, work.samples), strict=True):
        assert sizes.sum() in (math.floor(work.lookups * share), math.ceil(work.lookups * share))
        assert not work.pooled or np.ptp(sizes) <= 1
    assert batch.indices.size == 0 or 0 <= batch.indices.min() <= batch.indices.max() < work.rows


@given(works(), st.integers(0, 2**32))
def test_the_seed_decides_and_the_dim_does_not(work: ShardWork, seed: int) -> None:
    first, again = (draw_batch(work, np.random.default_rng(seed)) for _ in range(2))
    wider = draw_batch(replace(work, dim=128), np.random.default_rng(seed))
    for other in (again, wider):
        assert np.array_equal(first.indices, other.indices)
        assert np.array_equal(first.offsets, other.offsets)


@given(st.integers(1, 5000), st.integers(0, 2**32))
def test_scattering_is_a_bijection(rows: int, seed: int) -> None:
    scatter = Scatter.draw(rows, np.random.default_rng(seed))
    assert np.array_equal(np.sort(scatter(np.arange(rows))), np.arange(rows))


@given(st.integers(10**9, 2**61), st.integers(0, 2**32))
def test_scattering_does_not_overflow(rows: int, seed: int) -> None:
    scatter = Scatter.draw(rows, np.random.default_rng(seed))
    ranks = [0, rows // 2, rows - 1]
    expected = [(rank * scatter.multiplier + scatter.shift) % rows for rank in ranks]
    assert scatter(np.array(ranks)).tolist() == expected


def test_hot_rows_are_scattered() -> None:
    ids = Scatter.draw(1_000_000, np.random.default_rng(0))(np.arange(100))
    assert np.ptp(ids) > 500_000
    assert np.abs(np.diff(ids)).min() > 10


@pytest.mark.parametrize("exponent", [0.0, 0.7, 1.05, 1.6])
@pytest.mark.parametrize(("rows", "lookups"), [(1000, 20_000), (100_000, 50_000), (10_000_000, 200_000)])
def test_distinct_rows_and_reuse_are_as_the_profile_expects(exponent: float, rows: int, lookups: int) -> None:
    access = AccessProfile.zipf(rows, exponent)
    work = ShardWork(rows, 8, 1000, lookups, True, access)
    _, times = np.unique(draw_batch(work, np.random.default_rng(1)).indices, return_counts=True)
    expected = access.distinct_rows(lookups)
    assert abs(times.size - expected) < 5 * math.sqrt(expected)
    bin_of = np.minimum(np.ceil(np.log2(times)).astype(int), 16)
    found_rows, found_lookups = (np.bincount(bin_of, weights=w, minlength=17) for w in (np.ones_like(times), times))
    for drawn, wanted in zip((found_rows, found_lookups), access.reuse(lookups), strict=True):
        # The profile has one density per segment of ranks, so a hot row may lie in the bin beside.
        assert np.abs(np.cumsum(drawn) - np.cumsum(wanted)).max() < 0.02 * wanted.sum() + 5 * math.sqrt(wanted.sum())


def test_the_hottest_rank_is_drawn_as_often_as_its_share_says() -> None:
    access = AccessProfile.zipf(500, 1.2)
    ranks = draw_ranks(ShardWork(500, 8, 10, 1e5, True, access), 100_000, np.random.default_rng(2))
    assert abs((ranks == 0).mean() - access.share_of(0, 1)) < 0.01
    assert abs((ranks < 50).mean() - access.share_of(0, 50)) < 0.01


def test_lookups_are_rounded_without_bias() -> None:
    work = ShardWork(100, 8, 4, 0.3, True, AccessProfile.uniform(100))
    rng = np.random.default_rng(3)
    assert abs(np.mean([draw_batch(work, rng).indices.size for _ in range(3000)]) - 0.3) < 0.05


def test_sequences_have_poisson_lengths() -> None:
    work = ShardWork(100, 8, 5000, 50_000, False, AccessProfile.uniform(100))
    sizes = np.diff(draw_batch(work, np.random.default_rng(4)).offsets)
    assert sizes.mean() == 10
    assert abs(sizes.var() - 10) < 1
