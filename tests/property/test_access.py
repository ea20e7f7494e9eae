import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardwright.task import AccessProfile
from tests.strategies import access_profiles

lookups = st.floats(0.01, 1e9)


@given(st.integers(1, 2**50), st.floats(0, 100))
def test_zipf_of_any_size_and_exponent_is_a_profile(rows: int, exponent: float) -> None:
    profile = AccessProfile.zipf(rows, exponent)
    assert profile.total_rows == rows
    assert profile.share[1] >= 1 / rows * (1 - 1e-9)


@given(access_profiles(), st.data())
def test_share_of_adds_up(profile: AccessProfile, data: st.DataObject) -> None:
    cuts = sorted(data.draw(st.lists(st.floats(0, profile.total_rows), max_size=5)))
    cuts = [0.0, *cuts, profile.total_rows]
    parts = [profile.share_of(a, b) for a, b in itertools.pairwise(cuts)]
    assert min(parts) >= 0
    assert sum(parts) == pytest.approx(1, abs=1e-9)


@given(access_profiles(), lookups)
def test_distinct_rows_and_reuse_stay_within_their_bounds(profile: AccessProfile, count: float) -> None:
    distinct = profile.distinct_rows(count)
    assert 0 < distinct <= min(count, profile.total_rows) * (1 + 1e-9)
    seen, hits = profile.reuse(count)
    assert (seen >= 0).all()
    assert (hits >= 0).all()
    assert hits.sum() == pytest.approx(count, rel=1e-8)
    assert seen.sum() <= min(count, profile.total_rows) * (1 + 1e-8)


@given(access_profiles(), lookups, st.floats(1.01, 100))
def test_more_lookups_see_more_rows(profile: AccessProfile, count: float, factor: float) -> None:
    assert profile.distinct_rows(count * factor) >= profile.distinct_rows(count) * (1 - 1e-12)


@given(access_profiles(), lookups, st.data())
def test_blocks_share_out_what_the_whole_does(profile: AccessProfile, count: float, data: st.DataObject) -> None:
    total = int(profile.total_rows)
    cuts = sorted({0, total, *data.draw(st.lists(st.integers(1, max(total - 1, 1)), max_size=3))})
    seen = np.zeros(17)
    for start, stop in itertools.pairwise(cuts):
        block, share = profile.block(start, stop), profile.share_of(start, stop)
        assert block.total_rows == pytest.approx(stop - start)
        seen += block.reuse(count * share)[0]
    assert seen == pytest.approx(profile.reuse(count)[0], rel=1e-4, abs=1e-4 * min(count, total))


@given(access_profiles(), lookups, st.floats(1e-3, 1))
def test_a_random_part_has_its_part_of_the_reuse(profile: AccessProfile, count: float, part: float) -> None:
    thinned = profile.thinned(profile.total_rows * part)
    for small, whole in zip(thinned.reuse(count * part), profile.reuse(count), strict=True):
        assert small == pytest.approx(whole * part, rel=1e-6, abs=1e-9 * count)


@given(access_profiles(), st.data())
def test_points_of_derived_profiles_are_points_of_a_profile(profile: AccessProfile, data: st.DataObject) -> None:
    start = data.draw(st.integers(0, int(profile.total_rows) - 1))
    derived = profile.block(start, profile.total_rows).thinned(data.draw(st.floats(0.1, profile.total_rows)))
    assert AccessProfile(derived.rows, derived.share) == derived
