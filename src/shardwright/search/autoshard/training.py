"""The state of an AutoShard training, and one round of it: episodes are played, priced, and learned from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Adam

from shardwright.errors import InfeasibleTask, ShardwrightError
from shardwright.search.autoshard.losses import PolicyLoss, cost_loss, policy_loss
from shardwright.search.autoshard.network import (
    AutoShardNetwork,
    Trajectory,
    exported,
    in_batches,
    new_network,
    placements,
    roll_out,
    scattered,
)
from shardwright.search.autoshard.replay import ReplayBuffer, with_variations
from shardwright.search.autoshard.strategy import AutoShardOptions
from shardwright.search.learned.arrays import Floats, PlacementArrays
from shardwright.search.learned.checkpoints import (
    check_count,
    check_same_training,
    load_checkpoint,
    optimizer_tensors,
    restore_network,
    restore_optimizer,
    restoring,
    save_checkpoint,
)
from shardwright.search.learned.environment import PlacementBatch
from shardwright.search.learned.policy_files import SavedPolicy
from shardwright.search.learned.worlds import Placed, World, compute_ms


class Scattered(NamedTuple):
    """Random placements; the names are those of `Environment`."""

    assignment_eu: Tensor
    excess_e: Tensor


_LEAST_SPREAD = 1e-2  # features that hardly differ in training are not blown up
_SAME = 1e-6


class Played(NamedTuple):
    """A round's episodes with what they cost.

    Attributes:
        trajectory: the episodes.
        whole: numbers of those in which every unit found a device.
        placed: their placements, and after them the scattered ones.
        costs: `(d,)` forward + backward ms of each placement in `placed`.
    """

    trajectory: Trajectory
    whole: list[int]
    placed: list[Placed]
    costs: list[Floats]

    def rewards(self) -> Tensor:
        """`(e,)` degree of balance, min over max of the devices' costs; minus the relative excess where a unit found no device."""
        reward_e = -self.trajectory.excess_e
        for episode, cost in zip(self.whole, self.costs, strict=False):
            reward_e[episode] = float(cost.min() / cost.max()) if cost.max() > 0 else 1.0
        return reward_e


class Training:
    """A training between two rounds.

    Args:
        tasks: the training tasks, each with something to place.
        world: says what placements cost.
        options: how to learn.

    Attributes:
        options: how to learn.
        network: the learner's.
        round: rounds made.
    """

    def __init__(self, tasks: Sequence[PlacementArrays], world: World, options: AutoShardOptions) -> None:
        self.options = options
        self.network = new_network(options.seed)
        self.round = 0
        self._tasks = with_variations(tasks, options.variations, np.random.default_rng([options.seed, 1]))
        self._world = world
        self._rng = np.random.default_rng(options.seed)
        self._buffer = ReplayBuffer(self._tasks, options.buffer)
        cost_parts = [*self.network.encoder.parameters(), *self.network.cost.parameters()]
        own = {id(parameter) for parameter in self.network.cost.parameters()}
        self._cost_optimizer = Adam(cost_parts)
        self._policy_optimizer = Adam([p for p in self.network.parameters() if id(p) not in own])
        self._learner_steps = 0
        _set_statistics(self.network, self._tasks)

    def make_round(self) -> dict[str, float]:
        """Play episodes, then learn from them.

        Returns:
            The round's figures.

        Raises:
            ShardwrightError: the world failed, or a cost is not a number. The training is then as it was before the round.
            InfeasibleTask: no placement kept memory and constraints.
        """
        before = self._rng.bit_generator.state
        try:
            played = self._play()
        except ShardwrightError:
            self._rng.bit_generator.state = before
            raise
        if not played.costs:
            raise InfeasibleTask(
                "no placement of the training tasks kept their memory and constraints, so there is nothing to learn from: "
                "give their devices more memory, or drop constraints"
            )
        if not len(self._buffer):
            self.network.cost_scale.fill_(max(_SAME, float(np.mean(np.concatenate(played.costs)))))
        figures = {"cost_error": self._cost_error(played)}
        for (task, assignment), cost in zip(played.placed, played.costs, strict=True):
            self._buffer.add(task, assignment, cost)
        reward_e = played.rewards()
        losses = self._learn(played.trajectory, reward_e)
        self.round += 1
        slowest = [float(cost.max()) for cost in played.costs[: len(played.whole)]]
        return figures | {
            "reward": float(reward_e.mean()),
            "entropy": float(np.mean([loss.entropy for loss in losses])),
            "value_error": float(np.mean([loss.value_error for loss in losses])),
            "latency_ms": float(np.mean(slowest)) if slowest else float("nan"),
        }

    def policy(self, metadata: dict[str, str]) -> SavedPolicy:
        """What was learned so far."""
        return exported(self.network, metadata)

    def save(self, path: Path, identity: Mapping[str, Any]) -> None:
        """Write a checkpoint; `identity` says which training it is of."""
        tensors = {f"network.{name}": value for name, value in self.network.state_dict().items()}
        tensors |= optimizer_tensors(self._policy_optimizer, "policy_optimizer.")
        tensors |= optimizer_tensors(self._cost_optimizer, "cost_optimizer.")
        tensors |= {"blocks": torch.from_numpy(self._buffer.blocks), "costs": torch.from_numpy(self._buffer.costs)}
        counts = {"round": self.round, "learner_steps": self._learner_steps, "added": self._buffer.added}
        save_checkpoint(path, tensors, {**identity, **counts, "rng": self._rng.bit_generator.state})

    def go_on_from(self, path: Path, identity: Mapping[str, Any]) -> None:
        """Take up a checkpoint; nothing happens if there is no such file.

        Raises:
            InvalidInput: it cannot be read, or is of another training.
        """
        found = load_checkpoint(path)
        if found is None:
            return
        tensors, state = found
        check_same_training(path, state, identity)
        with restoring(path):
            self._restore(tensors, state)

    def _restore(self, tensors: Mapping[str, Tensor], state: Mapping[str, Any]) -> None:
        restore_network(self.network, tensors)
        restore_optimizer(self._policy_optimizer, tensors, "policy_optimizer.")
        restore_optimizer(self._cost_optimizer, tensors, "cost_optimizer.")
        self._buffer.restore(tensors["blocks"], tensors["costs"], check_count("added", state["added"]))
        self.round, self._learner_steps = (check_count(name, state[name]) for name in ("round", "learner_steps"))
        self._rng.bit_generator.state = state["rng"]

    def _play(self) -> Played:
        """Episodes for `lag` learner steps and the scattered placements, with their costs from one call of the world."""
        units = sum(len(task) for task in self._tasks) / len(self._tasks)
        episodes = max(1, round(self.options.unroll * self.options.batch / units)) * self.options.lag
        trajectory, random, done = self._episodes(episodes)
        whole, placed = placements(trajectory.batch, trajectory.assignment_eu, trajectory.excess_e)
        _, others = placements(random, done.assignment_eu, done.excess_e)
        costs = [compute_ms(phases) for phases in self._world.costs([*placed, *others])]
        if not all(np.isfinite(cost).all() for cost in costs):
            raise ShardwrightError(
                f"{self._world.name} said that a placement takes NaN or infinite ms, so its reward is no number; costs must be finite: "
                "train the cost model again, or measure again"
            )
        return Played(trajectory, whole, [*placed, *others], costs)

    def _episodes(self, count: int) -> tuple[Trajectory, PlacementBatch, Scattered]:
        """So many episodes by the policy, and the scattered placements with their tasks."""
        trajectory = roll_out(self.network, self._draw(count), self._rng)
        done = scattered(self._draw(self.options.scattered), self._rng)
        return trajectory, done.batch, Scattered(done.assignment_eu, done.excess_e)

    def _draw(self, episodes: int) -> PlacementBatch:
        return PlacementBatch.of([self._tasks[index] for index in self._rng.integers(len(self._tasks), size=episodes)])

    def _learn(self, trajectory: Trajectory, reward_e: Tensor) -> list[PolicyLoss]:
        """`lag` learner steps, each on its part of the episodes."""
        losses = []
        for part in in_batches(trajectory.batch.episodes, self.options.lag):
            for optimizer in (self._policy_optimizer, self._cost_optimizer):
                optimizer.param_groups[0]["lr"] = self._learning_rate()
            found = policy_loss(self.network, trajectory.part(part), reward_e[part], self.options)
            self._step(self._policy_optimizer, found.loss)
            for _ in range(self.options.cost_updates if len(self._buffer) else 0):
                shards = self._buffer.draw(self.options.buffer_batch, self._rng)
                self._step(self._cost_optimizer, cost_loss(self.network, shards))
            self._learner_steps += 1
            losses.append(found)
        return losses

    def _step(self, optimizer: Adam, loss: Tensor) -> None:
        self.network.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(self.network.parameters(), self.options.gradient_norm)
        optimizer.step()

    def _learning_rate(self) -> float:
        left = 1 - self._learner_steps / (self.options.rounds * self.options.lag)
        return self.options.learning_rate * left

    @torch.no_grad()
    def _cost_error(self, played: Played) -> float:
        """Mean relative error on the devices of the episodes, before any of them is in the buffer."""
        if not played.whole:
            return float("nan")
        seen = ReplayBuffer([task for task, _ in played.placed], sum(len(cost) for cost in played.costs))
        for (task, assignment), cost in zip(played.placed[: len(played.whole)], played.costs, strict=False):
            seen.add(task, assignment, cost)
        shards = seen.all()
        predicted_s = self.network.relative_cost(shards.sums(self.network.encode(shards.features_nf)))
        true_s = shards.cost_s / self.network.cost_scale
        return float(((predicted_s - true_s).abs() / true_s).mean())


def _set_statistics(network: AutoShardNetwork, tasks: Sequence[PlacementArrays]) -> None:
    """Standardise by the training tasks; a feature that is the same everywhere is ignored, as nothing can be learned of it."""
    features = np.concatenate([part for task in tasks for part in (task.features, task.fixed_features)])
    spread = features.std(axis=0)
    scale = np.where(spread > _SAME, 1 / np.maximum(spread, _LEAST_SPREAD), 0.0)
    network.feature_mean.copy_(torch.from_numpy(features.mean(axis=0)))
    network.feature_scale.copy_(torch.from_numpy(scale))
