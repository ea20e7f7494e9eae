"""The estimated MDP: the cost network alone gives states and rewards, so episodes need no measurement.

Shape suffixes: e episodes, u units, d devices, h hidden, k cost heads, t steps, q pre-activations of the cost heads (192).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor

from shardwright.errors import ShardwrightError
from shardwright.learned.dreamshard.network import DreamShardNetwork
from shardwright.learned.dreamshard.policy import HEADS, LEAST_EVEN
from shardwright.learned.environment import Environment, PlacementBatch, choices, masked

Choose: TypeAlias = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True, eq=False)
class EncodedBatch:
    """A batch as the cost network sees it.

    Attributes:
        batch: the tasks.
        units_euh: encodings of the units.
        fixed_edh: sums of the encodings of the settled shards on each device.
        order_eu: units by the predicted cost of a device that holds the unit alone, largest first, as in [dreamshard]; padding last.
        even_ek: ms of a device that holds an even share of everything.
        copies: number of adjacent copies of each task.
    """

    batch: PlacementBatch
    units_euh: Tensor
    fixed_edh: Tensor
    order_eu: Tensor
    even_ek: Tensor
    copies: int = 1

    def repeat(self, times: int) -> EncodedBatch:
        """A batch with `times` adjacent copies of every task."""
        tensors = {name: value for name, value in vars(self).items() if isinstance(value, Tensor)}
        repeated = {name: value.repeat_interleave(times, dim=0) for name, value in tensors.items()}
        return EncodedBatch(self.batch.repeat(times), **repeated, copies=times * self.copies)

    def sums(self, assignment_eu: Tensor) -> Tensor:
        """`(e, d, h)` sums of the encodings on each device, settled shards included."""
        return self.batch.sums(self.units_euh, assignment_eu) + self.fixed_edh


@dataclass(frozen=True, eq=False)
class Episodes:
    """Finished episodes, with the data to recompute the probabilities of a policy's choices.

    Attributes:
        encoded: the tasks.
        assignment_eu: device of each unit, or `UNPLACED`.
        excess_e: as in `Environment`: 0 unless a unit found no device.
        unit_te: unit placed at each step.
        device_te: device chosen at each step.
        mask_ted: devices that could be chosen; none if the episode had ended, or had no device for the unit.
        shares_tedk: log(1 + cost / cost of an even share) of every device if it takes the unit; in the paper, costs in ms.
        start_edk: the same for the devices before the first step.
    """

    encoded: EncodedBatch
    assignment_eu: Tensor
    excess_e: Tensor
    unit_te: Tensor
    device_te: Tensor
    mask_ted: Tensor
    shares_tedk: Tensor
    start_edk: Tensor


def encode(network: DreamShardNetwork, batch: PlacementBatch) -> EncodedBatch:
    """Encode the units of a batch, and find the order in which to place them."""
    cost = network.cost
    units_euh = batch.by_unit(cost.encoder(network.standardised(batch.features_ebf)))
    fixed_edh = batch.by_device(cost.encoder(network.standardised(batch.fixed_ecf)))
    alone_eu = cost.device_costs(cost.hidden(units_euh)).sum(dim=-1)
    exists_eu = torch.arange(batch.units) < batch.unit_count_e[:, None]
    order_eu = torch.where(exists_eu, alone_eu, -torch.inf).argsort(dim=1, descending=True, stable=True)
    total_eh = (units_euh * exists_eu[..., None]).sum(dim=1) + fixed_edh.sum(dim=1)
    even_eh = total_eh / batch.device_ed.sum(dim=1, keepdim=True)
    even_ek = torch.maximum(cost.device_costs(cost.hidden(even_eh)), LEAST_EVEN * cost.scale[:HEADS])
    return EncodedBatch(batch, units_euh, fixed_edh, order_eu, even_ek)


@torch.no_grad()
def play(network: DreamShardNetwork, encoded: EncodedBatch, choose: Choose) -> Episodes:
    """Play an episode of each task, without gradients.

    Args:
        network: both networks.
        encoded: the tasks.
        choose: picks a device in each episode from `(e, d)` logits and masks; see `sampler`.
    """
    cost, policy = network.cost, network.policy
    environment = Environment(encoded.batch, encoded.order_eu)
    unit_euq = cost.hidden(encoded.units_euh) - cost.heads.bias
    hidden_edq = cost.hidden(encoded.fixed_edh)
    load_eu, load_ed = loads(network, encoded)
    start_edk = _shares(network, encoded, hidden_edq)
    value_ed = policy.value(start_edk)
    rows = torch.arange(encoded.batch.episodes)
    devices, masks, shares = [], [], []
    while not environment.done:
        current_e, mask_ed = environment.current_e, environment.mask()
        added_edq = hidden_edq + unit_euq[rows, current_e][:, None]
        share_edk = _shares(network, encoded, added_edq)
        added_ed = policy.value(share_edk)
        device_e = choose(load_ed + value_ed if policy.published else load_ed + added_ed - value_ed, mask_ed)
        placed_e = environment.step(device_e, mask_ed)
        moved = rows[placed_e], device_e[placed_e]
        hidden_edq[moved] = added_edq[moved]
        value_ed[moved] = added_ed[moved]
        load_ed[moved] += load_eu[rows, current_e][placed_e]
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
        start_edk,
    )


def _shares(network: DreamShardNetwork, encoded: EncodedBatch, hidden_edq: Tensor) -> Tensor:
    """`(e, d, k)` log(1 + cost / cost of an even share); in the paper, costs in ms."""
    costs_edk = network.cost.device_costs(hidden_edq)
    if network.policy.published:
        return costs_edk
    return torch.log1p(costs_edk.clamp(min=0.0) / encoded.even_ek[:, None])


def loads(network: DreamShardNetwork, encoded: EncodedBatch) -> tuple[Tensor, Tensor]:
    """The terms that units and settled shards add to the logits of their devices: `(e, u)` and `(e, d)`.

    The logit's layer is linear, so applying it to each unit gives the same as applying it to the sum on a device.
    """
    policy, copies = network.policy, encoded.copies
    batch = encoded.batch.rows(torch.arange(0, encoded.batch.episodes, copies))
    mean_e1 = (batch.unit_count_e / batch.device_ed.sum(dim=1)).clamp(min=1.0)[:, None]
    if policy.published:
        mean_e1 = torch.ones_like(mean_e1)
    units_euh = batch.by_unit(policy.encoder(network.standardised(batch.features_ebf)))
    fixed_edh = batch.by_device(policy.encoder(network.standardised(batch.fixed_ecf)))
    load_eu, start_ed = policy.load(units_euh) / mean_e1, policy.load(fixed_edh) / mean_e1
    return load_eu.repeat_interleave(copies, dim=0), start_ed.repeat_interleave(copies, dim=0)


def estimates(network: DreamShardNetwork, episodes: Episodes) -> Tensor:
    """`(t + 1, e)` estimated ms of a placement before the first step and after each step.

    After a step, the estimate is the heads' cost of the slowest device so far, but no less than an even share, as later units can still go
    to other devices. The last row is the predicted overall cost. The difference between two rows is the part of the cost that the step
    causes. In the paper only the last row counts; the others are 0.
    """
    encoded = episodes.encoded
    overall_e = network.cost.overall_cost(encoded.sums(episodes.assignment_eu))
    if network.policy.published:
        return torch.cat([torch.zeros_like(episodes.device_te, dtype=overall_e.dtype), overall_e[None]])
    chosen_tek = torch.gather(
        episodes.shares_tedk, 2, episodes.device_te[..., None, None].expand(-1, -1, 1, episodes.shares_tedk.shape[3])
    )[:, :, 0]
    chosen_tek = chosen_tek * _placed(episodes).any(dim=2)[..., None]
    largest_tek = torch.cat([episodes.start_edk.amax(dim=1)[None], chosen_tek]).cummax(dim=0).values
    slowest_te = (largest_tek.expm1().clamp(min=1.0) * encoded.even_ek).sum(dim=2)
    return torch.cat([slowest_te[:-1], overall_e[None]])


def log_probabilities(network: DreamShardNetwork, episodes: Episodes) -> tuple[Tensor, Tensor]:
    """Recompute the log probabilities and entropies of a policy's choices, with gradients.

    Returns:
        `(t, e)` log probability of the chosen device, and `(t, e)` entropy; both are 0 without a choice.
    """
    load_eu, start_ed = loads(network, episodes.encoded)
    chosen_ted = _placed(episodes)
    added_ted = chosen_ted * load_eu.gather(1, episodes.unit_te.T).T[..., None]
    load_ted = start_ed + added_ted.cumsum(dim=0) - added_ted
    value_ted = network.policy.value(torch.cat([episodes.start_edk[None], episodes.shares_tedk]))
    before_ted = torch.gather(value_ted, 0, _last_changes(chosen_ted))
    logit_ted = load_ted + before_ted if network.policy.published else load_ted + value_ted[1:] - before_ted
    return choices(logit_ted, episodes.mask_ted, episodes.device_te)


def _placed(episodes: Episodes) -> Tensor:
    """`(t, e, d)` 1 where a step placed its unit, else 0."""
    chosen_ted = torch.nn.functional.one_hot(episodes.device_te, episodes.mask_ted.shape[2]).bool()
    return (chosen_ted & episodes.mask_ted).float()


def _last_changes(chosen_ted: Tensor) -> Tensor:
    """`(t, e, d)` number (from 1) of the last earlier step that placed a unit on the device; 0 if there is none."""
    number_t = torch.arange(1, len(chosen_ted) + 1)
    last_ted = (chosen_ted.long() * number_t[:, None, None]).cummax(dim=0).values
    return torch.cat([torch.zeros_like(last_ted[:1]), last_ted[:-1]])


def sampler(generator: torch.Generator, *, random: bool = False) -> Choose:
    """A function that draws devices with the probabilities that their logits give, or all with the same one if random."""

    def choose(logit_ed: Tensor, mask_ed: Tensor) -> Tensor:
        logit_ed = torch.zeros_like(logit_ed) if random else logit_ed
        weight_ed = torch.softmax(masked(logit_ed, mask_ed), dim=1)
        if not bool(weight_ed.isfinite().all()):
            raise ShardwrightError(
                "the policy's logits became NaN: the training has diverged; lower cost_rate or policy_rate"
            )
        return torch.multinomial(weight_ed, 1, generator=generator)[:, 0]

    return choose
