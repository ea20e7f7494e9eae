"""The compute model as a torch module, to be trained.

Shape suffixes: b sets, c calls of all sets, m shards of all sets, f features, h inputs of the head.
"""

from __future__ import annotations

from functools import partial
from typing import Self, cast

import numpy as np
import torch
from torch import Tensor, nn

from shardwright.cost.features import FEATURES
from shardwright.cost.model import HEAD_HIDDEN, HEAD_INPUTS, HIDDEN, LATENT, OUTPUTS, ComputeModel, Floats, Head

_linear = partial(nn.Linear, dtype=torch.float64)


class ComputeNetwork(nn.Module):
    """Encoder, sums and head with the shapes of `shardwright.cost.model`.

    Weights have double precision: with single precision, the rounding of another processor changes what a training ends with by percents.
    """

    def __init__(self, head: Head) -> None:
        super().__init__()
        self.head_kind = head
        self.encoder = nn.ModuleList([_linear(len(FEATURES), HIDDEN), _linear(HIDDEN, LATENT)])
        self.head = nn.ModuleList([_linear(HEAD_INPUTS, HEAD_HIDDEN), _linear(HEAD_HIDDEN, OUTPUTS)])
        self.skip = nn.Parameter(torch.full((OUTPUTS, HEAD_INPUTS), 1 / (OUTPUTS * LATENT), dtype=torch.float64))
        with torch.no_grad():
            # A latent begins as the first estimate of its shard's time, and the head as half of it for each direction, caches aside.
            self._linear("encoder.1").weight.mul_(0.3)
            self._linear("encoder.1").bias.fill_(1.0)
            self._linear("head.0").weight[:, LATENT:] = 0.0
            self._linear("head.1").weight.abs_().mul_(0.05)
            self._linear("head.1").bias.zero_()
            self.skip[:, LATENT:] = 0.0

    @classmethod
    def of(cls, model: ComputeModel) -> Self:
        """The network with a model's weights, to be trained further."""
        network = cls(model.head)
        with torch.no_grad():
            for name, parameter in network.named_parameters():
                parameter.copy_(torch.from_numpy(model.weights[name.replace("skip", "head.skip")]))
        return network

    def forward(self, x_mf: Tensor, estimate_m: Tensor, cached_m2: Tensor, call_m: Tensor, set_c: Tensor) -> Tensor:
        """`(b, 2)` forward and backward ms of sets.

        Args:
            x_mf: features of all shards.
            estimate_m: first estimates of their times, ms.
            cached_m2: bytes of their distinct rows in units of the caches.
            call_m: to which call each shard belongs.
            set_c: to which set each call belongs.
        """
        factor_mh = self._linear("encoder.1")(torch.relu(self._linear("encoder.0")(x_mf)))
        encoded_mh = torch.cat([factor_mh * estimate_m[:, None], cached_m2], dim=1)
        sums_ch = encoded_mh.new_zeros(len(set_c), HEAD_INPUTS).index_add(0, call_m, encoded_mh)
        hidden = torch.relu(self._linear("head.0")(sums_ch))
        times_c2 = hidden @ self._head_weight().T + sums_ch @ self.skip.T + self._linear("head.1").bias
        return times_c2.new_zeros(int(set_c.max()) + 1, OUTPUTS).index_add(0, set_c, times_c2)

    @torch.no_grad()
    def project(self) -> None:
        """Keep the weights of a convex head non-negative; called after every update."""
        if self.head_kind == "convex":
            self._linear("head.1").weight.clamp_(min=0)

    def export(self, constants: dict[str, Floats], metadata: dict[str, str]) -> ComputeModel:
        """The trained model, for numpy; `constants` are those of its weights that are not trained."""
        weights = {
            name.replace("skip", "head.skip"): value.detach().numpy().astype(np.float32)
            for name, value in self.named_parameters()
        }
        return ComputeModel(self.head_kind, weights | {k: v.astype(np.float32) for k, v in constants.items()}, metadata)

    def _head_weight(self) -> Tensor:
        return self._linear("head.1").weight

    def _linear(self, name: str) -> nn.Linear:
        return cast(nn.Linear, self.get_submodule(name))
