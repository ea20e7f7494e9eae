"""REINFORCE on one task: draw plans from a sequence-to-sequence network, price them in the world, and make cheap plans likelier.

The encoder reads the units of a task in both directions. The decoder, with attention, chooses a device for each unit.

Shape suffixes: e episodes, t steps, u units, b blocks, d devices, f features, h hidden. All episodes place the same task, so encodings
have no e.

References:
    [placement] Mirhoseini et al., Device Placement Optimization with Reinforcement Learning, ICML 2017: the architecture and its training.
    [dreamshard] Zha et al., DreamShard, NeurIPS 2022: the same network as a baseline, on table features.
    [attention] Luong et al., Effective Approaches to Attention-based Neural Machine Translation, EMNLP 2015: the "general" score.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from shardwright.errors import ShardwrightError
from shardwright.learned.arrays import TABLE_FEATURES, Floats, Ints, PlacementArrays
from shardwright.learned.environment import Environment, PlacementBatch, choices, masked
from shardwright.learned.options import RnnOptions
from shardwright.learned.worlds import World, step_ms
from shardwright.modelling.fitting import descend
from shardwright.threads import one_thread

State = tuple[Tensor, Tensor]
"""Hidden and cell state of the decoder, `(1, e, h)` each."""


class SequenceToSequence(nn.Module):
    """Encoder, decoder and attention over one task.

    As in [placement], the decoder sees the device that it chose last. It also sees the current unit; otherwise attention would first have
    to learn which unit is current. Beside its features, each unit has a trained embedding, as kinds of operations have in [placement]. Both
    additions favour the baseline: without them it hardly learns within some thousand plans.

    Args:
        features: number of features, f.
        units: number of units, u.
        devices: number of devices, d. Each unit and device has its own weights, so a network serves one task only.
        hidden: width h of the hidden layers, even.
    """

    def __init__(self, features: int, units: int, devices: int, hidden: int) -> None:
        super().__init__()
        self.start = devices
        self.block = nn.Linear(features, hidden)
        self.unit = nn.Embedding(units, hidden)
        self.encoder = nn.LSTM(hidden, hidden // 2, bidirectional=True, batch_first=True)
        self.device = nn.Embedding(devices + 1, hidden)
        self.decoder = nn.LSTM(2 * hidden, hidden, batch_first=True)
        self.attention = nn.Linear(hidden, hidden, bias=False)
        self.combine = nn.Linear(3 * hidden, hidden)
        self.head = nn.Linear(hidden, devices)

    def encode(self, features_bf: Tensor, unit_b: Tensor) -> Tensor:
        """`(u, h)` encodings of the units.

        Args:
            features_bf: standardised features of the blocks.
            unit_b: step at which the unit of each block is placed.
        """
        units_uh = self.unit.weight.index_add(0, unit_b, torch.relu(self.block(features_bf)))
        encoded: Tensor = self.encoder(units_uh[None])[0][0]
        return encoded

    def decode(
        self, encoded_uh: Tensor, first: int, device_et: Tensor, state: State | None = None
    ) -> tuple[Tensor, State]:
        """`(e, t, d)` logits of t units from step `first` on, and the decoder's state after them.

        Args:
            encoded_uh: the result of `encode`.
            first: step at which the first of the t units is placed.
            device_et: device chosen before each of these steps; `start` before the task's first step.
            state: the decoder's state after the earlier steps; None at the start.
        """
        episodes, steps = device_et.shape
        turn_eth, unit_eth = (
            each[first : first + steps].expand(episodes, -1, -1) for each in (encoded_uh, self.unit.weight)
        )
        hidden_eth, state = self.decoder(torch.cat([turn_eth, self.device(device_et)], dim=2), state)
        weight_etu = torch.softmax(self.attention(hidden_eth) @ encoded_uh.T, dim=2)
        context_eth = weight_etu @ encoded_uh
        logits: Tensor = self.head(torch.tanh(self.combine(torch.cat([hidden_eth, context_eth, unit_eth], dim=2))))
        assert state is not None
        return logits, state


@dataclass(frozen=True, eq=False)
class Sequence:
    """A task as the network reads it: units in the order of placement, largest memory first.

    Attributes:
        batch: the task, once per episode.
        order_u: units in the order of placement.
        features_bf: features of the blocks, standardised over the task.
        unit_b: step at which the unit of each block is placed.
    """

    batch: PlacementBatch
    order_u: Tensor
    features_bf: Tensor
    unit_b: Tensor

    @classmethod
    def of(cls, arrays: PlacementArrays, episodes: int) -> Sequence:
        """The sequence of a task."""
        batch = PlacementBatch.of([arrays])
        order_u = torch.argsort(batch.bytes_eu[0], descending=True, stable=True)
        turn_u = torch.argsort(order_u)
        features_bf = batch.features_ebf[0]
        centred_bf = features_bf - features_bf.mean(dim=0)
        spread_f = centred_bf.square().mean(dim=0).sqrt()
        return cls(
            batch=batch.repeat(episodes),
            order_u=order_u,
            features_bf=centred_bf / torch.where(spread_f > 1e-6, spread_f, 1.0),
            unit_b=turn_u[batch.unit_eb[0]],
        )

    def encode(self, network: SequenceToSequence) -> Tensor:
        """`(u, h)` encodings of the units in the order of placement."""
        return network.encode(self.features_bf, self.unit_b)


@dataclass(frozen=True, eq=False)
class Rollout:
    """Plans drawn from the network, one per episode.

    Attributes:
        device_eu: the device chosen at each step; any number if the unit found no device.
        mask_eud: whether a device could be chosen at each step.
        assignment_eu: the device of each unit of the task.
        excess_e: bytes that did not fit, divided by the memory of the largest device; 0 if every unit was placed.
    """

    device_eu: Tensor
    mask_eud: Tensor
    assignment_eu: Tensor
    excess_e: Tensor


@torch.no_grad()
def roll_out(network: SequenceToSequence, sequence: Sequence, generator: torch.Generator | None) -> Rollout:
    """Place the units of every episode: on drawn devices with a generator, else on the likeliest devices."""
    batch = sequence.batch
    environment = Environment(batch, sequence.order_u.expand(batch.episodes, -1))
    encoded_uh = sequence.encode(network)
    device_e = torch.full((batch.episodes,), network.start)
    state: State | None = None
    devices, masks = [], []
    while not environment.done:
        mask_ed = environment.mask()
        logits_etd, state = network.decode(encoded_uh, environment.step_index, device_e[:, None], state)
        chance_ed = torch.softmax(masked(logits_etd[:, 0], mask_ed), dim=1)
        if generator is None:
            device_e = chance_ed.argmax(dim=1)
        else:
            device_e = torch.multinomial(chance_ed, 1, generator=generator)[:, 0]
        environment.step(device_e, mask_ed)
        devices.append(device_e)
        masks.append(mask_ed)
    return Rollout(
        torch.stack(devices, dim=1), torch.stack(masks, dim=1), environment.assignment_eu, environment.excess_e
    )


def likelihood(network: SequenceToSequence, sequence: Sequence, rollout: Rollout) -> tuple[Tensor, Tensor]:
    """`(e,)` log-probability of each plan and `(e,)` entropy of its choices, both averaged over units; one pass covers all steps."""
    start_e1 = torch.full_like(rollout.device_eu[:, :1], network.start)
    before_eu = torch.cat([start_e1, rollout.device_eu[:, :-1]], dim=1)
    logits_eud, _ = network.decode(sequence.encode(network), 0, before_eu)
    chosen_eu, entropy_eu = choices(logits_eud, rollout.mask_eud, rollout.device_eu)
    return chosen_eu.mean(dim=1), entropy_eu.mean(dim=1)


_LAST_RATE = 0.1
_MOST_NORM = 1.0


class PlanLedger:
    """Costs of the plans drawn so far; it prices each plan once and keeps the cheapest.

    Attributes:
        best: device of each unit in the cheapest plan; None before the first plan.
        best_ms: step time of the cheapest plan.
        worst_ms: step time of the most expensive plan; 0 before the first plan.
    """

    def __init__(self, arrays: PlacementArrays, world: World) -> None:
        self._arrays, self._world = arrays, world
        self._known: dict[bytes, float] = {}
        self.best: Ints | None = None
        self.best_ms, self.worst_ms = np.inf, 0.0

    def costs(self, rollout: Rollout) -> Floats:
        """`(e,)` step time of each plan. A plan with unplaced units costs the most expensive plan's time, times 1 + its excess.

        Raises:
            ShardwrightError: the world returned a cost that is not finite.
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
        costs = self._world.costs([(self._arrays, plan) for plan in new.values()]) if new else []
        for (key, plan), phases in zip(new.items(), costs, strict=True):
            ms = step_ms(phases)
            if not np.isfinite(ms):
                raise ShardwrightError(
                    f"rnn: world '{self._world.name}' returned {ms} ms for a plan; it must return finite times"
                )
            self._known[key] = ms
            self.worst_ms = max(self.worst_ms, ms)
            if ms < self.best_ms:
                self.best, self.best_ms = plan, ms


def train_placement(
    arrays: PlacementArrays, world: World, options: RnnOptions, *, seed: int, deadline: float | None
) -> Ints | None:
    """Train on one task, and return the best plan that training saw. The last plan considered is the trained network's own.

    Training draws at least one batch of plans, even after the deadline.

    Args:
        arrays: the task, with at least one unit.
        world: prices plans.
        options: how long and how to train.
        seed: seed of the first weights and of the choices.
        deadline: `time.monotonic()` at which to stop; None for no limit.

    Returns:
        The device of each unit; None if no plan kept memory and constraints.

    Raises:
        ShardwrightError: the world returned a cost that is not finite.
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
    """Make the updates, and return whether the deadline allowed all of them."""
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
        descend(network, optimizer, loss, _MOST_NORM)
        slowest = max(slowest, time.monotonic() - begin)
    return True


class _Baseline:
    """Moving averages of costs and of their spread; they scale advantages to a size of about 1 on every task."""

    def __init__(self, decay: float) -> None:
        self._decay = decay
        self._mean: float | None = None
        self._spread = 0.0

    def advantage(self, cost: Floats) -> Floats:
        """`(e,)` how much cheaper each plan is than the average, in units of the spread."""
        mean = float(cost.mean()) if self._mean is None else self._mean
        spread = float(np.abs(cost - mean).mean())
        first = self._mean is None
        self._spread = spread if first else self._decay * self._spread + (1 - self._decay) * spread
        self._mean = self._decay * mean + (1 - self._decay) * float(cost.mean())
        return np.asarray((mean - cost) / max(self._spread, 1e-6 * abs(mean), 1e-12))
