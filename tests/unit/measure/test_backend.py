from __future__ import annotations

from dataclasses import replace

import pytest

from shardwright.measure.backend import kernel_groups
from shardwright.sharding.work import ShardWork
from shardwright.task.access import AccessProfile

POOLED = ShardWork(100, 8, 16, 32.0, True, AccessProfile.uniform(100))
SEQUENCE = replace(POOLED, pooled=False)


@pytest.mark.parametrize(
    ("works", "groups"),
    [
        ([], []),
        ([POOLED, replace(POOLED, dim=64), replace(POOLED, rows=7)], [(0, 1, 2)]),
        (
            [POOLED, replace(POOLED, samples=8), replace(POOLED, dtype="fp16"), SEQUENCE, POOLED],
            [(0, 4), (1,), (2,), (3,)],
        ),
        ([SEQUENCE, replace(SEQUENCE, dim=16), SEQUENCE], [(0, 2), (1,)]),
    ],
)
def test_samples_weight_type_and_pooling_divide_and_dims_only_sequences(
    works: list[ShardWork], groups: list[tuple[int, ...]]
) -> None:
    found = kernel_groups(works)
    assert [group.members for group in found] == groups
    assert [group.works for group in found] == [tuple(works[member] for member in members) for members in groups]
