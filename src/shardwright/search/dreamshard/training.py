"""The state of a DreamShard training and its three phases: collecting costs, teaching the cost network, improving the policy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from shardwright.errors import InfeasibleTask, ShardwrightError
from shardwright.search.dreamshard.buffer import Buffer, CostErrors, mean_errors, set_scale, targets, variants_of
from shardwright.search.dreamshard.mdp import Episodes, encode, estimates, log_probabilities, play
from shardwright.search.dreamshard.network import DreamShardNetwork
from shardwright.search.dreamshard.policy import DreamShardOptions
from shardwright.search.learned.arrays import PlacementArrays
from shardwright.search.learned.checkpoints import (
    check_count,
    optimizer_tensors,
    restore_network,
    restore_optimizer,
    restore_rng,
    rng_state,
)
from shardwright.search.learned.environment import PlacementBatch
from shardwright.search.learned.worlds import World

_TRIES = 20  # rounds of sampling until enough placements keep memory and constraints
_BETAS = (0.9, 0.99)  # of Adam for the cost network: the second moment follows a training of a few thousand updates
_FAILED = 1.0  # mean costs that an episode pays in which a unit found no device, beside the excess


class Training:
    """A training under way.

    Args:
        tasks: the training tasks.
        world: prices placements.
        options: how to learn.
    """

    def __init__(
        self,
        tasks: Sequence[PlacementArrays],
        world: World,
        options: DreamShardOptions,
    ) -> None:
        self.options = options
        self._given, self._world = len(tasks), world
        self._tasks = tasks = [*tasks, *variants_of([known.task for known in tasks], options.variants, options.seed)]
        self._generator = torch.Generator().manual_seed(options.seed)
        self._rng = np.random.default_rng(options.seed)
        self._batch = PlacementBatch.of(tasks)
        self.network = DreamShardNetwork(*_statistics(tasks), self._generator, options.objective)
        self._buffer = Buffer(self._batch.units, self._batch.devices)
        self._cost_adam = torch.optim.Adam(self.network.cost.parameters(), options.cost_rate, _BETAS)
        self._policy_adam = torch.optim.Adam(self.network.policy.parameters(), options.policy_rate)
        self._errors = CostErrors(self.network, self._batch, self._buffer, options.objective)
        self.iteration = 0

    def iterate(self) -> dict[str, float]:
        """One iteration; returns its figures.

        Raises:
            ShardwrightError: the world returned costs that are not finite, or a reward became NaN.
            InfeasibleTask: the policy finds no placements that keep memory and constraints.
        """
        left = 1 - self.iteration / self.options.iterations
        self._cost_adam.param_groups[0]["lr"] = self.options.cost_rate * left
        self._policy_adam.param_groups[0]["lr"] = self.options.policy_rate * left
        figures = self._collect()
        self._learn_costs()
        figures |= self._learn_policy()
        self.iteration += 1
        return figures

    def tensors(self) -> dict[str, Tensor]:
        """Weights, optimizers and buffer, for a checkpoint."""
        weights = {f"network.{name}": value for name, value in self.network.state_dict().items()}
        adams = optimizer_tensors(self._cost_adam, "cost_adam.") | optimizer_tensors(self._policy_adam, "policy_adam.")
        return weights | adams | self._buffer.tensors()

    def state(self) -> dict[str, Any]:
        """Iteration and generators, for a checkpoint."""
        return {"iteration": self.iteration, "rng": rng_state(self._rng, self._generator)}

    def restore(self, tensors: Mapping[str, Tensor], state: Mapping[str, Any]) -> None:
        """Go on from a checkpoint.

        Raises:
            ValueError, RuntimeError, KeyError, TypeError: it does not fit this training; see `checkpoints.restoring`.
        """
        restore_network(self.network, tensors)
        restore_optimizer(self._cost_adam, tensors, "cost_adam.")
        restore_optimizer(self._policy_adam, tensors, "policy_adam.")
        self._buffer.restore(tensors, len(self._tasks))
        restore_rng(state["rng"], self._rng, self._generator)
        self.iteration = check_count("iteration", state["iteration"])

    def _collect(self) -> dict[str, float]:
        """Price placements by the current policy, and random ones; what the cost network says of the former before it has seen them."""
        first, last = len(self._buffer), len(self._buffer) + self.options.collected
        tasks, assignments = self._sampled(self.options.collected, self._given)
        if self.options.explored:
            more, further = self._sampled(self.options.explored, len(self._tasks), random=True)
            tasks, assignments = torch.cat([tasks, more]), torch.cat([assignments, further])
        self._price(tasks, assignments)
        if first == 0:
            set_scale(self.network.cost, self._batch, self._buffer, self.options.objective)
            self.network.policy.start_from(self.network.cost.scale)
        with torch.no_grad():
            errors = mean_errors(self._errors.of(torch.arange(first, last)))
        latency = float(targets(self._buffer.phases_mdp[first:last], self.options.objective)[1].mean())
        named = {f"cost_error_{name}": error for name, error in errors.items()}
        return {"latency_ms": latency, "cost_error": float(np.mean(list(errors.values()))), **named}

    def _price(self, task_m: Tensor, assignment_mu: Tensor) -> None:
        """Add placements to the buffer, with what they cost in the world."""
        placed = [
            (self._tasks[task], assignment_mu[row, : len(self._tasks[task])].numpy())
            for row, task in enumerate(task_m.tolist())
        ]
        costs = self._world.costs(placed)
        if not all(np.isfinite(found).all() for found in costs):
            raise ShardwrightError(f"world '{self._world.name}' returned costs that are not finite numbers")
        self._buffer.add(task_m, assignment_mu, costs)

    def _sampled(self, count: int, tasks: int, *, random: bool = False) -> tuple[Tensor, Tensor]:
        """Random ones of the first so many tasks, and placements of them, by the policy or at random, that keep memory and constraints."""
        found, assignments = [], []
        for _ in range(_TRIES):
            index = torch.randint(tasks, (count,), generator=self._generator)
            with torch.no_grad():
                encoded = encode(self.network, self._batch.rows(index))
            episodes = play(self.network, encoded, self._generator, random=random)
            found.append(index[episodes.excess_e == 0])
            assignments.append(episodes.assignment_eu[episodes.excess_e == 0])
            if sum(len(part) for part in found) >= count:
                return torch.cat(found)[:count], torch.cat(assignments)[:count]
        raise InfeasibleTask(
            f"of {_TRIES * count} sampled placements of the training tasks fewer than {count} kept memory and constraints; "
            "train on tasks with more memory"
        )

    def _learn_costs(self) -> None:
        """Teach the cost network on placements drawn from the buffer."""
        for _ in range(self.options.cost_updates):
            index = torch.randint(len(self._buffer), (self.options.cost_batch,), generator=self._generator)
            loss = torch.stack([(error**2).mean() for error in self._errors.of(index)]).sum()
            self._cost_adam.zero_grad()
            loss.backward()
            self._cost_adam.step()

    def _learn_policy(self) -> dict[str, float]:
        """REINFORCE on the estimated MDP."""
        rewards, entropies = [], []
        for _ in range(self.options.policy_updates):
            index = torch.randint(self._given, (self.options.policy_tasks,), generator=self._generator)
            with torch.no_grad():
                encoded = encode(self.network, self._batch.rows(index))
                episodes = play(self.network, encoded, self._generator, copies=self.options.episodes)
                estimate_te = estimates(self.network, episodes)
            reward_e = -estimate_te[-1]
            if not bool(estimate_te.isfinite().all()):
                raise ShardwrightError(
                    "the reward became NaN or infinite: the training has diverged; lower cost_rate or policy_rate"
                )
            log_te, entropy_te = log_probabilities(self.network, episodes)
            advantage_te = self._advantages(episodes, estimate_te)
            steps = episodes.mask_ted.any(dim=2).sum()
            loss = -(log_te * advantage_te + self.options.entropy_weight * entropy_te).sum() / steps
            self._policy_adam.zero_grad()
            loss.backward()
            self._policy_adam.step()
            rewards.append(float(reward_e.mean()))
            entropies.append(float(entropy_te.detach().sum() / steps))
        return {"reward": float(np.mean(rewards)), "entropy": float(np.mean(entropies))}

    def _advantages(self, episodes: Episodes, estimate_te: Tensor) -> Tensor:
        """`(t, e)` how much better a step's outcome was than that of the same step in the task's other episodes."""
        gain_te = estimate_te[:-1] - estimate_te[1:]
        gain_te[-1] -= _FAILED * self.network.cost.scale[-1] * (episodes.excess_e + (episodes.excess_e > 0))
        following_e = torch.zeros_like(gain_te[0])
        for step in reversed(range(len(gain_te))):
            following_e = gain_te[step] + self.options.trace_decay * following_e
            gain_te[step] = following_e
        gain_tne = gain_te.unflatten(1, (-1, self.options.episodes))
        centred_tne = gain_tne - gain_tne.mean(dim=2, keepdim=True)
        advantage_tne: Tensor = centred_tne / (centred_tne.std(dim=(0, 2), keepdim=True) + 1e-8)
        return advantage_tne.flatten(1)


def _statistics(tasks: Sequence[PlacementArrays]) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation of the features of all blocks; a feature that never differs keeps its own unit."""
    features = np.concatenate([part for task in tasks for part in (task.features, task.fixed_features)])
    std = features.std(axis=0)
    std = np.where(std > 1e-3, std, 1.0)
    return torch.tensor(features.mean(axis=0), dtype=torch.float32), torch.tensor(std, dtype=torch.float32)
