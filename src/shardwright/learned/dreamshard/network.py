"""DreamShard's networks in torch, for training.

Shape suffixes: e episodes, u units, b blocks, d devices, f features, h hidden, k cost heads; `...` stands for any leading dimensions.

The published architecture: an encoder 21→128→32 encodes each block, and a device is the SUM of its blocks. Three heads 32→64→1 give
forward, backward and backward communication; a head 32→64→1 on the MAX over devices gives the overall cost. The policy sums encodings of a
separate encoder, and takes the three costs through 3→64→32; a linear layer 64→1 then gives the logit of a device.

These networks also fix points that the paper leaves open, and deviate from it if that works better. The method "paper" selects the
published way:

- Input of the logit. The published code judges devices as they are: its policy does not see the table to place, and can only balance the
  tables placed so far. Here the cost part of the logit is the change of a device's value when it gets the unit; the value is the linear
  layer on 3→64→32. The part from the policy's own encoder is a sum over the units on a device, as published.
- Start of learning. The linear layer starts at zero, and the value also has a high power of each cost, with learned factor and power. So
  an untrained policy balances the costs that its network estimates, and REINFORCE improves on that. From random weights, the policy came
  to rely on its own encoder, which knows the training tables by heart and misjudges others.
- Scale of inputs. Costs enter the policy as log(1 + cost / cost of a device with an even share of the whole task). The policy's sums are
  divided by the mean number of units per device. So tasks of any number of tables and devices look alike.
- Costs are learned relative to their size (see `CostErrors`), in units of the mean cost of each head.
- An encoding is multiplied by a learned power of the table's sizes, because times span decades and times are summed, not their logarithms.
- The overall head corrects the cost that the device heads imply: the sum of their maxima over devices (or the maximum of the sums). Alone,
  it ranked placements of one task near the policy's hardly better than chance, and a policy in training sees only such placements.

References:
    [dreamshard] Zha et al., DreamShard: Generalizable Embedding Table Placement for Recommender Systems, NeurIPS 2022.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from shardwright.learned.arrays import TABLE_FEATURES
from shardwright.learned.dreamshard.policy import (
    COST_HIDDEN,
    ENCODING,
    FARTHEST,
    FIRST_POWER,
    FIRST_URGENCY,
    HEAD_HIDDEN,
    HEADS,
    HIDDEN,
    MOST_LOG,
    MOST_URGENT,
    SHARE_GAIN,
    SIZES,
)
from shardwright.learned.options import Method, Objective


class TableEncoder(nn.Module):
    """Encodes table features so that encodings can be summed: 21→128→32, ReLU after both layers, times a power law of the sizes."""

    def __init__(self, generator: torch.Generator, method: Method) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            [_linear(len(TABLE_FEATURES), HIDDEN, generator), _linear(HIDDEN, ENCODING, generator)]
        )
        self.powers = nn.Parameter(torch.rand((SIZES, ENCODING), generator=generator) / 2)
        if method == "paper":  # no power law
            self.powers = nn.Parameter(torch.zeros(SIZES, ENCODING), requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        """`(..., h)` encodings of `(..., f)` standardised features; never negative."""
        size = torch.exp((x[..., :SIZES] @ self.powers).clamp(-MOST_LOG, MOST_LOG))
        for layer in self.layers:
            x = torch.relu(layer(x))
        return x * size


class CostNetwork(nn.Module):
    """Predicts costs of devices and of whole placements from sums of encodings."""

    scale: Tensor

    def __init__(self, objective: Objective, generator: torch.Generator, method: Method) -> None:
        super().__init__()
        self._objective, self._published = objective, method == "paper"
        self.encoder = TableEncoder(generator, method)
        self.heads = _linear(ENCODING, HEADS * HEAD_HIDDEN, generator)
        self.mix = nn.Parameter(_uniform((HEADS, HEAD_HIDDEN), HEAD_HIDDEN, generator))
        self.bias = nn.Parameter(torch.zeros(HEADS))
        self.overall = nn.ModuleList([_linear(ENCODING, HEAD_HIDDEN, generator), _linear(HEAD_HIDDEN, 1, generator)])
        self.register_buffer("scale", torch.ones(HEADS + 1))

    def hidden(self, sums: Tensor) -> Tensor:
        """`(..., 192)` pre-activations of the three heads from `(..., h)` sums; linear, so they can be summed over units themselves."""
        result: Tensor = self.heads(sums)
        return result

    def device_costs(self, hidden: Tensor) -> Tensor:
        """`(..., k)` ms of forward, backward and backward communication from `(..., 192)` pre-activations."""
        active = torch.relu(hidden).unflatten(-1, (HEADS, HEAD_HIDDEN))
        result: Tensor = ((active * self.mix).sum(dim=-1) + self.bias) * self.scale[:HEADS]
        return result

    def overall_cost(self, sums_edh: Tensor) -> Tensor:
        """`(e,)` overall ms from the sums of all devices; devices that are empty or do not exist change nothing."""
        first, second = self.overall
        held_ed1 = (sums_edh > 0).any(dim=2, keepdim=True)
        known_edk = self.device_costs(self.hidden(sums_edh)).clamp(min=0.0) * held_ed1
        slowest_e = known_edk.amax(dim=1).sum(dim=1) if self._objective == "step" else known_edk.sum(dim=2).amax(dim=1)
        rest: Tensor = second(torch.relu(first(sums_edh.amax(dim=1))))[:, 0]
        return rest if self._published else slowest_e + rest * self.scale[HEADS]


class PolicyNetwork(nn.Module):
    """Computes logits of devices from the units on them and from their costs."""

    def __init__(self, generator: torch.Generator, method: Method = "shardwright") -> None:
        super().__init__()
        self.published = method == "paper"
        self.encoder = TableEncoder(generator, method)
        self.costs = nn.ModuleList([_linear(HEADS, COST_HIDDEN, generator), _linear(COST_HIDDEN, ENCODING, generator)])
        self.logit = nn.Linear(2 * ENCODING, 1, bias=False)
        torch.nn.init.zeros_(self.logit.weight)
        if self.published:
            self.logit.weight = nn.Parameter(_uniform((1, 2 * ENCODING), 2 * ENCODING, generator))
        self.urgency = nn.Parameter(torch.zeros(HEADS), requires_grad=not self.published)
        self.power = nn.Parameter(torch.full((HEADS,), FIRST_POWER), requires_grad=not self.published)

    @torch.no_grad()
    def start_from(self, scale: Tensor) -> None:
        """Before training, weight each cost by its share of a device's whole cost, taken from the scales of the heads."""
        self.urgency.copy_(torch.log(FIRST_URGENCY * scale[:HEADS] / scale[:HEADS].sum()))

    def load(self, sums: Tensor) -> Tensor:
        """`(...,)` part of the logit from `(..., h)` sums of the policy's encodings; linear in the sums."""
        result: Tensor = sums @ self.logit.weight[0, :ENCODING]
        return result

    def value(self, shares: Tensor) -> Tensor:
        """`(...,)` value of a device from its `(..., k)` shares; in the paper, from its costs in ms."""
        x = shares if self.published else SHARE_GAIN * shares
        for layer in self.costs:
            x = torch.relu(layer(x))
        if self.published:
            good: Tensor = x @ self.logit.weight[0, ENCODING:]
            return good
        logarithm = self.urgency + self.power * (shares - math.log(2))
        power = self.power.clamp(min=1.0)
        beyond = torch.expm1((logarithm - MOST_URGENT).clamp(min=0.0) / power)
        worse = (torch.exp(logarithm.clamp(max=MOST_URGENT)) * (1.0 + power * beyond)).sum(dim=-1)
        result: Tensor = x @ self.logit.weight[0, ENCODING:] - worse
        return result


class DreamShardNetwork(nn.Module):
    """Cost network and policy network, with the statistics that standardise features.

    Args:
        mean_f: mean of each feature over the training tasks.
        std_f: standard deviation of each feature over the training tasks.
        generator: draws the weights.
        objective: meaning of the overall cost.
        method: "paper" for the published networks.
    """

    feature_mean: Tensor
    feature_std: Tensor

    def __init__(
        self,
        mean_f: Tensor,
        std_f: Tensor,
        generator: torch.Generator,
        objective: Objective,
        method: Method,
    ) -> None:
        super().__init__()
        self.register_buffer("feature_mean", mean_f.clone())
        self.register_buffer("feature_std", std_f.clone())
        self.objective = objective
        self.cost = CostNetwork(objective, generator, method)
        self.policy = PolicyNetwork(generator, method)

    def standardised(self, x: Tensor) -> Tensor:
        """`(..., f)` features as the encoders take them, standardised; features far outside the training range are clipped."""
        return ((x - self.feature_mean) / self.feature_std).clamp(-FARTHEST, FARTHEST)


def _linear(inputs: int, outputs: int, generator: torch.Generator) -> nn.Linear:
    """A layer with torch's default distribution of weights, drawn from the generator."""
    layer = nn.Linear(inputs, outputs)
    with torch.no_grad():
        layer.weight.copy_(_uniform((outputs, inputs), inputs, generator))
        layer.bias.copy_(_uniform((outputs,), inputs, generator))
    return layer


def _uniform(shape: tuple[int, ...], inputs: int, generator: torch.Generator) -> Tensor:
    return (2 * torch.rand(shape, generator=generator) - 1) / math.sqrt(inputs)
