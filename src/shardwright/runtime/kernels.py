"""FBGEMM's fused kernels: the lookups of one group, and its optimizer within their backward pass.

A group is one table of the kernel, since its slots count through all its parts. Adam, whose bias correction counts a kernel's forward
passes, and groups with replicas, whose gradients are not final before they are exchanged, are left to torch's kernels.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import torch

from shardwright.runtime.bags import HeldBags
from shardwright.runtime.optimizers import Optimizer

_OPTIMIZERS = {"sgd": "EXACT_SGD", "rowwise_adagrad": "EXACT_ROWWISE_ADAGRAD", "adagrad": "EXACT_ADAGRAD"}


class FusedKernel:
    """The table-batched kernel of one group.

    Attributes:
        weights: `(rows, dim)` the kernel's own weights.
        states: `(rows, width)` fp32 each, the kernel's own optimizer states.
    """

    def __init__(self, rows: int, dim: int, dtype: str, optimizer: Optimizer, device: torch.device) -> None:
        """Create a kernel of zeros, of fp32 or fp16 weights and an optimizer that `fuses`."""
        from fbgemm_gpu.split_embedding_configs import EmbOptimType, SparseType
        from fbgemm_gpu.split_table_batched_embeddings_ops_common import BoundsCheckMode, EmbeddingLocation
        from fbgemm_gpu.split_table_batched_embeddings_ops_training import (
            ComputeDevice,
            SplitTableBatchedEmbeddingBagsCodegen,
        )

        cpu = device.type == "cpu"
        place = (EmbeddingLocation.HOST, ComputeDevice.CPU) if cpu else (EmbeddingLocation.DEVICE, ComputeDevice.CUDA)
        self._kernel: Any = SplitTableBatchedEmbeddingBagsCodegen(
            [(rows, dim, *place)],
            weights_precision=SparseType.FP32 if dtype == "fp32" else SparseType.FP16,
            optimizer=getattr(EmbOptimType, _OPTIMIZERS[optimizer.name]),
            stochastic_rounding=False,
            learning_rate=optimizer.learning_rate,
            eps=optimizer.eps,
            bounds_check_mode=BoundsCheckMode.NONE,  # ids were checked before they travelled
            device=device,
        )
        self.weights: torch.Tensor = self._kernel.split_embedding_weights()[0].detach()
        states = self._kernel.split_optimizer_states()[0] if optimizer.states else ()
        self.states = [state.view(rows, -1) for state in states]
        for matrix in (self.weights, *self.states):
            matrix.zero_()

    def sums(self, held: HeldBags) -> torch.Tensor:
        """`(answers, dim)` sums of bags; a backward pass of `held.output` updates the rows."""
        offsets = torch.cat([held.starts, held.starts.new_tensor([held.slots.numel()])])
        with torch.enable_grad():
            held.output = self._kernel(held.slots, offsets, per_sample_weights=held.weights)
        return held.output.detach()


def fuses(optimizer: str, rows: int, dim: int) -> bool:
    """Whether FBGEMM is installed and has a fused kernel for such a group, whose columns must be a multiple of 4."""
    return optimizer in _OPTIMIZERS and rows > 0 and dim % 4 == 0 and find_spec("fbgemm_gpu") is not None
