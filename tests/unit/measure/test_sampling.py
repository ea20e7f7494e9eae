from __future__ import annotations

import hashlib
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from shardwright.measure.backend import kernel_groups
from shardwright.measure.device_work import Job
from shardwright.measure.sampling import (
    BREADTHS,
    MAX_POOLING,
    MAX_ROWS,
    MAX_TABLES,
    Breadth,
    SampleSpace,
)
from shardwright.sharding.memory import optimizer_bytes
from shardwright.task import AccessProfile, Table
from shardwright.workload.generators import table_pool

POOL = tuple(
    Table(f"t{i}", rows, 16, pooling, access=AccessProfile.zipf(rows, exponent))
    for i, (rows, pooling, exponent) in enumerate(
        [(10, 1.0, 0.0), (3_000, 4.5, 0.8), (200_000, 30.0, 1.05), (40_000_000, 190.0, 1.2), (5_000_000, 0.3, 0.5)]
    )
)


def test_a_sample_follows_from_seed_and_number_alone() -> None:
    first, second = SampleSpace(POOL, seed=5), SampleSpace(POOL, seed=5)
    second.draw(3)
    assert first.draw(17) == second.draw(17)
    assert first.draw(17) != first.draw(18)
    assert first.draw(17) != SampleSpace(POOL, seed=6).draw(17)


def test_table_counts_are_balanced() -> None:
    space = SampleSpace(POOL)
    counts = Counter(len(space.draw(sample).work.works) for sample in range(60))
    assert [counts[count] for count in range(1, 16)] == [3] * 15
    large = [count for count in counts.elements() if count > 15]
    assert len(large) == 15
    assert 15 < min(large) < max(large) <= MAX_TABLES


def test_shapes_stay_inside_their_limits_and_vary() -> None:
    works = [work for sample in range(200) for work in SampleSpace(POOL).draw(sample).work.works]
    assert all(1 <= work.rows <= MAX_ROWS and 0 < work.pooling <= MAX_POOLING for work in works)
    assert all(abs(work.access.total_rows - work.rows) < 1e-6 * work.rows for work in works)
    assert len({work.rows for work in works}) > 20 * len(POOL)


@pytest.mark.parametrize("optimizer", ["sgd", "rowwise_adagrad", "adam"])
def test_sets_fit_the_room(optimizer: str) -> None:
    room = 50_000_000
    space = SampleSpace(POOL, room_bytes=room, breadth=Breadth(optimizers=(optimizer,)))
    used = [
        sum(
            work.weight_bytes + optimizer_bytes(optimizer, work.rows, work.dim)
            for work in space.draw(sample).work.works
        )
        for sample in range(150)
    ]
    assert max(used) <= room
    assert max(used) > 0.9 * room


def test_only_the_largest_tables_are_cut() -> None:
    small = SampleSpace(POOL, room_bytes=20_000_000)
    large = SampleSpace(POOL, room_bytes=20_000_000_000)
    for sample in range(30):
        for cut, whole in zip(small.draw(sample).work.works, large.draw(sample).work.works, strict=True):
            assert cut.rows <= whole.rows
            if whole.weight_bytes < 20_000_000 / 20 / 16:  # a block may be a 16th of its table
                assert cut.rows == whole.rows


def test_some_tables_are_row_blocks() -> None:
    pool = (replace(POOL[2], access=AccessProfile.from_counts(np.arange(1, 1001), rows=200_000)),)
    works = [work for sample in range(100) for work in SampleSpace(pool).draw(sample).work.works]
    ratio = np.array([work.pooling / pool[0].pooling for work in works])
    assert 0.03 < (ratio < 0.3).mean() < 0.2


def test_sequences_of_half_precision_return_rows_of_fp32_and_leave_room_for_them() -> None:
    room = 20_000_000
    breadth = replace(BREADTHS["wide"], batch_sizes=(1024,), fp16_share=1.0, sequence_share=1.0)
    space = SampleSpace(POOL, room_bytes=room, breadth=breadth)
    returned = [
        sum(4 * work.lookups * work.dim for work in space.draw(sample).work.works if not work.pooled)
        for sample in range(200)
    ]
    assert 0.5 * room / 16 < max(returned) <= room / 16


def test_samples_of_stores_that_were_begun_long_ago_stay_what_they_were() -> None:
    space = SampleSpace(POOL, 3, 50_000_000, Breadth(batch_sizes=(64, 256), sequence_share=0.3))
    text = [
        [(w.rows, w.dim, w.samples, f"{w.lookups:.9g}", w.pooled, w.dtype) for w in space.draw(sample).work.works]
        for sample in range(20)
    ]
    assert hashlib.sha256(repr(text).encode()).hexdigest()[:16] == "8bec0783f442612c"


WIDE = BREADTHS["wide"]
ROOM = 60 * 10**9
SPACE = SampleSpace(table_pool("dlrm-2021"), 0, ROOM, WIDE)


@pytest.fixture(scope="module")
def sets() -> list[Job]:
    return [SPACE.draw(sample) for sample in range(240)]


def test_wide_sets_cover_their_ranges(sets: list[Job]) -> None:
    works = [work for drawn in sets for work in drawn.work.works]
    assert {work.dim for work in works} == set(range(4, 257, 4))
    rows, pooling = (np.array([getattr(work, name) for work in works]) for name in ("rows", "pooling"))
    assert rows.max() > 9e6
    assert (rows <= 1e7).all()
    assert (rows < 300).mean() > 0.03
    assert 150 < pooling.max() <= MAX_POOLING
    assert {drawn.batch_size for drawn in sets} == {8192, 16_384, 32_768, 65_536}
    assert {work.samples for work in works} >= {128, 1024, 65_536}  # replicas see a part of the batch


def test_wide_sets_mix_optimizers_weight_types_and_sequences(sets: list[Job]) -> None:
    assert 0.2 < np.mean([drawn.work.optimizer == "sgd" for drawn in sets]) < 0.5
    half = [np.mean([work.dtype == "fp16" for work in drawn.work.works]) for drawn in sets]
    assert 0.25 < np.mean(np.array(half) > 0) < 0.45
    assert 0.2 < np.mean(np.array(half) == 1) < 0.4
    assert any(0 < share < 1 for share in half)
    assert 0.1 < np.mean([any(not work.pooled for work in drawn.work.works) for drawn in sets]) < 0.3
    assert max(len(kernel_groups(drawn.work.works)) for drawn in sets) > 4
    sequences = [{work.dim for work in drawn.work.works if not work.pooled} for drawn in sets]
    one_dim = [len(dims) == 1 for dims in sequences if dims]
    assert 0.6 < np.mean(one_dim) < 1


def test_wide_sets_fit_a_gpu(sets: list[Job]) -> None:
    for drawn in sets:
        tables = sum(w.weight_bytes + optimizer_bytes(drawn.work.optimizer, w.rows, w.dim) for w in drawn.work.works)
        assert tables <= ROOM
        assert sum(work.lookups for work in drawn.work.works) * 64 < WIDE.lookup_bytes  # ids, and sorting in backward
        outputs = sum((w.samples if w.pooled else w.lookups) * w.dim * 4 for w in drawn.work.works)
        assert outputs < 10e9


def test_only_the_sets_that_read_most_have_fewer_lookups(sets: list[Job]) -> None:
    boundless = replace(SPACE, breadth=replace(WIDE, lookup_bytes=float("inf")))
    cut = 0
    for number, drawn in enumerate(sets[:60]):
        free = boundless.draw(number).work.works
        assert [work.rows for work in free] == [work.rows for work in drawn.work.works]
        for work, other in zip(drawn.work.works, free, strict=True):
            assert work.lookups <= other.lookups
            cut += work.lookups < other.lookups
    assert 0 < cut < 30
