"""The work of one device as fused calls, with calls that take notes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from shardwright.measure import fused as module
from shardwright.measure.backend import Arena
from shardwright.measure.backends import load_backend
from shardwright.measure.fused import FEWEST, MOST, DeviceCalls, draw_batch_on, fresh_batches
from shardwright.measure.timing import CpuClock, Steady, TimingPolicy, time_parts
from shardwright.sharding.work import ShardWork
from shardwright.task.access import AccessProfile
from tests.strategies import access_profiles

CPU = torch.device("cpu")


class Noting:
    """PyTorch's own operators, and the gradients that each backward gets."""

    name = "noting"

    def __init__(self) -> None:
        self.gradients: list[list[torch.Tensor]] = []

    def build(self, *given: Any) -> Any:
        call: Any = load_backend("embedding_bag").build(*given)
        backward = call.backward

        def noted(outputs: Sequence[torch.Tensor], gradients: Sequence[torch.Tensor]) -> None:
            assert [output.shape for output in outputs] == [gradient.shape for gradient in gradients]
            self.gradients.append(list(gradients))
            backward(outputs, gradients)

        call.backward = noted
        return call


def work(lookups: float, *, pooled: bool) -> ShardWork:
    return ShardWork(100, 8, 16, lookups, pooled, AccessProfile.uniform(100))


def timed(monkeypatch: pytest.MonkeyPatch, works: Sequence[ShardWork], batches: int) -> Noting:
    """The inputs of the calls of `works` over a warm-up pass and two counted passes."""
    monkeypatch.setattr(module, "fresh_batches", lambda works, cache: batches)
    backend = Noting()
    calls = DeviceCalls(works, range(len(works)), "sgd", backend, Arena(2**20, CPU))
    policy = TimingPolicy(warm_up=batches, passes=2, runs=1)
    time_parts([calls.forward, calls.backward], CpuClock(), policy, Steady(), calls.batches)
    return backend


def test_counted_runs_of_sequences_find_their_gradients_made(monkeypatch: pytest.MonkeyPatch) -> None:
    # Rounded up or down at random, so that the batches differ in length.
    works = [work(20.5, pooled=False), work(33.5, pooled=False)]
    gradients_by_call = timed(monkeypatch, works, 4).gradients
    assert len({gradient.shape for gradients in gradients_by_call for gradient in gradients}) > 2
    counted = gradients_by_call[4:]
    for number in range(2):
        assert len({gradients[number].untyped_storage().data_ptr() for gradients in counted}) == 1
    assert counted[0][0].data_ptr() != counted[0][1].data_ptr()


@pytest.mark.parametrize("pooled", [True, False])
def test_gradients_are_small_positive_and_all_different(monkeypatch: pytest.MonkeyPatch, pooled: bool) -> None:
    gradient = timed(monkeypatch, [work(40.0, pooled=pooled)], 1).gradients[0][0]
    assert 0 < gradient.min() < gradient.max() < 2e-6
    assert gradient.unique().numel() > 0.9 * gradient.numel()


@st.composite
def groups(draw: st.DrawFn) -> list[ShardWork]:
    samples, pooled = draw(st.integers(1, 64)), draw(st.booleans())
    rows = draw(st.lists(st.integers(1, 10**6), min_size=1, max_size=4))
    return [
        ShardWork(
            count,
            8,
            samples,
            draw(st.floats(0.01, 500)),
            pooled,
            draw(access_profiles(count)),
            feature_shares=draw(st.sampled_from([(1.0,), (0.25, 0.75)])),
        )
        for count in rows
    ]


@pytest.mark.slow
@given(groups(), st.integers(0, 2**32))
def test_a_batch_is_well_formed_and_seeded(works: list[ShardWork], seed: int) -> None:
    seeds = [(seed, place) for place in range(len(works))]
    batch = draw_batch_on(works, seeds, CPU)
    ids, offsets, samples = batch.indices.numpy(), batch.offsets.numpy(), works[0].samples
    starts = np.cumsum([0, *(work.bags for work in works)]).tolist()
    assert ids.dtype == offsets.dtype == np.int64
    assert offsets.shape == (starts[-1] + 1,)
    assert (offsets[0], offsets[-1]) == (0, ids.size)
    assert (np.diff(offsets) >= 0).all()
    for place, work in enumerate(works):
        bounds = offsets[starts[place] : starts[place + 1] + 1]
        own, bags = ids[bounds[0] : bounds[-1]], np.diff(bounds)
        assert own.size == 0 or 0 <= own.min() <= own.max() < work.rows
        for share, of_feature in zip(work.feature_shares, bags.reshape(-1, samples), strict=True):
            assert of_feature.sum() in (math.floor(work.lookups * share), math.ceil(work.lookups * share))
            assert not work.pooled or np.ptp(of_feature) <= 1
        alone = draw_batch_on([work], [seeds[place]], CPU)  # independent of the tables beside it
        assert torch.equal(alone.indices, torch.from_numpy(own))
        assert torch.equal(alone.offsets.diff(), torch.from_numpy(bags))


def test_rows_are_drawn_by_the_profile_of_their_table() -> None:
    exponents = (0.0, 0.8, 1.3)
    works = [ShardWork(50_000, 8, 100, 40_000.0, True, AccessProfile.zipf(50_000, exponent)) for exponent in exponents]
    batch = draw_batch_on(works, [5, 6, 7], CPU)
    for work, ids in zip(works, batch.indices.split(40_000), strict=True):
        expected = work.access.distinct_rows(40_000)
        counts = ids.unique(return_counts=True)[1]
        assert abs(counts.numel() - expected) < 5 * math.sqrt(expected)
        assert int(counts.max()) < 1.2 * 40_000 * work.access.share_of(0, 1) + 12


def test_the_bags_of_sequences_vary_and_those_of_pooled_tables_do_not() -> None:
    pooled = ShardWork(500, 8, 1000, 4_500.0, True, AccessProfile.uniform(500))
    bags = draw_batch_on([pooled, pooled], [1, 2], CPU).offsets.diff().view(2, 1000)
    assert set(bags.flatten().tolist()) == {4, 5}
    assert not torch.equal(bags[0], bags[1])  # the longer ones lie anywhere
    sizes = draw_batch_on([replace(pooled, pooled=False)], [1], CPU).offsets.diff().double()
    assert sizes.sum() == 4_500
    assert 3.5 < float(sizes.var()) < 5.5  # Poisson


LINE = 64


@st.composite
def works(draw: st.DrawFn) -> list[ShardWork]:
    drawn = []
    for _ in range(draw(st.integers(1, 6))):
        rows, dim = draw(st.integers(1, 2_000_000)), draw(st.sampled_from([4, 16, 64, 128]))
        profile = AccessProfile.zipf(rows, draw(st.sampled_from([0.0, 0.8, 1.2])))
        drawn.append(ShardWork(rows, dim, 512, draw(st.floats(1, 1e5)), True, profile))
    return drawn


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
