"""Batches enough that no run finds its own rows in a cache."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from shardwright.measure.fresh import FEWEST, MOST, fresh_batches
from shardwright.sharding.work import ShardWork
from shardwright.task.access import AccessProfile

LINE = 64


@st.composite
def works(draw: st.DrawFn) -> list[ShardWork]:
    found = []
    for _ in range(draw(st.integers(1, 6))):
        rows, dim = draw(st.integers(1, 2_000_000)), draw(st.sampled_from([4, 16, 64, 128]))
        profile = AccessProfile.zipf(rows, draw(st.sampled_from([0.0, 0.8, 1.2])))
        found.append(ShardWork(rows, dim, 512, draw(st.floats(1, 1e5)), True, profile))
    return found


def distinct_bytes(works: list[ShardWork], batches: int) -> float:
    return sum(work.access.distinct_rows(batches * work.lookups) * -(-4 * work.dim // LINE) * LINE for work in works)


@given(works(), st.sampled_from([2**20, 2**25, 2**28]))
def test_batches_fill_the_cache_twice_or_are_as_many_as_there_may_be(works: list[ShardWork], cache: int) -> None:
    count = fresh_batches(works, cache)
    assert FEWEST <= count <= MOST
    total = sum(work.rows * -(-4 * work.dim // LINE) * LINE for work in works)
    wanted = 0.0 if total <= cache else min(2 * cache, 0.9 * total)
    lookups = sum(work.lookups for work in works)
    if distinct_bytes(works, count) < wanted:
        assert count == MOST or (count + 1) * lookups > 2e6
    elif count > FEWEST:
        assert distinct_bytes(works, count - 1) < wanted


def test_tables_that_fit_the_cache_need_two_batches() -> None:
    assert fresh_batches([ShardWork(1000, 64, 512, 5000.0, True, AccessProfile.uniform(1000))], 2**25) == FEWEST
