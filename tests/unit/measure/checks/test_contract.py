from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch

from shardwright.errors import InvalidInput
from shardwright.measure.backend import FusedInput, KernelGroup, kernel_groups
from shardwright.measure.checks.reference import Lookups, check_outputs, check_views
from shardwright.sharding.work import ShardWork
from shardwright.task.access import AccessProfile


class Views:
    """A call of which only the views are of interest."""

    def __init__(self, weights: Sequence[torch.Tensor], state: Sequence[Sequence[torch.Tensor]]) -> None:
        self._weights, self._state = list(weights), [list(kind) for kind in state]

    def weights(self) -> list[torch.Tensor]:
        return self._weights

    def state(self) -> list[list[torch.Tensor]]:
        return self._state

    def forward(self, batch: FusedInput) -> Sequence[torch.Tensor]:
        raise NotImplementedError

    def backward(self, outputs: Sequence[torch.Tensor], gradients: Sequence[torch.Tensor]) -> None:
        raise NotImplementedError


def group(*, pooled: bool = True) -> KernelGroup:
    dims = (8, 12) if pooled else (8, 8)
    (found,) = kernel_groups([ShardWork(30, dim, 6, 20.0, pooled, AccessProfile.zipf(30, 1.0)) for dim in dims])
    return found


WEIGHTS = [torch.zeros(30, 8), torch.zeros(30, 12)]
ROWS = [torch.zeros(30), torch.zeros(30)]


@pytest.mark.parametrize(
    ("optimizer", "state"),
    [("sgd", []), ("rowwise_adagrad", [ROWS]), ("adagrad", [WEIGHTS]), ("adam", [WEIGHTS, WEIGHTS])],
)
def test_the_right_views_pass(optimizer: str, state: list[Any]) -> None:
    check_views(group(), optimizer, Views(WEIGHTS, state))


@pytest.mark.parametrize(
    ("optimizer", "weights", "state", "says"),
    [
        ("sgd", WEIGHTS[:1], [], r"weights\(\) has 1 entries, must have 2: a tensor for each table"),
        ("sgd", WEIGHTS[::-1], [], r"weights\(\)\[0\] has the shape \(30, 12\), must have \(30, 8\): \(rows, dim\)"),
        ("sgd", [table.half() for table in WEIGHTS], [], "is of torch.float16, must be of torch.float32"),
        ("sgd", WEIGHTS, [ROWS], r"state\(\) has 1 entries, must have 0: a list for each kind of state that sgd has"),
        ("adam", WEIGHTS, [WEIGHTS], r"state\(\) has 1 entries, must have 2"),
        ("rowwise_adagrad", WEIGHTS, [ROWS[:1]], r"state\(\)\[0\] has 1 entries, must have 2"),
        ("rowwise_adagrad", WEIGHTS, [WEIGHTS], r"must have \(30,\): \(rows,\)"),
        ("adagrad", WEIGHTS, [ROWS], r"must have \(30, 8\): \(rows, dim\)"),
    ],
)
def test_wrong_views_are_said(optimizer: str, weights: list[Any], state: list[Any], says: str) -> None:
    with pytest.raises(InvalidInput, match=says):
        check_views(group(), optimizer, Views(weights, state))


LOOKUPS = [Lookups(torch.zeros(size, dtype=torch.int64), torch.zeros(size, dtype=torch.int64)) for size in (5, 3)]


@pytest.mark.parametrize(
    ("pooled", "shapes", "says"),
    [
        (True, [(6, 8), (6, 12)], None),
        (True, [(6, 20)], None),
        (False, [(5, 8), (3, 8)], None),
        (False, [(8, 8)], None),
        (True, [(20, 6)], r"the one output of forward has the shape \(20, 6\), must have \(6, 20\)"),
        (True, [(6, 8), (6, 12), (6, 4)], "forward has 3 entries, must have 2"),
        (True, [(6, 8), (6, 8)], r"output 1 of forward has the shape \(6, 8\), must have \(6, 12\)"),
        (False, [(3, 8), (5, 8)], r"output 0 of forward .* must have \(5, 8\): \(lookups, dim\)"),
        (False, [(6, 8)], r"must have \(8, 8\): \(n, dim\)"),
    ],
)
def test_the_shapes_of_outputs(pooled: bool, shapes: list[tuple[int, int]], says: str | None) -> None:
    outputs = [torch.zeros(shape) for shape in shapes]
    if says is None:
        check_outputs(group(pooled=pooled), LOOKUPS, outputs)
    else:
        with pytest.raises(InvalidInput, match=says):
            check_outputs(group(pooled=pooled), LOOKUPS, outputs)
