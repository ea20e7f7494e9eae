from __future__ import annotations

from dataclasses import replace

from shardwright.measure.backend import kernel_groups
from shardwright.sharding.work import ShardWork
from shardwright.task.access import AccessProfile

POOLED = ShardWork(100, 8, 16, 32.0, True, AccessProfile.uniform(100))


def test_pooled_tables_of_any_dim_are_one_group() -> None:
    groups = kernel_groups([POOLED, replace(POOLED, dim=64), replace(POOLED, rows=7)])
    assert [group.members for group in groups] == [(0, 1, 2)]


def test_samples_weight_type_and_pooling_divide() -> None:
    works = [POOLED, replace(POOLED, samples=8), replace(POOLED, dtype="fp16"), replace(POOLED, pooled=False), POOLED]
    assert [group.members for group in kernel_groups(works)] == [(0, 4), (1,), (2,), (3,)]


def test_sequences_are_grouped_by_dim() -> None:
    sequence = replace(POOLED, pooled=False)
    groups = kernel_groups([sequence, replace(sequence, dim=16), sequence])
    assert [group.members for group in groups] == [(0, 2), (1,)]
    assert [work.dim for work in groups[0].works] == [8, 8]


def test_nothing_gives_no_groups() -> None:
    assert kernel_groups([]) == []
