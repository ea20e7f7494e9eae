"""Does a fused call hand out what it should? Views of the right shapes and types, before their values are looked at."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from shardwright.errors import InvalidInput
from shardwright.measure.backend import FusedCall
from shardwright.measure.checks.reference import Lookups
from shardwright.measure.groups import KernelGroup

_DTYPES = {"fp32": torch.float32, "fp16": torch.float16}
_BY_ROW = {"sgd": (), "rowwise_adagrad": (True,), "adagrad": (False,), "adam": (False, False)}
"""Per optimizer and kind of state: whether it is one number a row, or one an element."""


def check_views(group: KernelGroup, optimizer: str, call: FusedCall) -> None:
    """Check the views of weights and state.

    Raises:
        InvalidInput: one is missing, or has another shape or type than it must have.
    """
    weights = call.weights()
    _count("weights()", len(weights), len(group.works), "tensor for each table")
    for table, (found, work) in enumerate(zip(weights, group.works, strict=True)):
        _shape(f"weights()[{table}]", found, (work.rows, work.dim), "(rows, dim)")
        if found.dtype != _DTYPES[work.dtype]:
            raise InvalidInput(f"weights()[{table}] is of {found.dtype}, must be of {_DTYPES[work.dtype]}")
    state = call.state()
    _count("state()", len(state), len(_BY_ROW[optimizer]), f"list for each kind of state that {optimizer} has")
    for kind, (tensors, by_row) in enumerate(zip(state, _BY_ROW[optimizer], strict=True)):
        _count(f"state()[{kind}]", len(tensors), len(group.works), "tensor for each table")
        for table, (found, work) in enumerate(zip(tensors, group.works, strict=True)):
            shape, means = ((work.rows,), "(rows,)") if by_row else ((work.rows, work.dim), "(rows, dim)")
            _shape(f"state()[{kind}][{table}]", found, shape, means)


def check_outputs(group: KernelGroup, lookups: Sequence[Lookups], outputs: Sequence[torch.Tensor]) -> None:
    """Check the shapes of what was looked up.

    Raises:
        InvalidInput: one is of another shape than it must have.
    """
    dims, sizes = [work.dim for work in group.works], [found.ids.numel() for found in lookups]
    if len(outputs) == 1 and len(dims) > 1:
        shape = (group.samples, sum(dims)) if group.pooled else (sum(sizes), dims[0])
        _shape("the one output of forward", outputs[0], shape, "(samples, sum of dims)" if group.pooled else "(n, dim)")
        return
    _count("forward", len(outputs), len(dims), "output for each table, or one for all")
    for table, (found, dim, size) in enumerate(zip(outputs, dims, sizes, strict=True)):
        shape = (group.samples if group.pooled else size, dim)
        _shape(f"output {table} of forward", found, shape, "(samples, dim)" if group.pooled else "(lookups, dim)")


def _count(what: str, found: int, wanted: int, rule: str) -> None:
    if found != wanted:
        raise InvalidInput(f"{what} has {found} entries, must have {wanted}: a {rule}")


def _shape(what: str, found: torch.Tensor, wanted: tuple[int, ...], means: str) -> None:
    if tuple(found.shape) != wanted:
        raise InvalidInput(f"{what} has the shape {tuple(found.shape)}, must have {wanted}: {means}")
