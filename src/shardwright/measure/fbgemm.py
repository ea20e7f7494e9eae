"""FBGEMM's table-batched embedding (TBE): all tables of a group in one kernel, the optimizer inside backward."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import fbgemm_gpu  # noqa: F401  (registers the operators)
import torch
from fbgemm_gpu.split_embedding_configs import EmbOptimType, SparseType
from fbgemm_gpu.split_table_batched_embeddings_ops_common import BoundsCheckMode, EmbeddingLocation, PoolingMode
from fbgemm_gpu.split_table_batched_embeddings_ops_training import (
    ComputeDevice,
    SplitTableBatchedEmbeddingBagsCodegen,
)

from shardwright.errors import MeasurementFailed
from shardwright.measure.backend import EPSILON, LEARNING_RATE, Arena, FusedInput, KernelGroup

OPTIMIZERS = {
    "sgd": EmbOptimType.EXACT_SGD,
    "rowwise_adagrad": EmbOptimType.EXACT_ROWWISE_ADAGRAD,
    "adagrad": EmbOptimType.EXACT_ADAGRAD,
    "adam": EmbOptimType.ADAM,
}
"""FBGEMM's name of each optimizer of a task."""

_STATES = {"sgd": (), "rowwise_adagrad": ("momentum1",), "adagrad": ("momentum1",), "adam": ("momentum1", "momentum2")}
_WEIGHTS = {"fp32": SparseType.FP32, "fp16": SparseType.FP16}
_WIDTH = 4  # FBGEMM's vectors


class _ArenaTbe(SplitTableBatchedEmbeddingBagsCodegen):  # type: ignore[misc]
    """A TBE module whose weights and optimizer state are views of an arena, not fresh zeroed tensors."""

    def __init__(self, arena: Arena, *args: Any, **kwargs: Any) -> None:
        # _apply_split reads this; the base constructor calls it before Module attributes may be set.
        object.__setattr__(self, "_arena", arena)
        super().__init__(*args, **kwargs)

    def _apply_split(self, split: Any, prefix: str, dtype: torch.dtype, *args: Any, **kwargs: Any) -> None:
        super()._apply_split(split._replace(host_size=0, dev_size=0), prefix, dtype, *args, **kwargs)
        if split.host_size:
            delattr(self, f"{prefix}_host")
            setattr(self, f"{prefix}_host", torch.nn.Parameter(self._arena.take(split.host_size, dtype)))
        elif split.dev_size:
            setattr(self, f"{prefix}_dev", self._arena.take(split.dev_size, dtype))


class FbgemmCall:
    """A kernel group as one TBE module."""

    def __init__(self, module: _ArenaTbe, states: Sequence[str]) -> None:
        self._module = module
        self._states = states

    def forward(self, batch: FusedInput) -> Sequence[torch.Tensor]:
        """Look up: one `(samples, sum of the features' dims)` tensor, or `(n, dim)` if not pooled."""
        return (self._module(batch.indices, batch.offsets),)

    def backward(self, outputs: Sequence[torch.Tensor], gradients: Sequence[torch.Tensor]) -> None:
        """Propagate the gradients of the outputs and update the weights."""
        outputs[0].backward(gradients[0])

    def weights(self) -> list[torch.Tensor]:
        """Views `(rows, dim)` of the weights, by table."""
        return list(self._module.split_embedding_weights())

    def state(self) -> list[list[torch.Tensor]]:
        """Views of the optimizer state by kind and table."""
        by_table = self._module.split_optimizer_states()
        return [[states[kind] for states in by_table] for kind in range(len(self._states))]


class FbgemmBackend:
    """FBGEMM on the CPU (weights in main memory) or on CUDA (weights in device memory)."""

    name = "fbgemm"

    def build(
        self, group: KernelGroup, optimizer: str, arena: Arena, learning_rate: float = LEARNING_RATE
    ) -> FbgemmCall:
        """Build one TBE module for the group; see `Backend.build`."""
        on_cpu = arena.device.type == "cpu"
        _check(group, optimizer, on_cpu)
        place = (
            (EmbeddingLocation.HOST, ComputeDevice.CPU) if on_cpu else (EmbeddingLocation.DEVICE, ComputeDevice.CUDA)
        )
        module = _ArenaTbe(
            arena,
            [(work.rows, work.dim, *place) for work in group.works],
            feature_table_map=group.tables_of_features,
            weights_precision=_WEIGHTS[group.dtype],
            optimizer=OPTIMIZERS[optimizer],
            learning_rate=learning_rate,
            eps=EPSILON,
            pooling_mode=PoolingMode.SUM if group.pooled else PoolingMode.NONE,
            bounds_check_mode=BoundsCheckMode.NONE,  # ids are drawn in range, and the check would be timed
            device=arena.device,
        )
        return FbgemmCall(module, _STATES[optimizer])


def _check(group: KernelGroup, optimizer: str, on_cpu: bool) -> None:
    if on_cpu and optimizer == "adam":
        raise MeasurementFailed(
            "optimizer 'adam' has no fused FBGEMM kernel on a CPU; use sgd, rowwise_adagrad or adagrad, or backend='embedding_bag'"
        )
    if group.dtype not in _WEIGHTS:
        raise MeasurementFailed(
            f"{group.dtype} weights have no backward kernel in FBGEMM, which keeps them for inference; measure fp32 or fp16 ones"
        )
    for work in group.works:
        if work.dim % _WIDTH:
            raise MeasurementFailed(
                f"dim {work.dim} is no multiple of {_WIDTH}, which FBGEMM's kernels need; pad the dim, or use backend='embedding_bag'"
            )
