"""One round of AutoShard's training: it plays episodes, prices them and learns from them.

The paper's actors are processes that play with a slightly older policy of the learner; V-trace corrects for its age. Here one batch of
episodes in the same process replaces the actors. Each round begins by playing enough episodes for `lag` learner steps, so the learner
is up to `lag` - 1 steps ahead of the policy that played them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor
from torch.optim import Adam

from shardwright.learned.arrays import Floats, PlacementArrays, features_of
from shardwright.learned.autoshard.losses import PolicyLoss, cost_loss, policy_loss
from shardwright.learned.autoshard.network import (
    AutoShardNetwork,
    Trajectory,
    new_network,
    placements,
    roll_out,
    scattered,
)
from shardwright.learned.autoshard.replay import ReplayBuffer, with_variations
from shardwright.learned.environment import PlacementBatch
from shardwright.learned.options import AutoShardOptions
from shardwright.learned.rounds import Trainer, nothing_placed, with_units
from shardwright.learned.worlds import Placed, World, compute_ms
from shardwright.workload.training_tasks import TrainingTasks

_LEAST_SPREAD = 1e-2  # least divisor of a feature, so that one that hardly varies in training is not magnified
_SAME = 1e-6


class AutoShardTrainer(Trainer):
    """The state of AutoShard's training between two rounds.

    Args:
        tasks: the training tasks; tasks with nothing to place teach nothing and are left out.
        world: prices placements; only kernel times are used.
        options: how to learn.

    Raises:
        InvalidInput: no task has anything to place.
    """

    counter: ClassVar[str] = "round"
    network: AutoShardNetwork
    buffer: ReplayBuffer

    def __init__(self, tasks: Sequence[PlacementArrays], world: World, options: AutoShardOptions) -> None:
        super().__init__(world, np.random.default_rng(options.seed))
        self._given = with_units(tasks, options.strategy)
        self._options = options
        self._tasks = with_variations(self._given, options.variations, np.random.default_rng([options.seed, 1]))
        both = options.method == "paper"
        self.network = network = new_network(options.seed, published=both)
        self.buffer = ReplayBuffer(self._tasks, options.buffer)
        own = {id(parameter) for parameter in network.cost.parameters()}
        policy = Adam([p for p in network.parameters() if both or id(p) not in own])
        cost = policy if both else Adam([*network.encoder.parameters(), *network.cost.parameters()])
        self.optimizers = {"policy_optimizer": policy, "cost_optimizer": cost}
        _set_statistics(network, self._tasks)

    def digest(self, known: TrainingTasks) -> str:
        """A digest of the arrays of all tasks that have something to place."""
        digest = hashlib.sha256()
        for task in self._given:
            for part in (task.features, task.unit_of, task.bytes, task.allowed, task.rivals, task.memory, task.used):
                digest.update(str(part.shape).encode() + part.tobytes())
            digest.update(task.fixed_features.tobytes() + task.fixed_on.tobytes())
        return digest.hexdigest()

    def make_round(self) -> dict[str, float]:
        """Play the episodes of `lag` learner steps and the scattered placements, price all in one call of the world, and learn."""
        units = sum(len(task) for task in self._tasks) / len(self._tasks)
        episodes = max(1, round(self._options.unroll * self._options.batch / units)) * self._options.lag
        played = roll_out(self.network, self._draw(episodes), self._rng)
        whole, placed = placements(played.batch, played.assignment_eu, played.excess_e)
        own = len(whole)
        if self._options.scattered:
            others = scattered(self._draw(self._options.scattered), self._rng)
            placed = [*placed, *placements(others.batch, others.assignment_eu, others.excess_e)[1]]
        costs = [compute_ms(phases) for phases in self._priced(placed)]
        if not costs:
            raise nothing_placed()
        if not len(self.buffer) and self._options.method != "paper":
            self.network.cost_scale.fill_(max(_SAME, float(np.mean(np.concatenate(costs)))))
        cost_error = self._cost_error(placed[:own], costs[:own])
        for (task, assignment), cost in zip(placed, costs, strict=True):
            self.buffer.add(task, assignment, cost)
        reward_e = rewards(played.excess_e, whole, costs)
        losses = self._learn(played, reward_e)
        return {
            "cost_error": cost_error,
            "reward": float(reward_e.mean()),
            "entropy": float(np.mean([loss.entropy for loss in losses])),
            "value_error": float(np.mean([loss.value_error for loss in losses])),
            "latency_ms": float(np.mean([float(cost.max()) for cost in costs[:own]])) if own else float("nan"),
        }

    def _draw(self, episodes: int) -> PlacementBatch:
        return PlacementBatch.of([self._tasks[index] for index in self._rng.integers(len(self._tasks), size=episodes)])

    def _learn(self, played: Trajectory, reward_e: Tensor) -> list[PolicyLoss]:
        """Make `lag` learner steps, each on its own part of the episodes."""
        options, losses = self._options, []
        parts = torch.arange(played.batch.episodes).tensor_split(options.lag)
        for step, part in enumerate(filter(len, parts), start=self.round * options.lag):
            for name in self.optimizers:
                self._set_rate(name, options.learning_rate * (1 - step / (options.rounds * options.lag)))
            learned = policy_loss(self.network, played.part(part), reward_e[part], options)
            self._descend("policy_optimizer", learned.loss, options.gradient_norm)
            for _ in range(options.cost_updates if len(self.buffer) else 0):
                shards = self.buffer.draw(options.buffer_batch, self._rng)
                loss = cost_loss(self.network, shards, options.method)
                self._descend("cost_optimizer", loss, options.gradient_norm)
            losses.append(learned)
        return losses

    @torch.no_grad()
    def _cost_error(self, placed: Sequence[Placed], costs: Sequence[Floats]) -> float:
        """Mean relative error of predicted costs on the devices of the episodes, before the buffer holds them."""
        if not placed:
            return float("nan")
        seen = ReplayBuffer([task for task, _ in placed], sum(len(cost) for cost in costs))
        for (task, assignment), cost in zip(placed, costs, strict=True):
            seen.add(task, assignment, cost)
        shards = seen.all()
        true_s = shards.cost_s / self.network.cost_scale
        return float(((shards.predicted(self.network) - true_s).abs() / true_s).mean())


def rewards(excess_e: Tensor, whole: Sequence[int], costs: Sequence[Floats]) -> Tensor:
    """`(e,)` reward of each episode: the degree of balance (min over max of the devices' costs), or minus the excess if a unit was left.

    Args:
        excess_e: relative excess of each episode, as in `Environment`.
        whole: numbers of the episodes in which every unit found a device.
        costs: `(d,)` ms of the devices of these episodes; costs of further placements may follow and are ignored.
    """
    reward_e = -excess_e
    for episode, cost in zip(whole, costs, strict=False):
        reward_e[episode] = float(cost.min() / cost.max()) if cost.max() > 0 else 1.0
    return reward_e


def _set_statistics(network: AutoShardNetwork, tasks: Sequence[PlacementArrays]) -> None:
    """Set the network's feature statistics from the training tasks. A feature that never differs gets scale 0, as it teaches nothing."""
    features = features_of(tasks)
    spread = features.std(axis=0)
    scale = np.where(spread > _SAME, 1 / np.maximum(spread, _LEAST_SPREAD), 0.0)
    network.feature_mean.copy_(torch.from_numpy(features.mean(axis=0)))
    network.feature_scale.copy_(torch.from_numpy(scale))
