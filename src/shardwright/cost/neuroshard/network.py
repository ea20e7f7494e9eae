"""The networks as torch modules, to be trained. Shape suffixes: b samples, s tables of a set, f features, d devices."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor, nn

from shardwright.cost.model import HEAD_HIDDEN, HIDDEN, LATENT
from shardwright.cost.neuroshard.communication import SIZES
from shardwright.cost.neuroshard.features import TABLE_FEATURES
from shardwright.cost.neuroshard.layers import Weights


class Stack(nn.ModuleList):
    """Linear layers with ReLUs between them."""

    def __init__(self, sizes: Sequence[int]) -> None:
        super().__init__([nn.Linear(inputs, outputs) for inputs, outputs in pairwise(sizes)])

    def forward(self, x: Tensor) -> Tensor:
        """`(..., out)` outputs of `(..., in)` inputs."""
        for index, layer in enumerate(self):
            x = layer(torch.relu(x) if index else x)
        return x


class ComputeNetwork(nn.Module):
    """Encoder, sum and head: fused forward + backward ms of a set of tables."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = Stack((len(TABLE_FEATURES), HIDDEN, LATENT))
        self.head = Stack((LATENT, HEAD_HIDDEN, 1))

    def forward(self, x_bsf: Tensor, inside_bs: Tensor) -> Tensor:
        """`(b, 1)` ms; `inside_bs` is 0 in the padding."""
        sums = (torch.relu(self.encoder(x_bsf)) * inside_bs[..., None]).sum(dim=1)
        times: Tensor = self.head(sums)
        return times


class CommunicationNetwork(Stack):
    """`(b, d)` ms in an all-to-all, from `(b, f)` sizes and delays."""

    def __init__(self, inputs: int, devices: int) -> None:
        super().__init__((inputs, *SIZES, devices))


def exported(network: nn.Module, prefix: str = "") -> Weights:
    """A network's arrays, for numpy."""
    return {prefix + name: value.detach().numpy().astype(np.float32) for name, value in network.named_parameters()}
