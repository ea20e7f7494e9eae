"""The distribution of `draw_batch_on`, on the CPU: the code is the same for every torch device."""

from __future__ import annotations

import math

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from shardwright.measure.device_batches import draw_batch_on
from shardwright.sharding.work import ShardWork
from shardwright.task.access import AccessProfile
from tests.strategies import access_profiles

CPU = torch.device("cpu")


@st.composite
def works(draw: st.DrawFn) -> ShardWork:
    rows = draw(st.integers(1, 10**6))
    samples = draw(st.integers(1, 64))
    return ShardWork(rows, 8, samples, draw(st.floats(0.01, 500)), draw(st.booleans()), draw(access_profiles(rows)))


@given(works(), st.integers(0, 2**32))
def test_a_batch_is_well_formed_and_seeded(work: ShardWork, seed: int) -> None:
    batch = draw_batch_on(work, seed, CPU)
    ids, offsets = batch.indices.numpy(), batch.offsets.numpy()
    assert ids.dtype == offsets.dtype == np.int64
    assert offsets.shape == (work.samples + 1,)
    assert (offsets[0], offsets[-1]) == (0, ids.size)
    assert (np.diff(offsets) >= 0).all()
    assert ids.size in (math.floor(work.lookups), math.ceil(work.lookups))
    assert ids.size == 0 or 0 <= ids.min() <= ids.max() < work.rows
    again = draw_batch_on(work, seed, CPU)
    assert torch.equal(again.indices, batch.indices)
    assert torch.equal(again.offsets, batch.offsets)


def test_rows_are_drawn_by_the_profile() -> None:
    for exponent in (0.0, 0.8, 1.3):
        access = AccessProfile.zipf(50_000, exponent)
        batch = draw_batch_on(ShardWork(50_000, 8, 100, 40_000.0, True, access), 5, CPU)
        expected = access.distinct_rows(40_000)
        assert abs(batch.indices.unique().numel() - expected) < 5 * math.sqrt(expected)
        hottest = int(batch.indices.unique(return_counts=True)[1].max())
        assert hottest < 1.2 * 40_000 * access.share_of(0, 1) + 12
