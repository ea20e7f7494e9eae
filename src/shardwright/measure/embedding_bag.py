"""The fallback backend without FBGEMM: PyTorch's embedding operators, one table after another."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch.nn.functional import embedding, embedding_bag

from shardwright.errors import MeasurementFailed
from shardwright.measure.backend import EPSILON, LEARNING_RATE, Arena, FusedInput, KernelGroup

_BETA1, _BETA2 = 0.9, 0.999
_DTYPES = {"fp32": torch.float32, "fp16": torch.float16}


class EmbeddingBagCall:
    """A kernel group as a loop over its tables, with sparse gradients; the optimizer updates only the rows touched.

    PyTorch has no sparse row-wise adagrad, so all four optimizers are written out here.
    """

    def __init__(self, group: KernelGroup, optimizer: str, arena: Arena, learning_rate: float) -> None:
        self._group = group
        self._rate = learning_rate
        self._direction = _DIRECTIONS[optimizer]
        self._weights: list[torch.Tensor] = []
        self._state: list[tuple[torch.Tensor, ...]] = []
        for work in group.works:
            flat = arena.take(work.rows * work.dim, _DTYPES[work.dtype])
            self._weights.append(flat.view(work.rows, work.dim).requires_grad_())
            self._state.append(_new_state(optimizer, work.rows, work.dim, arena))

    def forward(self, batch: FusedInput) -> Sequence[torch.Tensor]:
        """Look up: `(bags, dim)` per table, or `(lookups of the table, dim)` if not pooled."""
        outputs = []
        bags = self._group.starts
        starts = batch.offsets[bags].tolist()
        for table, weights in enumerate(self._weights):
            ids = batch.indices[starts[table] : starts[table + 1]]
            if self._group.pooled:
                offsets = batch.offsets[bags[table] : bags[table + 1]] - starts[table]
                outputs.append(embedding_bag(ids, weights, offsets, mode="sum", sparse=True))
            else:
                outputs.append(embedding(ids, weights, sparse=True))
        return outputs

    def backward(self, outputs: Sequence[torch.Tensor], gradients: Sequence[torch.Tensor]) -> None:
        """Propagate the gradients of the outputs and update the rows touched."""
        of_weights = torch.autograd.grad(outputs, self._weights, gradients)
        with torch.no_grad():
            for weights, state, gradient in zip(self._weights, self._state, of_weights, strict=True):
                merged = gradient.float().coalesce()  # summed in fp32, as fused kernels do
                rows = merged.indices()[0]
                step = self._direction(merged.values(), rows, *state)
                weights.index_add_(0, rows, step.to(weights.dtype), alpha=-self._rate)

    def weights(self) -> list[torch.Tensor]:
        """Views `(rows, dim)` of the weights, by table."""
        return [weights.detach() for weights in self._weights]

    def state(self) -> list[list[torch.Tensor]]:
        """Views of the optimizer state by kind and table."""
        return [list(kind) for kind in zip(*self._state, strict=True)]


class EmbeddingBagBackend:
    """`torch.nn.functional.embedding_bag` and `embedding`, on any device."""

    name = "embedding_bag"

    def build(
        self, group: KernelGroup, optimizer: str, arena: Arena, learning_rate: float = LEARNING_RATE
    ) -> EmbeddingBagCall:
        """Place the group's tables in the arena; see `Backend.build`."""
        if group.dtype not in _DTYPES:
            raise MeasurementFailed(f"torch trains no {group.dtype} weights; measure fp32 or fp16 ones")
        return EmbeddingBagCall(group, optimizer, arena, learning_rate)


def _new_state(optimizer: str, rows: int, dim: int, arena: Arena) -> tuple[torch.Tensor, ...]:
    if optimizer == "sgd":
        return ()
    if optimizer == "rowwise_adagrad":
        return (arena.take(rows, torch.float32),)
    count = 2 if optimizer == "adam" else 1
    return tuple(arena.take(rows * dim, torch.float32).view(rows, dim) for _ in range(count))


def _sgd(gradient: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    return gradient


def _rowwise_adagrad(gradient: torch.Tensor, rows: torch.Tensor, total: torch.Tensor) -> torch.Tensor:
    grown = total[rows] + gradient.square().mean(dim=1)
    total[rows] = grown
    return gradient / (grown.sqrt() + EPSILON)[:, None]


def _adagrad(gradient: torch.Tensor, rows: torch.Tensor, total: torch.Tensor) -> torch.Tensor:
    grown = total[rows] + gradient.square()
    total[rows] = grown
    return gradient / (grown.sqrt() + EPSILON)


def _adam(gradient: torch.Tensor, rows: torch.Tensor, first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
    """Adam as in a late step, when the bias corrections are 1."""
    mean = _BETA1 * first[rows] + (1 - _BETA1) * gradient
    square = _BETA2 * second[rows] + (1 - _BETA2) * gradient.square()
    first[rows], second[rows] = mean, square
    return mean / (square.sqrt() + EPSILON)


_DIRECTIONS: dict[str, Callable[..., torch.Tensor]] = {
    "sgd": _sgd,
    "rowwise_adagrad": _rowwise_adagrad,
    "adagrad": _adagrad,
    "adam": _adam,
}
"""For each optimizer, a function that updates the state of the rows touched and returns their step, from their gradient."""
