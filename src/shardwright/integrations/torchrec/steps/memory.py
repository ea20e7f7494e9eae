"""Count the bytes that a rank allocated for weights and optimizer state, on the tensors themselves."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from fbgemm_gpu.split_table_batched_embeddings_ops_training import (
    DenseTableBatchedEmbeddingBagsCodegen,
    SplitTableBatchedEmbeddingBagsCodegen,
)

from shardwright.integrations.torchrec.steps.sharded import ShardedModel
from shardwright.integrations.torchrec.steps.shared import RuntimeModel

_WEIGHTS = ("weights_",)
_STATE = ("momentum1_", "momentum2_")
_PLACES = ("dev", "host", "uvm")


def allocated_bytes(sharded: ShardedModel | RuntimeModel) -> tuple[int, int]:
    """Return this rank's bytes of embedding weights and of optimizer state.

    Call after the first step, which creates the optimizer state of replicated tables.
    """
    if isinstance(sharded, RuntimeModel):
        storage = sharded.module.storage
        states = [storage.states(group) for group in range(len(storage.weights))]
        return _bytes(storage.weights), _bytes(matrix for of_group in states for matrix in of_group)
    weights: list[torch.Tensor] = []
    state: list[torch.Tensor] = []
    for module in sharded.lookup_modules():
        if isinstance(module, SplitTableBatchedEmbeddingBagsCodegen):
            weights += _tensors(module, _WEIGHTS)
            state += _tensors(module, _STATE)
        elif isinstance(module, DenseTableBatchedEmbeddingBagsCodegen):
            weights.append(module.weights)
    if sharded.dense is not None:
        for of_parameter in sharded.dense.state.values():
            state += [value for value in of_parameter.values() if torch.is_tensor(value) and value.dim()]
    return _bytes(weights), _bytes(state)


def _tensors(module: torch.nn.Module, prefixes: Iterable[str]) -> list[torch.Tensor]:
    values = [getattr(module, prefix + place, None) for prefix in prefixes for place in _PLACES]
    return [tensor for tensor in values if torch.is_tensor(tensor)]


def _bytes(tensors: Iterable[torch.Tensor]) -> int:
    """Bytes of the tensors' storages, each counted once."""
    storages = {tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes() for tensor in tensors}
    return sum(storages.values())
