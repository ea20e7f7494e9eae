from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from shardwright.errors import InvalidInput
from shardwright.measure.backend import kernel_groups
from shardwright.measure.sampling import BREADTHS, MAX_POOLING, SampleSpace, TableSet, breadth_named
from shardwright.sharding.memory import optimizer_bytes
from shardwright.workload.pools import table_pool

WIDE = BREADTHS["wide"]
ROOM = 60 * 10**9
SPACE = SampleSpace(table_pool("dlrm-2021"), 0, ROOM, WIDE)


@pytest.fixture(scope="module")
def sets() -> list[TableSet]:
    return [SPACE.draw(sample) for sample in range(240)]


def test_wide_sets_cover_their_ranges(sets: list[TableSet]) -> None:
    works = [work for drawn in sets for work in drawn.works]
    assert {work.dim for work in works} == set(range(4, 257, 4))
    rows, pooling = (np.array([getattr(work, name) for work in works]) for name in ("rows", "pooling"))
    assert rows.max() > 9e6
    assert (rows <= 1e7).all()
    assert (rows < 300).mean() > 0.03
    assert 150 < pooling.max() <= MAX_POOLING
    assert {drawn.batch_size for drawn in sets} == {8192, 16_384, 32_768, 65_536}
    assert {work.samples for work in works} >= {128, 1024, 65_536}  # replicas see a part of the batch


def test_wide_sets_mix_optimizers_weight_types_and_sequences(sets: list[TableSet]) -> None:
    assert 0.2 < np.mean([drawn.optimizer == "sgd" for drawn in sets]) < 0.5
    half = [np.mean([work.dtype == "fp16" for work in drawn.works]) for drawn in sets]
    assert 0.25 < np.mean(np.array(half) > 0) < 0.45
    assert 0.2 < np.mean(np.array(half) == 1) < 0.4
    assert any(0 < share < 1 for share in half)
    assert 0.1 < np.mean([any(not work.pooled for work in drawn.works) for drawn in sets]) < 0.3
    assert max(len(kernel_groups(drawn.works)) for drawn in sets) > 4
    sequences = [{work.dim for work in drawn.works if not work.pooled} for drawn in sets]
    one_dim = [len(dims) == 1 for dims in sequences if dims]
    assert 0.6 < np.mean(one_dim) < 1


def test_wide_sets_fit_a_gpu(sets: list[TableSet]) -> None:
    for drawn in sets:
        tables = sum(w.weight_bytes + optimizer_bytes(drawn.optimizer, w.rows, w.dim) for w in drawn.works)
        assert tables <= ROOM
        assert sum(work.lookups for work in drawn.works) * 64 < WIDE.lookup_bytes  # ids and what backward sorts of them
        outputs = sum((w.samples if w.pooled else w.lookups) * w.dim * 4 for w in drawn.works)
        assert outputs < 10e9


def test_only_the_sets_that_read_most_have_fewer_lookups(sets: list[TableSet]) -> None:
    boundless = replace(SPACE, breadth=replace(WIDE, lookup_bytes=float("inf")))
    cut = 0
    for drawn in sets[:60]:
        free = boundless.draw(drawn.sample)
        assert [work.rows for work in free.works] == [work.rows for work in drawn.works]
        for work, other in zip(drawn.works, free.works, strict=True):
            assert work.lookups <= other.lookups
            cut += work.lookups < other.lookups
    assert 0 < cut < 30


def test_samples_follow_from_the_seed(sets: list[TableSet]) -> None:
    assert SPACE.draw(7) == sets[7]
    assert replace(SPACE, seed=1).draw(7) != sets[7]


def test_an_unknown_space_is_refused() -> None:
    with pytest.raises(InvalidInput, match="space is 'huge', must be one of usual, wide"):
        breadth_named("huge")
