"""The estimated MDP: states and rewards come from the cost network alone, so that episodes cost no measurement.

Shape suffixes: e episodes, u units, d devices, h hidden, k cost heads, t steps, q pre-activations of the cost heads (192).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor

from shardwright.errors import ShardwrightError
from shardwright.search.dreamshard.network import DreamShardNetwork
from shardwright.search.dreamshard.weights import HEADS, LEAST_EVEN
from shardwright.search.learned.environment import Environment, PlacementBatch

Choose: TypeAlias = Callable[[Tensor, Tensor], Tensor]



@dataclass(frozen=True, eq=False)
class Encoded:
    """A batch as the cost network sees it.

    Attributes:
        batch: the tasks.
        units_euh: encodings of the units.
        fixed_edh: sums of the encodings of settled shards.
        order_eu: units by their predicted cost alone on a device, largest first, as in [dreamshard]; the padding comes last.
        even_ek: ms of a device that holds an even share of everything.
    """

    batch: PlacementBatch
    units_euh: Tensor
    fixed_edh: Tensor
    order_eu: Tensor
    even_ek: Tensor

    def sums(self, assignment_eu: Tensor) -> Tensor:
        """`(e, d, h)` sums of encodings over devices."""
        return self.batch.sums(self.units_euh, assignment_eu) + self.fixed_edh


@dataclass(frozen=True, eq=False)
class Episodes:
    """Finished episodes, with what a policy needs to judge its choices again.

    Attributes:
        encoded: the tasks.
        assignment_eu: device of each unit, or `UNPLACED`.
        excess_e: as in `Environment`: 0 unless a unit found no device.
        unit_te: unit placed at each step.
        device_te: device chosen at each step.
        mask_ted: devices that could be chosen; none where the episode had ended, or had no device for the unit.
        shares_tedk: log(1 + cost of every device with the unit over that of an even share).
    """

    encoded: Encoded
    assignment_eu: Tensor
    excess_e: Tensor
    unit_te: Tensor
    device_te: Tensor
    mask_ted: Tensor
    shares_tedk: Tensor


def encode(network: DreamShardNetwork, batch: PlacementBatch) -> Encoded:
    """Encode the units of a batch and find the order in which they are placed."""
    cost = network.cost
    units_euh = batch.by_unit(cost.encoder(network.standardised(batch.features_ebf)))
    fixed_edh = batch.by_device(cost.encoder(network.standardised(batch.fixed_ecf)))
    alone_eu = cost.device_costs(cost.hidden(units_euh)).sum(dim=-1)
    exists_eu = torch.arange(batch.units) < batch.unit_count_e[:, None]
    order_eu = torch.where(exists_eu, alone_eu, -torch.inf).argsort(dim=1, descending=True, stable=True)
    total_eh = (units_euh * exists_eu[..., None]).sum(dim=1) + fixed_edh.sum(dim=1)
    even_eh = total_eh / batch.device_ed.sum(dim=1, keepdim=True)
    even_ek = torch.maximum(cost.device_costs(cost.hidden(even_eh)), LEAST_EVEN * cost.scale[:HEADS])
    return Encoded(batch, units_euh, fixed_edh, order_eu, even_ek)


class Rollout:
    """Episodes of a policy on the estimated MDP; nothing is differentiated.

    Args:
        network: both networks.
        encoded: the tasks.
    """

    def __init__(self, network: DreamShardNetwork, encoded: Encoded) -> None:
        self._network, self._encoded = network, encoded
        batch, cost = encoded.batch, network.cost
        self._hidden_euq = cost.hidden(encoded.units_euh) - cost.heads.bias
        self._start_edq = cost.hidden(encoded.fixed_edh)
        self._load_eu, self._start_ed = loads(network, batch)

    @torch.no_grad()
    def play(self, choose: Choose) -> Episodes:
        """Place all units on the devices that `choose` names from `(e, d)` logits and masks."""
        encoded, network = self._encoded, self._network
        environment = Environment(encoded.batch, encoded.order_eu)
        hidden_edq, load_ed = self._start_edq.clone(), self._start_ed.clone()
        rows = torch.arange(encoded.batch.episodes)
        devices, masks, shares = [], [], []
        while not environment.done:
            current_e, mask_ed = environment.current_e, environment.mask()
            added_edq = hidden_edq + self._hidden_euq[rows, current_e][:, None]
            share_edk = torch.log1p(network.cost.device_costs(added_edq).clamp(min=0.0) / encoded.even_ek[:, None])
            logit_ed = network.policy.cost_logit(share_edk) + load_ed
            device_e = choose(logit_ed, mask_ed)
            placed_e = environment.step(device_e, mask_ed)
            moved = rows[placed_e], device_e[placed_e]
            hidden_edq[moved] = added_edq[moved]
            load_ed[moved] += self._load_eu[rows, current_e][placed_e]
            devices.append(device_e)
            masks.append(mask_ed)
            shares.append(share_edk)
        return Episodes(
            encoded,
            environment.assignment_eu,
            environment.excess_e,
            encoded.order_eu.T,
            torch.stack(devices),
            torch.stack(masks),
            torch.stack(shares),
        )


def loads(network: DreamShardNetwork, batch: PlacementBatch) -> tuple[Tensor, Tensor]:
    """What units, and settled shards on their devices, add to logits: `(e, u)` and `(e, d)`.

    The linear layer of the logit is applied to each unit rather than to the sum over a device, which is the same.
    """
    policy = network.policy
    mean_e1 = (batch.unit_count_e / batch.device_ed.sum(dim=1)).clamp(min=1.0)[:, None]
    units_euh = batch.by_unit(policy.encoder(network.standardised(batch.features_ebf)))
    fixed_edh = batch.by_device(policy.encoder(network.standardised(batch.fixed_ecf)))
    return policy.load(units_euh) / mean_e1, policy.load(fixed_edh) / mean_e1


def log_probabilities(network: DreamShardNetwork, episodes: Episodes) -> tuple[Tensor, Tensor]:
    """What the policy thinks of its choices, differentiable.

    Returns:
        `(t, e)` log probability of the chosen device, and `(t, e)` entropy; both 0 where there was no choice.
    """
    batch = episodes.encoded.batch
    load_eu, start_ed = loads(network, batch)
    load_te = torch.gather(load_eu, 1, episodes.unit_te.T).T
    chosen_ted = torch.nn.functional.one_hot(episodes.device_te, batch.devices).bool() & episodes.mask_ted
    added_ted = chosen_ted * load_te[..., None]
    load_ted = start_ed + added_ted.cumsum(dim=0) - added_ted
    logit_ted = network.policy.cost_logit(episodes.shares_tedk) + load_ted
    any_te = episodes.mask_ted.any(dim=2)
    open_ted = episodes.mask_ted | ~any_te[..., None]
    log_ted = torch.log_softmax(logit_ted.masked_fill(~open_ted, -torch.inf), dim=2).masked_fill(~open_ted, 0.0)
    taken_te = torch.gather(log_ted, 2, episodes.device_te[..., None])[..., 0]
    entropy_te = -(log_ted.exp() * open_ted * log_ted).sum(dim=2)
    return taken_te * any_te, entropy_te * any_te


def likeliest(logit_ed: Tensor, mask_ed: Tensor) -> Tensor:
    """`(e,)` the device with the highest logit that the mask allows; any where it allows none."""
    return logit_ed.masked_fill(~mask_ed, -torch.inf).argmax(dim=1)


def sampler(generator: torch.Generator) -> Choose:
    """A choice of devices at random, by their logits."""

    def choose(logit_ed: Tensor, mask_ed: Tensor) -> Tensor:
        open_ed = mask_ed | ~mask_ed.any(dim=1, keepdim=True)
        weight_ed = torch.softmax(logit_ed.masked_fill(~open_ed, -torch.inf), dim=1)
        if not bool(weight_ed.isfinite().all()):
            raise ShardwrightError("the policy's logits became NaN: the training has diverged; lower learning_rate")
        return torch.multinomial(weight_ed, 1, generator=generator)[:, 0]

    return choose
