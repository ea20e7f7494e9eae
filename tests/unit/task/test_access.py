from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import poisson

from shardwright.errors import InvalidInput
from shardwright.task import AccessProfile
from shardwright.task.access import REUSE_EDGES, poisson_at_most, poisson_exactly


def zipf_probabilities(rows: int, exponent: float) -> np.ndarray:
    weights = np.arange(1, rows + 1, dtype=np.float64) ** -exponent
    return weights / weights.sum()


@pytest.mark.parametrize("rows", [1, 2, 10, 4096, 4097, 20_000, 300_000])
@pytest.mark.parametrize("exponent", [0.0, 0.3, 1.0, 1 + 1e-12, 1.0005, 1.05, 2.0, 8.0])
def test_zipf_is_the_brute_force_sum(rows: int, exponent: float) -> None:
    profile = AccessProfile.zipf(rows, exponent)
    brute = np.concatenate([[0.0], np.cumsum(zipf_probabilities(rows, exponent))])
    assert profile.total_rows == rows
    assert profile.exponent == exponent
    assert profile.share == pytest.approx(brute[profile.rows.astype(int)], rel=1e-9)


def test_zipf_between_its_points_is_close_to_the_brute_force_sum() -> None:
    brute = np.cumsum(zipf_probabilities(100_000, 1.05))
    profile = AccessProfile.zipf(100_000, 1.05)
    ranks = np.arange(1, 100_001)
    assert np.interp(ranks, profile.rows, profile.share) == pytest.approx(brute, abs=1e-3)


@pytest.mark.parametrize("exponent", [0.5, 1.0, 1.5, 6.0])
def test_zipf_of_a_trillion_rows(exponent: float) -> None:
    profile = AccessProfile.zipf(10**12, exponent)
    assert profile.rows.size <= 101
    assert profile.share_of(0, 10**6) <= 1
    if exponent == 1.0:  # harmonic numbers, ln(n) + Euler's constant
        assert profile.share_of(0, 1) == pytest.approx(1 / (np.log(1e12) + np.euler_gamma), rel=1e-9)


def test_uniform() -> None:
    profile = AccessProfile.uniform(50)
    assert profile.share_of(10, 20) == pytest.approx(0.2)
    assert profile == AccessProfile.zipf(50, 0)


def test_from_counts_sorts_and_keeps_rows_never_seen() -> None:
    profile = AccessProfile.from_counts([1, 0, 6, 3])
    assert profile.total_rows == 4
    assert [profile.share_of(0, n) for n in range(5)] == pytest.approx([0, 0.6, 0.9, 1, 1])
    assert AccessProfile.from_counts([1, 6, 3], rows=100).total_rows == 100
    assert AccessProfile.from_counts([1, 6, 3], rows=100).share_of(3, 100) == 0


def test_from_counts_of_many_rows_keeps_about_a_hundred_points() -> None:
    counts = np.random.default_rng(0).zipf(1.5, 50_000)
    profile = AccessProfile.from_counts(counts)
    assert profile.rows.size <= 102
    hottest = np.sort(counts)[::-1]
    assert profile.share_of(0, 1) == pytest.approx(hottest[0] / counts.sum())
    assert profile.share_of(0, 1000) == pytest.approx(hottest[:1000].sum() / counts.sum(), rel=0.01)


def test_distinct_rows_of_uniform_access_is_exact() -> None:
    profile = AccessProfile.uniform(7)
    for lookups in (1, 2, 10, 1000):
        assert profile.distinct_rows(lookups) == pytest.approx(7 * (1 - (6 / 7) ** lookups))
    assert profile.distinct_rows(0) == 0


@pytest.mark.parametrize(("exponent", "lookups"), [(0.0, 3000), (0.9, 500), (1.05, 20_000), (1.6, 3000)])
def test_distinct_rows_and_reuse_agree_with_drawn_batches(exponent: float, lookups: int) -> None:
    rows, batches = 2000, 200
    rng = np.random.default_rng(0)
    counts = rng.multinomial(lookups, zipf_probabilities(rows, exponent), size=batches)
    profile = AccessProfile.zipf(rows, exponent)
    assert profile.distinct_rows(lookups) == pytest.approx((counts > 0).sum() / batches, rel=0.01)
    seen, hits = profile.reuse(lookups)
    bins = np.searchsorted(REUSE_EDGES, counts[counts > 0], side="left") - 1
    drawn_seen = np.bincount(bins, minlength=17) / batches
    drawn_hits = np.bincount(bins, weights=counts[counts > 0], minlength=17) / batches
    assert seen / seen.sum() == pytest.approx(drawn_seen / drawn_seen.sum(), abs=0.01)
    assert hits / hits.sum() == pytest.approx(drawn_hits / drawn_hits.sum(), abs=0.01)


def test_reuse_of_one_row_falls_into_one_bin() -> None:
    for lookups, expected in ((1e-3, 0), (100, 7), (10_000, 14), (1e6, 16)):
        seen, hits = AccessProfile.uniform(1).reuse(lookups)
        assert seen.argmax() == hits.argmax() == expected
        assert seen.sum() == pytest.approx(1 - np.exp(-lookups))


@pytest.mark.parametrize("exponent", [0.0, 1.05, 2.5])
@pytest.mark.parametrize("lookups", [0.5, 100, 1e5, 1e9])
def test_reuse_counts_every_lookup_once(exponent: float, lookups: float) -> None:
    profile = AccessProfile.zipf(10_000, exponent)
    seen, hits = profile.reuse(lookups)
    assert seen.shape == hits.shape == (17,)
    assert hits.sum() == pytest.approx(lookups, rel=1e-9)
    assert seen.sum() == pytest.approx(profile.distinct_rows(lookups), rel=0.01, abs=0.5)
    assert (hits[:-1] <= seen[:-1] * REUSE_EDGES[1:-1] * (1 + 1e-6) + 1e-6).all()
    assert (hits >= seen * REUSE_EDGES[:-1] * (1 - 1e-6) - 1e-6).all()


def test_the_whole_as_a_block_is_the_profile() -> None:
    profile = AccessProfile.zipf(1000, 1.2)
    assert profile.block(0, 1000) is profile
    assert profile.thinned(1000) is profile


def test_a_block_without_accesses_is_uniform() -> None:
    assert AccessProfile.from_counts([5], rows=100).block(10, 30) == AccessProfile.uniform(20)


def test_blocks_of_steep_profiles_are_valid() -> None:
    profile = AccessProfile.zipf(10**9, 3.0)
    for start in (10**3, 10**5, 5 * 10**7, 9 * 10**8):
        assert profile.block(start, 10**9).total_rows == 10**9 - start
    assert profile.thinned(1).total_rows == 1


def test_thinned_profiles_cover_exactly_the_rows_asked_for() -> None:
    assert AccessProfile.uniform(22).thinned(15).total_rows == 15  # 22 × (15 / 22) rounds to less


def test_profiles_are_values() -> None:
    rows, share = np.array([0.0, 2.0, 10.0]), np.array([0.0, 0.5, 1.0])
    profile = AccessProfile(rows, share)
    rows[1] = 5
    assert profile == AccessProfile([0, 2, 10], [0, 0.5, 1])  # type: ignore[arg-type]
    assert hash(profile) == hash(AccessProfile([0, 2, 10], [0, 0.5, 1]))  # type: ignore[arg-type]
    assert profile != AccessProfile.uniform(10)
    assert profile != "profile"
    with pytest.raises(ValueError, match="read-only"):
        profile.share[1] = 0.9


@pytest.mark.parametrize(
    ("rows", "share", "message"),
    [
        ([0], [0], "two lists of equal length, at least 2 points"), ([0, 1, 2], [0, 1], "two lists of equal length"),
        ([[0, 1]], [[0, 1]], "two lists of equal length"), ([0, np.nan], [0, 1], "must be finite"),
        ([0, 1, np.inf], [0, 0.5, 1], "must be finite"), ([0, 1], [0, np.nan], "must be finite"),
        ([1, 2], [0, 1], "rows must start at 0 and increase"),
        ([0, 5, 5], [0, 0.5, 1], "rows must start at 0 and increase"),
        ([0, 5], [0.1, 1], "share must start at 0, never fall, and end at 1"), ([0, 5], [0, 0.9], "end at 1"),
        ([0, 1, 2, 3], [0, 0.8, 0.7, 1], "never fall"), ([0, 1, 2], [0, 1.0000005, 1.0000006], "never fall"),
        ([0, 5, 10], [0, 0.1, 1], "sorted hottest first"),
    ],
)  # fmt: skip
def test_bad_points(rows: list[float], share: list[float], message: str) -> None:
    with pytest.raises(InvalidInput) as error:
        AccessProfile(np.array(rows), np.array(share))
    assert message in str(error.value)


def test_the_most_rows_of_zipf() -> None:
    assert AccessProfile.zipf(2**62, 1).total_rows == 2**62


def test_profiles_print_without_their_points() -> None:
    assert repr(AccessProfile.zipf(10**6, 1.05)) == "<AccessProfile: 1,000,000 rows, zipf 1.05>"
    assert repr(AccessProfile.uniform(50)) == "<AccessProfile: 50 rows, uniform>"
    assert repr(AccessProfile.from_counts([3, 2, 1])) == "<AccessProfile: 3 rows, 4 points>"


MEANS = np.concatenate([[0.0, 1e-300], np.geomspace(1e-12, 1e9, 4000)])
EDGES = REUSE_EDGES[:-1].astype(np.int64)


def test_probabilities_at_the_edges_of_the_reuse_bins() -> None:
    probabilities = poisson_at_most(EDGES, MEANS)
    assert probabilities.shape == (MEANS.size, EDGES.size)
    np.testing.assert_allclose(probabilities, poisson.cdf(EDGES[None, :], MEANS[:, None]), rtol=0, atol=1e-9)


@given(st.integers(0, 40_000), st.floats(1e-6, 1e6))
def test_any_count_and_mean(count: int, mean: float) -> None:
    found = float(poisson_at_most([count], [mean])[0, 0])
    assert 0 <= found <= 1
    assert abs(found - poisson.cdf(count, mean)) < 1e-9


@given(st.integers(0, 40_000), st.floats(1e-6, 1e6))
def test_a_single_probability(count: int, mean: float) -> None:
    assert abs(float(poisson_exactly(count, [mean])[0]) - poisson.pmf(count, mean)) < 1e-9


def test_nothing_is_expected_of_a_mean_of_zero() -> None:
    assert poisson_at_most(EDGES, [0.0]).tolist() == [[1.0] * EDGES.size]
    assert poisson_exactly(0, [0.0]).tolist() == [1.0]
    assert poisson_exactly(8, [0.0]).tolist() == [0.0]
