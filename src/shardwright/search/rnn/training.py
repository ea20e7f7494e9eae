"""REINFORCE on one task: draw plans, ask the world what they cost, make cheap ones likelier."""

from __future__ import annotations

import time

import numpy as np
import torch

from shardwright.errors import ShardwrightError
from shardwright.search.learned.arrays import TABLE_FEATURES, Floats, Ints, PlacementArrays
from shardwright.search.learned.worlds import World, step_ms
from shardwright.search.rnn.network import SequenceToSequence
from shardwright.search.rnn.options import RnnOptions
from shardwright.search.rnn.rollout import Rollout, Sequence, likelihood, roll_out
from shardwright.threads import one_thread

_LAST_RATE = 0.1
_MOST_NORM = 1.0


class PlanLedger:
    """What plans cost: each is asked for once, and the cheapest is kept.

    Args:
        arrays: the task.
        world: says what plans cost.

    Attributes:
        best: the cheapest plan's devices by unit; None before any.
        best_ms: its step time.
        worst_ms: the dearest plan's step time; 0 before any.
    """

    def __init__(self, arrays: PlacementArrays, world: World) -> None:
        self._arrays, self._world = arrays, world
        self._known: dict[bytes, float] = {}
        self.best: Ints | None = None
        self.best_ms, self.worst_ms = np.inf, 0.0

    def costs(self, rollout: Rollout) -> Floats:
        """`(e,)` step time of each plan; where units were left over, the dearest plan's, and more by what did not fit.

        Raises:
            ShardwrightError: the world's answer is not a finite number.
        """
        excess = rollout.excess_e.numpy().astype(np.float64)
        plans = [
            plan if failed == 0 else None for plan, failed in zip(rollout.assignment_eu.numpy(), excess, strict=True)
        ]
        self._ask([plan for plan in plans if plan is not None])
        known = [np.nan if plan is None else self._known[plan.tobytes()] for plan in plans]
        return np.where(excess > 0, (self.worst_ms or 1.0) * (1 + excess), known)

    def _ask(self, plans: list[Ints]) -> None:
        new = {plan.tobytes(): plan for plan in plans if plan.tobytes() not in self._known}
        found = self._world.costs([(self._arrays, plan) for plan in new.values()]) if new else []
        for (key, plan), phases in zip(new.items(), found, strict=True):
            ms = step_ms(phases)
            if not np.isfinite(ms):
                raise ShardwrightError(
                    f"rnn: world '{self._world.name}' says that a plan takes {ms} ms; it must return finite times"
                )
            self._known[key] = ms
            self.worst_ms = max(self.worst_ms, ms)
            if ms < self.best_ms:
                self.best, self.best_ms = plan, ms


def train_placement(
    arrays: PlacementArrays, world: World, options: RnnOptions, *, seed: int, deadline: float | None
) -> Ints | None:
    """Train on one task, and return the best plan of all that training saw; the last one is the trained network's own.

    At least one batch of plans is drawn, whatever the deadline.

    Args:
        arrays: the task, with at least one unit.
        world: says what plans cost.
        options: options.
        seed: seed of the first weights and of the choices.
        deadline: `time.monotonic()` at which to stop; None for no limit.

    Returns:
        The device of each unit; None if no plan kept memory and constraints.

    Raises:
        ShardwrightError: the world's answer is not a finite number.
    """
    ledger = PlanLedger(arrays, world)
    with one_thread(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        network = SequenceToSequence(len(TABLE_FEATURES), len(arrays), arrays.devices, options.hidden)
        generator = torch.Generator().manual_seed(seed)
        sequence = Sequence.of(arrays, options.episodes)
        if _learn(network, sequence, ledger, options, generator, deadline):
            ledger.costs(roll_out(network, Sequence.of(arrays, 1), None))
    return ledger.best


def _learn(
    network: SequenceToSequence,
    sequence: Sequence,
    ledger: PlanLedger,
    options: RnnOptions,
    generator: torch.Generator,
    deadline: float | None,
) -> bool:
    """Make the updates; whether the deadline allowed all of them."""
    optimizer = torch.optim.Adam(network.parameters(), lr=options.learning_rate)
    baseline = _Baseline(options.decay)
    slowest = 0.0
    for update in range(options.updates):
        begin = time.monotonic()
        if deadline is not None and update > 0 and begin + slowest > deadline:
            return False
        rollout = roll_out(network, sequence, generator)
        advantage_e = torch.from_numpy(baseline.advantage(ledger.costs(rollout))).float()
        if deadline is not None and time.monotonic() > deadline:
            return False
        for group in optimizer.param_groups:
            group["lr"] = options.learning_rate * (1 - (1 - _LAST_RATE) * update / options.updates)
        likelihood_e, entropy_e = likelihood(network, sequence, rollout)
        loss = -(advantage_e * likelihood_e).mean() - options.entropy * entropy_e.mean()
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(network.parameters(), _MOST_NORM)
        optimizer.step()
        slowest = max(slowest, time.monotonic() - begin)
    return True


class _Baseline:
    """Moving average of costs and of their spread, so that advantages have a size of about 1 on every task."""

    def __init__(self, decay: float) -> None:
        self._decay = decay
        self._mean: float | None = None
        self._spread = 0.0

    def advantage(self, cost: Floats) -> Floats:
        """`(e,)` how much cheaper than the average plans are, in units of the spread."""
        mean = float(cost.mean()) if self._mean is None else self._mean
        spread = float(np.abs(cost - mean).mean())
        first = self._mean is None
        self._spread = spread if first else self._decay * self._spread + (1 - self._decay) * spread
        self._mean = self._decay * mean + (1 - self._decay) * float(cost.mean())
        return np.asarray((mean - cost) / max(self._spread, 1e-6 * abs(mean), 1e-12))
