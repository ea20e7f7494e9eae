"""The layout of FBGEMM's tables on a GPU: built on torch's "meta" device, which takes the GPU's path and needs no GPU."""

from __future__ import annotations

import pytest
import torch

from shardwright.measure.backend import Arena, kernel_groups
from shardwright.measure.backends import load_backend
from shardwright.sharding.work import ShardWork
from shardwright.task.access import AccessProfile

pytest.importorskip("fbgemm_gpu", reason="FBGEMM is not installed")


def work(rows: int, dim: int, dtype: str, pooled: bool) -> ShardWork:
    return ShardWork(rows, dim, 64, 200.0, pooled, AccessProfile.uniform(rows), dtype)  # type: ignore[arg-type]


@pytest.mark.parametrize("pooled", [True, False])
@pytest.mark.parametrize("dtype", ["fp32", "fp16"])
@pytest.mark.parametrize("optimizer", ["sgd", "rowwise_adagrad", "adagrad", "adam"])
def test_weights_and_state_are_views_of_the_arena(optimizer: str, dtype: str, pooled: bool) -> None:
    arena = Arena(2**22, torch.device("meta"))
    taken: list[tuple[int, torch.dtype]] = []
    take = arena.take
    arena.take = lambda count, kind: taken.append((count, kind)) or take(count, kind)  # type: ignore[method-assign,func-returns-value]
    works = [work(1000, 64, dtype, pooled), work(50, 8 if pooled else 64, dtype, pooled)]
    call = load_backend("fbgemm").build(kernel_groups(works)[0], optimizer, arena)
    assert [tuple(table.shape) for table in call.weights()] == [(w.rows, w.dim) for w in works]
    elements, rows = sum(w.rows * w.dim for w in works), 1050
    state = {
        "sgd": [],
        "rowwise_adagrad": [(rows, torch.float32)],
        "adagrad": [(elements, torch.float32)],
        "adam": [(elements, torch.float32)] * 2,
    }
    assert taken == [(elements, torch.float16 if dtype == "fp16" else torch.float32), *state[optimizer]]
    by_row = optimizer == "rowwise_adagrad"
    for kind in call.state():
        assert [tuple(table.shape) for table in kind] == [(w.rows,) if by_row else (w.rows, w.dim) for w in works]
