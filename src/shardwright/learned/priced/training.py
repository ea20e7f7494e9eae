"""Training of the policy on placements of priced tasks, several copies of each.

Each round draws tasks, cost models and synthetic devices (`PricedTask.perturbed`), and samples placements as a plan is made. The
two strategies differ in their use of these placements:

- DreamShard: REINFORCE. A decision is credited with the step time that it adds and, discounted, with the time that later ones add;
  copies of the same task at the same step are compared.
- AutoShard: actor and critic. Only the last step of a placement is rewarded; a value network, and V-trace for placements that an older
  policy played, estimate the value of each step.

Letters: t steps (units in the order of placement), k copies, d devices.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Adam

from shardwright.errors import InvalidInput
from shardwright.learned.arrays import PlacementArrays
from shardwright.learned.autoshard.losses import v_trace
from shardwright.learned.environment import choices
from shardwright.learned.options import PricedOptions
from shardwright.learned.policy_files import SavedPolicy
from shardwright.learned.priced.policy import (
    FACTS,
    FEATURES,
    FIRST_GAIN,
    HIDDEN,
    LOG_SCALE,
    RISE,
    PricedPolicy,
    longest_first,
    place,
)
from shardwright.learned.priced.task import PricedTask
from shardwright.learned.rounds import Trainer, discounted, nothing_placed, with_units
from shardwright.learned.worlds import SimulatedWorld, World
from shardwright.modelling.fitting import Stack

_MOST_NUMBERS = 400_000  # most logits of a play; larger tasks are played in fewer copies
_MOST_ROWS = 40_000  # most logits of a play in one update
_NORM, _LEAST_SPREAD, _LAST_RATE = 1.0, 2e-3, 0.02
_UNPLACED = 1.0  # addition of a unit without a device to the step, in references


class PricedNetwork(nn.Module):
    """The policy of `policy.PricedPolicy` in torch, and the value of a step for AutoShard."""

    def __init__(self) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.full((1,), FIRST_GAIN))
        self.device = nn.Linear(len(FEATURES), HIDDEN, bias=False)
        self.facts = nn.Linear(len(FACTS), HIDDEN)
        self.layers = Stack((HIDDEN, HIDDEN, 1))
        self.value = Stack((len(FACTS), HIDDEN, 1))
        with torch.no_grad():
            for parameter in self.layers[-1].parameters():
                parameter.zero_()

    def logits(self, seen: Tensor, facts: Tensor) -> Tensor:
        """`(t, k, d)` logits, as `PricedPolicy.logits`."""
        hidden = torch.relu(self.device(seen) + self.facts(facts)[..., None, :])
        learned: Tensor = self.layers(torch.relu(hidden))[..., 0]
        return learned - self.gain * LOG_SCALE * seen[..., RISE]


@dataclass(frozen=True, eq=False)
class Play:
    """Copies of a placement, with the policy's inputs.

    Attributes:
        seen: `(t, k, d, features)`.
        facts: `(t, k, facts)`.
        able: `(t, k, d)` which devices could be chosen.
        device: `(t, k)` the chosen devices.
        log_prob: `(t, k)` log of the policy's probability of the choice; 0 if there was none.
        gain: `(t, k)` minus the step time that each decision added, in references.
        step: `(k,)` step time over the references; an unplaced unit adds 1.
        whole: `(k,)` whether every unit found a device.
    """

    seen: Tensor
    facts: Tensor
    able: Tensor
    device: Tensor
    log_prob: Tensor
    gain: Tensor
    step: Tensor
    whole: Tensor

    def part(self, steps: Tensor) -> Play:
        """Some of the steps."""
        return Play(*(value if name in ("step", "whole") else value[steps] for name, value in vars(self).items()))


def play(policy: PricedPolicy, priced: PricedTask, copies: int, rng: np.random.Generator) -> Play:
    """Sample placements."""
    placed = place(policy, priced, rng, copies, record=True)
    order = longest_first(priced)
    able = np.isfinite(placed.logits)
    possible, device = able.any(axis=2), placed.assignment.T[order]
    with np.errstate(invalid="ignore"):
        below = placed.logits - placed.logits.max(axis=2, keepdims=True)
        chosen = np.take_along_axis(below, np.maximum(device, 0)[..., None], axis=2)[..., 0]
        log_prob = np.where(possible, chosen - np.log(np.exp(below).sum(axis=2)), 0.0).astype(np.float32)
    lost = np.cumsum(np.vstack([np.zeros(copies), _UNPLACED * ~possible]), axis=0)
    slowest = np.maximum(placed.slowest, 1.0) @ placed.parts + lost
    slowest[-1] = placed.step + lost[-1]
    gain, final = -np.diff(slowest, axis=0).astype(np.float32), slowest[-1].astype(np.float32)
    arrays = (placed.seen, placed.facts, able, np.maximum(device, 0), log_prob, gain, final, lost[-1] == 0)
    return Play(*(torch.from_numpy(each) for each in arrays))


class PricedTrainer(Trainer):
    """The state of a training between two rounds.

    Args:
        tasks: the training tasks; those with nothing to place are left out.
        world: its cost models price the tasks, each with any of them.
        options: how to learn.

    Raises:
        InvalidInput: no task has anything to place, or the world is not one of cost models.
    """

    counter: ClassVar[str] = "round"
    network: PricedNetwork

    def __init__(self, tasks: Sequence[PlacementArrays], world: World, options: PricedOptions) -> None:
        super().__init__(world, np.random.default_rng(options.seed))
        if not isinstance(world, SimulatedWorld):
            raise InvalidInput(
                f"{options.strategy}: the policy reads the prices of a cost model, so it learns from one, not from {world.name}; calibrate "
                "a model and name it with --model, or learn as published with --option preset=published"
            )
        self._tasks = with_units(tasks, options.strategy)
        self._options, self._models = options, world.cost_models
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(options.seed)
            self.network = PricedNetwork()
        self.optimizers = {"optimizer": Adam(self.network.parameters())}
        self._priced_task = lru_cache(maxsize=1024)(self._price)

    def _price(self, task: int, model: int) -> PricedTask:
        return PricedTask.of(self._tasks[task], self._models[model])

    def make_round(self) -> dict[str, float]:
        """Play some tasks and make one update, or `lag` updates of AutoShard."""
        options, policy = self._options, PricedPolicy(SavedPolicy(self._options.strategy, self.weights(), {}))
        plays = [[self._play(policy) for _ in range(options.tasks)] for _ in range(options.lag)]
        self._set_rate("optimizer", options.learning_rate * max(_LAST_RATE, 1 - self.round / options.rounds))
        entropies = []
        for batch in plays:
            loss, entropy = learn_from(self.network, batch, options, self._rng)
            self._descend("optimizer", loss, _NORM)
            entropies.append(entropy)
        if not any(bool(each.whole.any()) for batch in plays for each in batch):
            raise nothing_placed()
        steps = [float(each.step.mean()) for batch in plays for each in batch]
        return {"reward": -float(np.mean(steps)), "entropy": float(np.mean(entropies))}

    def _play(self, policy: PricedPolicy) -> Play:
        priced = self._priced_task(
            int(self._rng.integers(len(self._tasks))), int(self._rng.integers(len(self._models)))
        )
        if self._rng.random() < self._options.perturbed:
            priced = priced.perturbed(self._rng)
        copies = int(np.clip(_MOST_NUMBERS // (len(priced) * priced.arrays.devices), 4, self._options.episodes))
        return play(policy, priced, copies, self._rng)


def learn_from(
    network: PricedNetwork, plays: Sequence[Play], options: PricedOptions, rng: np.random.Generator
) -> tuple[Tensor, float]:
    """The loss of some plays, and the mean entropy of a choice."""
    losses, entropies = [], []
    for each in plays:
        advantage, value_loss = (
            actor_critic(network, each) if options.strategy == "autoshard" else credited(each, options.trace_decay)
        )
        steps = len(each.gain)
        most = max(1, _MOST_ROWS // (each.able.shape[1] * each.able.shape[2]))
        some = torch.from_numpy(np.sort(rng.choice(steps, min(steps, most), replace=False)))
        part = each.part(some)
        log, entropy = choices(network.logits(part.seen, part.facts), part.able, part.device)
        losses.append(-(log * advantage[some]).mean() - options.entropy_weight * entropy.mean() + value_loss)
        entropies.append(float(entropy.detach().mean()))
    return torch.stack(losses).mean(), float(np.mean(entropies))


def credited(each: Play, decay: float) -> tuple[Tensor, Tensor]:
    """`(t, k)` advantages of DreamShard: gains from a step on, over those of the other copies at the same step; and no value loss."""
    following = discounted(each.gain, decay)
    centred = following - following.mean(dim=1, keepdim=True)
    return centred / (centred.square().mean().sqrt() + _LEAST_SPREAD), torch.zeros(())


def actor_critic(network: PricedNetwork, each: Play) -> tuple[Tensor, Tensor]:
    """`(t, k)` advantages of AutoShard, and the loss of the value network; the reward is that of the last step."""
    value = network.value(each.facts)[..., 0]
    with torch.no_grad():
        reward = torch.zeros_like(each.gain)
        log, _ = choices(network.logits(each.seen, each.facts), each.able, each.device)
        reward[-1] = 1 / each.step
        discount = torch.ones_like(reward)
        discount[-1] = 0.0
        returns = v_trace(log - each.log_prob, reward, discount, value.detach(), torch.zeros_like(reward[-1]))
        spread = returns.advantages_te.std() + _LEAST_SPREAD
    loss = 0.5 * (returns.targets_te - value).square().mean()
    return (returns.advantages_te - returns.advantages_te.mean()) / spread, loss
