"""Plans drawn from the network, and the probability it gives them. Shape suffixes as in `network`."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from shardwright.search.learned.arrays import PlacementArrays
from shardwright.search.learned.environment import Environment, PlacementBatch
from shardwright.search.rnn.network import SequenceToSequence, State


@dataclass(frozen=True, eq=False)
class Sequence:
    """A task as the network reads it: units in the order in which they are placed, largest memory first.

    Attributes:
        batch: the task, once an episode.
        order_u: units in the order of their turns.
        features_bf: features of the blocks, standardised over the task.
        unit_b: turn of each block's unit.
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
        """`(u, h)` encodings of the units in the order of their turns."""
        return network.encode(self.features_bf, self.unit_b)


@dataclass(frozen=True, eq=False)
class Rollout:
    """One plan an episode.

    Attributes:
        device_eu: the devices chosen, by turn; where a unit found no device, what it holds does not matter.
        mask_eud: devices that could be chosen.
        assignment_eu: the device of each unit of the task.
        excess_e: bytes that did not fit, over the memory of the largest device; 0 where everything was placed.
    """

    device_eu: Tensor
    mask_eud: Tensor
    assignment_eu: Tensor
    excess_e: Tensor


@torch.no_grad()
def roll_out(network: SequenceToSequence, sequence: Sequence, generator: torch.Generator | None) -> Rollout:
    """Place the units of every episode, by chance with a generator, else always the likeliest device."""
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
        device_e = chance_ed.argmax(dim=1) if generator is None else _drawn(chance_ed, generator)
        environment.step(device_e, mask_ed)
        devices.append(device_e)
        masks.append(mask_ed)
    return Rollout(
        torch.stack(devices, dim=1), torch.stack(masks, dim=1), environment.assignment_eu, environment.excess_e
    )


def likelihood(network: SequenceToSequence, sequence: Sequence, rollout: Rollout) -> tuple[Tensor, Tensor]:
    """`(e,)` log-probability of each plan and `(e,)` entropy of its choices, both a unit; all turns in one pass."""
    start_e1 = torch.full_like(rollout.device_eu[:, :1], network.start)
    before_eu = torch.cat([start_e1, rollout.device_eu[:, :-1]], dim=1)
    logits_eud, _ = network.decode(sequence.encode(network), 0, before_eu)
    log_eud = torch.log_softmax(masked(logits_eud, rollout.mask_eud), dim=2)
    possible_eu = rollout.mask_eud.any(dim=2)
    chosen_eu = log_eud.gather(2, rollout.device_eu[..., None])[..., 0]
    entropy_eu = -(log_eud.exp() * torch.where(rollout.mask_eud, log_eud, 0.0)).sum(dim=2)
    return tuple(torch.where(possible_eu, each, 0.0).mean(dim=1) for each in (chosen_eu, entropy_eu))  # type: ignore[return-value]


def masked(logits: Tensor, mask: Tensor) -> Tensor:
    """Logits with minus infinity where the mask is false; unchanged where it is false for all devices."""
    return logits.masked_fill(~mask & mask.any(dim=-1, keepdim=True), -torch.inf)


def _drawn(chance_ed: Tensor, generator: torch.Generator) -> Tensor:
    return torch.multinomial(chance_ed, 1, generator=generator)[:, 0]
