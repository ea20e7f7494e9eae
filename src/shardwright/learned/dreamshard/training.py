"""One iteration of DreamShard's training: price placements, train the cost network, then improve the policy on its estimates alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from shardwright.errors import InfeasibleTask, ShardwrightError
from shardwright.learned.arrays import PlacementArrays, features_of
from shardwright.learned.dreamshard.buffer import (
    CostErrors,
    PlacementBuffer,
    mean_errors,
    set_scale,
    targets,
    variants_of,
)
from shardwright.learned.dreamshard.mdp import Episodes, encode, estimates, log_probabilities, play, sampler
from shardwright.learned.dreamshard.network import DreamShardNetwork
from shardwright.learned.environment import PlacementBatch
from shardwright.learned.options import DreamShardOptions
from shardwright.learned.rounds import Trainer, discounted, with_units
from shardwright.learned.worlds import World

_TRIES = 20  # rounds of sampling until enough placements keep memory and constraints
_BETAS = (0.9, 0.99)  # of the cost network's Adam: the second moment must keep up within a few thousand updates
_FAILED = 1.0  # penalty for an episode with an unplaced unit, in mean overall costs; the excess comes on top, in the same unit


class DreamShardTrainer(Trainer):
    """The state of DreamShard's training between two iterations.

    Args:
        tasks: the training tasks.
        world: prices placements.
        options: how to learn.

    Raises:
        InvalidInput: no task has anything to place.
    """

    counter: ClassVar[str] = "iteration"
    network: DreamShardNetwork
    buffer: PlacementBuffer

    def __init__(self, tasks: Sequence[PlacementArrays], world: World, options: DreamShardOptions) -> None:
        # Raises an error if no task has units. One without stays, so that equal seeds draw the same tasks as ever.
        with_units(tasks, options.strategy)
        self._options, self._given = options, len(tasks)
        self._tasks = tasks = [*tasks, *variants_of([known.task for known in tasks], options.variants, options.seed)]
        self._torch = torch.Generator().manual_seed(options.seed)
        super().__init__(world, np.random.default_rng(options.seed), self._torch)
        self._batch = PlacementBatch.of(tasks)
        self.network = DreamShardNetwork(*_statistics(tasks), self._torch, options.objective, options.method)
        self.buffer = PlacementBuffer(self._batch)
        betas = (0.9, 0.999) if options.method == "paper" else _BETAS
        self.optimizers = {
            "cost_adam": torch.optim.Adam(self.network.cost.parameters(), options.cost_rate, betas),
            "policy_adam": torch.optim.Adam(self.network.policy.parameters(), options.policy_rate),
        }
        self._errors = CostErrors(self.network, self._batch, self.buffer)

    def make_round(self) -> dict[str, float]:
        """Make one iteration with the learning rates of this round, which fall linearly to 0."""
        left = 1 - self.round / self._options.iterations
        self._set_rate("cost_adam", self._options.cost_rate * left)
        self._set_rate("policy_adam", self._options.policy_rate * left)
        figures = self._collect()
        self._learn_costs()
        return figures | self._learn_policy()

    def _collect(self) -> dict[str, float]:
        """Price placements by the policy and random ones; return the cost network's errors on the policy's before it learns from them."""
        first, last = len(self.buffer), len(self.buffer) + self._options.collected
        tasks, assignments = self._sampled(self._options.collected, self._given)
        if self._options.explored:
            more, further = self._sampled(self._options.explored, len(self._tasks), random=True)
            tasks, assignments = torch.cat([tasks, more]), torch.cat([assignments, further])
        placed = [
            (self._tasks[task], assignments[row, : len(self._tasks[task])].numpy())
            for row, task in enumerate(tasks.tolist())
        ]
        self.buffer.add(tasks, assignments, self._priced(placed))
        if first == 0 and self._options.method != "paper":
            set_scale(self.network.cost, self._batch, self.buffer, self._options.objective)
            self.network.policy.start_from(self.network.cost.scale)
        with torch.no_grad():
            errors = mean_errors(self._errors.of(torch.arange(first, last)))
        latency = float(targets(self.buffer.phases_mdp[first:last], self._options.objective)[1].mean())
        named = {f"cost_error_{name}": error for name, error in errors.items()}
        return {"latency_ms": latency, "cost_error": float(np.mean(list(errors.values()))), **named}

    def _sampled(self, count: int, tasks: int, *, random: bool = False) -> tuple[Tensor, Tensor]:
        """Draw `count` of the first `tasks` tasks, and placements (by the policy or at random) that keep memory and constraints."""
        drawn, assignments = [], []
        for _ in range(_TRIES):
            index = torch.randint(tasks, (count,), generator=self._torch)
            with torch.no_grad():
                encoded = encode(self.network, self._batch.rows(index))
            episodes = play(self.network, encoded, sampler(self._torch, random=random))
            drawn.append(index[episodes.excess_e == 0])
            assignments.append(episodes.assignment_eu[episodes.excess_e == 0])
            if sum(len(part) for part in drawn) >= count:
                return torch.cat(drawn)[:count], torch.cat(assignments)[:count]
        raise InfeasibleTask(
            f"of {_TRIES * count} sampled placements of the training tasks only {sum(map(len, drawn))} kept memory and constraints, but "
            f"{count} are needed; train on tasks with more memory or fewer constraints"
        )

    def _learn_costs(self) -> None:
        """Train the cost network on placements drawn from the buffer."""
        for _ in range(self._options.cost_updates):
            index = torch.randint(len(self.buffer), (self._options.cost_batch,), generator=self._torch)
            errors = self._errors.of(index, relative=self._options.method != "paper")
            self._descend("cost_adam", torch.stack([(error**2).mean() for error in errors]).sum())

    def _learn_policy(self) -> dict[str, float]:
        """Train the policy by REINFORCE on the estimated MDP."""
        rewards, entropies = [], []
        for _ in range(self._options.policy_updates):
            index = torch.randint(self._given, (self._options.policy_tasks,), generator=self._torch)
            with torch.no_grad():
                encoded = encode(self.network, self._batch.rows(index))
                episodes = play(self.network, encoded.repeat(self._options.episodes), sampler(self._torch))
                estimate_te = estimates(self.network, episodes)
            if not bool(estimate_te.isfinite().all()):
                raise ShardwrightError(
                    "the reward became NaN or infinite: the training has diverged; lower cost_rate or policy_rate"
                )
            log_te, entropy_te = log_probabilities(self.network, episodes)
            advantage_te = self._advantages(episodes, estimate_te)
            steps = episodes.mask_ted.any(dim=2).sum()
            loss = -(log_te * advantage_te + self._options.entropy_weight * entropy_te).sum() / steps
            self._descend("policy_adam", loss)
            rewards.append(float(-estimate_te[-1].mean()))
            entropies.append(float(entropy_te.detach().sum() / steps))
        return {"reward": float(np.mean(rewards)), "entropy": float(np.mean(entropies))}

    def _advantages(self, episodes: Episodes, estimate_te: Tensor) -> Tensor:
        """`(t, e)` how much better the outcome of a step was than the outcome of the same step in the task's other episodes.

        In the paper, each step gets the reward of the whole episode.
        """
        gain_te = estimate_te[:-1] - estimate_te[1:]
        if self._options.method == "paper":
            gain_te = torch.cat([torch.zeros_like(gain_te[1:]), -estimate_te[-1:]])
        gain_te[-1] -= _FAILED * self.network.cost.scale[-1] * (episodes.excess_e + (episodes.excess_e > 0))
        gain_tne = discounted(gain_te, self._options.trace_decay).unflatten(1, (-1, self._options.episodes))
        centred_tne = gain_tne - gain_tne.mean(dim=2, keepdim=True)
        advantage_tne: Tensor = centred_tne / (centred_tne.std(dim=(0, 2), keepdim=True) + 1e-8)
        return advantage_tne.flatten(1)


def _statistics(tasks: Sequence[PlacementArrays]) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation of the features of all blocks; a feature that never differs gets the deviation 1."""
    features = features_of(tasks)
    std = features.std(axis=0)
    std = np.where(std > 1e-3, std, 1.0)
    return torch.tensor(features.mean(axis=0), dtype=torch.float32), torch.tensor(std, dtype=torch.float32)
