"""AutoShard's networks in torch, to be trained. What they are made of is in `weights`.

Shape suffixes: e episodes, t steps (the units of a task, in the order in which they are placed), b blocks, d devices, f features, h hidden.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn

from shardwright.search.autoshard.weights import (
    COST_SIZES,
    DEVICE_SIZES,
    ENCODER_SIZES,
    FEATURES,
    LEAST_SHARE,
    LSTM_LAYERS,
    POLICY_SIZES,
    SHARE_SIZES,
    STATE,
    VALUE_SIZES,
)
from shardwright.search.learned.policy_files import SavedPolicy

LstmState = tuple[Tensor, Tensor]


class Stack(nn.ModuleList):
    """Linear layers with ReLUs between them, none after the last."""

    def __init__(self, sizes: Sequence[int]) -> None:
        super().__init__([nn.Linear(inputs, outputs) for inputs, outputs in pairwise(sizes)])

    def forward(self, x: Tensor) -> Tensor:
        """`(..., out)` outputs of `(..., in)` inputs."""
        for index, layer in enumerate(self):
            x = layer(torch.relu(x) if index else x)
        return x


class AutoShardNetwork(nn.Module):
    """Cost model and policy, which share the encoder.

    Attributes:
        feature_mean: `(21,)` mean of the training tasks' table features.
        feature_scale: `(21,)` one over their standard deviation; 0 for a feature that was the same everywhere.
        cost_scale: `(1,)` ms; predicted costs are in units of it.
    """

    feature_mean: Tensor
    feature_scale: Tensor
    cost_scale: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("feature_mean", torch.zeros(FEATURES))
        self.register_buffer("feature_scale", torch.ones(FEATURES))
        self.register_buffer("cost_scale", torch.ones(1))
        self.encoder = Stack(ENCODER_SIZES)
        self.cost = Stack(COST_SIZES)
        self.share = Stack(SHARE_SIZES)
        self.device = Stack(DEVICE_SIZES)
        self.lstm = nn.LSTM(STATE, STATE, LSTM_LAYERS)
        self.policy = Stack(POLICY_SIZES)
        self.value = Stack(VALUE_SIZES)

    def encode(self, x_f: Tensor) -> Tensor:
        """`(..., 32)` encodings of blocks from `(..., 21)` table features."""
        standardised: Tensor = (x_f - self.feature_mean) * self.feature_scale
        return torch.relu(self.encoder(standardised))

    def relative_cost(self, sums_h: Tensor) -> Tensor:
        """`(...)` predicted forward + backward time from `(..., 32)` sums of encodings, in units of `cost_scale` ms."""
        cost: Tensor = self.cost(sums_h)
        return cost[..., 0]

    def states(self, units_teh: Tensor, share_te: Tensor, before: LstmState | None = None) -> tuple[Tensor, LstmState]:
        """`(t, e, 64)` states when units with these encodings are placed one after another, and the LSTM's own state after them."""
        inputs = torch.cat([units_teh, torch.relu(self.share(share_te[..., None]))], dim=-1)
        states, after = self.lstm(inputs, before)
        return states, after

    @torch.no_grad()
    def even_share(self, total_eh: Tensor, devices_e: Tensor) -> Tensor:
        """`(e,)` predicted cost of a device that holds an even share of everything: what predicted costs are compared with.

        Args:
            total_eh: `(e, 32)` sum of all encodings of a task.
            devices_e: `(e,)` number of devices.
        """
        return self.relative_cost(total_eh / devices_e[:, None]).clamp(min=LEAST_SHARE)

    @torch.no_grad()
    def device_facts(self, sums_edh: Tensor, occupied_ed: Tensor, memory_ed: Tensor, even_e: Tensor) -> Tensor:
        """`(..., e, d, 2)` predicted cost of each device over the even share, 0 where it is empty, and the share of its memory taken."""
        cost_ed = self.relative_cost(sums_edh) / even_e[:, None]
        return torch.stack([torch.where(occupied_ed, cost_ed, 0.0), memory_ed], dim=-1)

    def logits(self, state_eh: Tensor, sums_edh: Tensor, facts_ed2: Tensor, mask_ed: Tensor) -> Tensor:
        """`(..., e, d)` logits of the devices; minus infinity where `mask_ed` is false, 0 where it is so everywhere."""
        device = torch.cat([sums_edh, torch.relu(self.device(facts_ed2))], dim=-1)
        state = state_eh[..., None, :].expand_as(device)
        logits: Tensor = self.policy(torch.cat([state, device, state * device], dim=-1))[..., 0]
        possible = mask_ed.any(dim=-1, keepdim=True)
        return logits.masked_fill(~mask_ed, float("-inf")).masked_fill(~possible, 0.0)


def new_network(seed: int) -> AutoShardNetwork:
    """A network with random weights; torch's own generator is left as it was."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return AutoShardNetwork()


def exported(network: AutoShardNetwork, metadata: dict[str, str]) -> SavedPolicy:
    """The network as it is saved."""
    from shardwright.search.autoshard.weights import NAME

    weights = {name: value.detach().cpu().float().numpy().copy() for name, value in network.state_dict().items()}
    return SavedPolicy(NAME, weights, metadata)
