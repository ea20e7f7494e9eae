"""AutoShard's networks in torch. They play episodes with the actor's policy, and the learner's policy goes through the episodes again.

Shape suffixes: e episodes, t steps (the units of a task in the order of placement), u units (padded), b blocks, d devices (padded),
f features, h hidden.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from shardwright.learned.autoshard.policy import (
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
from shardwright.learned.environment import Environment, PlacementBatch, masked
from shardwright.learned.worlds import Placed
from shardwright.modelling.fitting import Stack

LstmState = tuple[Tensor, Tensor]


class AutoShardNetwork(nn.Module):
    """Cost model and policy, which share the encoder.

    Args:
        published: whether the policy sees predicted costs in ms, as in the paper, instead of relative to an even share.

    Attributes:
        feature_mean: `(21,)` mean of the training tasks' table features.
        feature_scale: `(21,)` one over their standard deviation; 0 for a feature that never differs.
        cost_scale: `(1,)` the unit of predicted costs, in ms.
    """

    feature_mean: Tensor
    feature_scale: Tensor
    cost_scale: Tensor

    def __init__(self, published: bool = False) -> None:
        super().__init__()
        self._published = published
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
        """`(t, e, 64)` states while units with these encodings are placed in order, and the LSTM's final state."""
        inputs = torch.cat([units_teh, torch.relu(self.share(share_te[..., None]))], dim=-1)
        states, after = self.lstm(inputs, before)
        return states, after

    @torch.no_grad()
    def even_share(self, total_eh: Tensor, devices_e: Tensor) -> Tensor:
        """`(e,)` predicted cost of a device that holds an even share of everything. Predicted costs are divided by it.

        Args:
            total_eh: `(e, 32)` sum of all encodings of a task.
            devices_e: `(e,)` number of devices.
        """
        even_e = self.relative_cost(total_eh / devices_e[:, None]).clamp(min=LEAST_SHARE)
        return torch.ones_like(even_e) if self._published else even_e

    @torch.no_grad()
    def device_facts(self, sums_edh: Tensor, occupied_ed: Tensor, memory_ed: Tensor, even_e: Tensor) -> Tensor:
        """`(..., e, d, 2)` predicted cost of each device over the even share (0 if empty), and the share of its memory that is taken."""
        cost_ed = self.relative_cost(sums_edh) / even_e[:, None]
        return torch.stack([torch.where(occupied_ed, cost_ed, 0.0), memory_ed], dim=-1)

    def logits(self, state_eh: Tensor, sums_edh: Tensor, facts_ed2: Tensor, mask_ed: Tensor) -> Tensor:
        """`(..., e, d)` logits of the devices: minus infinity where `mask_ed` is false, unless it is false for all devices."""
        device = torch.cat([sums_edh, torch.relu(self.device(facts_ed2))], dim=-1)
        state = state_eh[..., None, :].expand_as(device)
        return masked(self.policy(torch.cat([state, device, state * device], dim=-1))[..., 0], mask_ed)


def new_network(seed: int, published: bool = False) -> AutoShardNetwork:
    """A network with random weights; torch's global generator keeps its state."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return AutoShardNetwork(published)


class EncodedTasks(NamedTuple):
    """Tasks as the networks see them.

    Attributes:
        units_euh: sums of the encodings of each unit's blocks.
        fixed_edh: sums of the encodings of the settled shards on each device.
        occupied_ed: whether a device holds a settled shard.
        even_e: predicted cost of an even share of everything.
    """

    units_euh: Tensor
    fixed_edh: Tensor
    occupied_ed: Tensor
    even_e: Tensor

    @classmethod
    def of(cls, network: AutoShardNetwork, batch: PlacementBatch) -> EncodedTasks:
        """Encode tasks."""
        units_euh = batch.by_unit(network.encode(batch.features_ebf))
        fixed_edh = batch.by_device(network.encode(batch.fixed_ecf))
        total_eh = units_euh.sum(dim=1) + fixed_edh.sum(dim=1)
        even_e = network.even_share(total_eh, batch.device_ed.sum(dim=1))
        return cls(units_euh, fixed_edh, batch.fixed_ecd.any(dim=1), even_e)


@dataclass(frozen=True, eq=False)
class Trajectory:
    """The actions of e episodes, with the actor's inputs that do not depend on its networks.

    Attributes:
        batch: the tasks.
        order_eu: the order in which the units were placed.
        action_te: the chosen devices.
        mask_ted: devices to choose from; none in the padding, or if no device may take the unit.
        memory_ted: share of each device's memory that was taken.
        log_prob_te: log of the actor's probability of the chosen device.
        assignment_eu: device of each unit; `UNPLACED` if no device had room.
        excess_e: relative excess, as in `Environment`; 0 unless a unit found no device.
    """

    batch: PlacementBatch
    order_eu: Tensor
    action_te: Tensor
    mask_ted: Tensor
    memory_ted: Tensor
    log_prob_te: Tensor
    assignment_eu: Tensor
    excess_e: Tensor

    @property
    def placed_te(self) -> Tensor:
        """Whether there was a device to choose; false in the padding too."""
        return self.mask_ted.any(dim=2)

    @property
    def active_te(self) -> Tensor:
        """Whether the step belongs to the task; false in the padding."""
        return torch.arange(len(self.mask_ted))[:, None] < self.batch.unit_count_e

    def part(self, episodes: Tensor) -> Trajectory:
        """The trajectory of the given episodes only."""
        own = {
            name: value[:, episodes] if name.rsplit("_", 1)[1].startswith("t") else value[episodes]  # steps come first
            for name, value in vars(self).items()
            if name != "batch"
        }
        return Trajectory(self.batch.rows(episodes), **own)


def placements(batch: PlacementBatch, assignment_eu: Tensor, excess_e: Tensor) -> tuple[list[int], list[Placed]]:
    """Numbers of the episodes in which every unit found a device, and their placements."""
    whole = torch.nonzero(excess_e == 0)[:, 0].tolist()
    return whole, [(batch.tasks[index], assignment_eu[index, : len(batch.tasks[index])].numpy()) for index in whole]


@torch.no_grad()
def costliest_first(network: AutoShardNetwork, batch: PlacementBatch, encoded: EncodedTasks) -> Tensor:
    """`(e, u)` units by the predicted cost of the unit alone, largest first; the padding comes last."""
    cost_eu = network.relative_cost(encoded.units_euh)
    padding_eu = torch.arange(batch.units) >= batch.unit_count_e[:, None]
    return torch.argsort(-cost_eu.masked_fill(padding_eu, float("-inf")), dim=1, stable=True)


@torch.no_grad()
def roll_out(network: AutoShardNetwork, batch: PlacementBatch, rng: np.random.Generator) -> Trajectory:
    """Place all units of all tasks, each on a device drawn with the policy's probabilities."""
    encoded = EncodedTasks.of(network, batch)
    environment = Environment(batch, costliest_first(network, batch, encoded))
    sums_edh, occupied_ed = encoded.fixed_edh.clone(), encoded.occupied_ed.clone()
    rows = torch.arange(batch.episodes)
    state: LstmState | None = None
    steps: list[tuple[Tensor, Tensor, Tensor, Tensor]] = []
    while not environment.done:
        mask_ed = environment.mask()
        units_eh = encoded.units_euh[rows, environment.current_e]
        memory_ed = environment.used_ed / batch.memory_ed.clamp(min=1)
        share_e = (environment.step_index / batch.unit_count_e).to(units_eh.dtype)
        states_1eh, state = network.states(units_eh[None], share_e[None], state)
        facts_ed2 = network.device_facts(sums_edh, occupied_ed, memory_ed, encoded.even_e)
        logits_ed = network.logits(states_1eh[0], sums_edh, facts_ed2, mask_ed)
        device_e = (logits_ed + _gumbel(logits_ed, rng)).argmax(dim=1)
        log_prob_e = logits_ed.log_softmax(dim=1)[rows, device_e]
        placed_e = environment.step(device_e, mask_ed)
        sums_edh[rows, device_e] += units_eh * placed_e[:, None]
        occupied_ed[rows, device_e] |= placed_e
        steps.append((device_e, mask_ed, memory_ed, log_prob_e))
    action_te, mask_ted, memory_ted, log_prob_te = map(torch.stack, zip(*steps, strict=True))
    return Trajectory(
        batch,
        environment.order_eu,
        action_te,
        mask_ted,
        memory_ted,
        log_prob_te,
        environment.assignment_eu,
        environment.excess_e,
    )


def go_through(network: AutoShardNetwork, played: Trajectory) -> tuple[Tensor, Tensor]:
    """The learner's `(t, e, d)` logits of the devices and `(t, e)` values at every step of a trajectory."""
    batch = played.batch
    encoded = EncodedTasks.of(network, batch)
    index_euh = played.order_eu[..., None].expand_as(encoded.units_euh)
    units_teh = encoded.units_euh.gather(1, index_euh).transpose(0, 1)
    steps = torch.arange(batch.units, dtype=units_teh.dtype)
    states_teh, _ = network.states(units_teh, steps[:, None] / batch.unit_count_e)
    chosen_ted = torch.nn.functional.one_hot(played.action_te, batch.devices) * played.placed_te[..., None]
    added_tedh = chosen_ted[..., None] * units_teh[:, :, None]
    sums_tedh = encoded.fixed_edh + added_tedh.cumsum(dim=0) - added_tedh
    occupied_ted = encoded.occupied_ed | (chosen_ted.cumsum(dim=0) - chosen_ted > 0)
    facts_ted2 = network.device_facts(sums_tedh, occupied_ted, played.memory_ted, encoded.even_e)
    logits_ted = network.logits(states_teh, sums_tedh, facts_ted2, played.mask_ted)
    return logits_ted, network.value(states_teh)[..., 0]


def scattered(batch: PlacementBatch, rng: np.random.Generator) -> Environment:
    """Play random placements whose devices differ widely in size, as each task draws its own preferences for devices.

    They show the cost model sets of all sizes, from one table to all tables; a good policy makes only sets of about equal cost.
    """
    keys_eu = rng.random((batch.episodes, batch.units))
    keys_eu[np.arange(batch.units) >= batch.unit_count_e.numpy()[:, None]] = 2.0  # the padding comes last
    environment = Environment(batch, torch.from_numpy(keys_eu.argsort(axis=1)))
    sharpness_e1 = rng.choice([0.1, 0.5, 2.0], size=(batch.episodes, 1))
    log_weight_ed = torch.from_numpy(np.log(rng.gamma(sharpness_e1, size=(batch.episodes, batch.devices)) + 1e-12))
    while not environment.done:
        mask_ed = environment.mask()
        key_ed = (log_weight_ed + _gumbel(log_weight_ed, rng)).masked_fill(~mask_ed, float("-inf"))
        environment.step(key_ed.argmax(dim=1), mask_ed)
    return environment


def _gumbel(like: Tensor, rng: np.random.Generator) -> Tensor:
    """Gumbel noise: the largest sum of logit and noise is a draw from the softmax."""
    return torch.from_numpy(rng.gumbel(size=tuple(like.shape))).to(like.dtype)
