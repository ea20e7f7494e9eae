"""Actors that play their shares of a batch of episodes, here one after another, or on workers: the same episodes either way.

The networks' sums differ in their last bits with the size of a batch, so each actor's share is a batch of its own wherever it is played. On
machines with other processors or versions of torch the last bits may differ, too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

import torch
from torch import Tensor

from shardwright.jobs import WorkerPool
from shardwright.search.dreamshard.mdp import Encoded, Episodes, Rollout, anywhere, sampler
from shardwright.search.dreamshard.network import DreamShardNetwork
from shardwright.threads import one_thread

_LARGEST_SEED = 2**62


@dataclass(frozen=True, eq=False)
class Share:
    """What one actor is to play.

    Attributes:
        network: both networks.
        encoded: its tasks, each once.
        copies: episodes of each task.
        seed: of its choices.
        random: whether devices are chosen at random, all alike, and not by the policy.
    """

    network: DreamShardNetwork
    encoded: Encoded
    copies: int
    seed: int
    random: bool


@dataclass(frozen=True, eq=False)
class Actors:
    """Who plays episodes.

    Attributes:
        count: into how many parts the tasks of a batch are cut; 1 draws from the training's generator itself.
        pool: workers for them; None to play here.
    """

    count: int = 1
    pool: WorkerPool | None = None

    def play(
        self,
        network: DreamShardNetwork,
        encoded: Encoded,
        generator: torch.Generator,
        *,
        copies: int = 1,
        random: bool = False,
    ) -> Episodes:
        """Play episodes of tasks.

        Args:
            network: both networks.
            encoded: the tasks, each once.
            generator: of the choices, or of the actors' seeds.
            copies: episodes of each task, next to each other.
            random: choose devices at random, all alike, and not by the policy.
        """
        if self.count == 1:
            choose = anywhere(generator) if random else sampler(generator)
            return Rollout(network, _repeated(encoded, copies)).play(choose)
        seeds = torch.randint(_LARGEST_SEED, (self.count,), generator=generator).tolist()
        parts = torch.arange(encoded.batch.episodes).tensor_split(self.count)
        shares = [
            Share(network, encoded.rows(part), copies, seed, random)
            for part, seed in zip(parts, seeds, strict=True)
            if len(part)
        ]
        if self.pool is None:
            return _joined(encoded, copies, [act(share) for share in shares])
        found = dict(self.pool.map(_act_on, shares))
        return _joined(encoded, copies, [found[number] for number in range(len(shares))])


def act(share: Share) -> dict[str, Tensor]:
    """Play a share of the episodes; returns the tensors of `Episodes` by name."""
    generator = torch.Generator().manual_seed(share.seed)
    choose = anywhere(generator) if share.random else sampler(generator)
    with one_thread():
        played = Rollout(share.network, _repeated(share.encoded, share.copies)).play(choose)
    return {field.name: getattr(played, field.name) for field in fields(played) if field.name != "encoded"}


def _act_on(_: object, share: Share) -> dict[str, Tensor]:
    return act(share)


def _repeated(encoded: Encoded, copies: int) -> Encoded:
    return encoded if copies == 1 else encoded.repeat(copies)


def _joined(encoded: Encoded, copies: int, parts: Sequence[dict[str, Tensor]]) -> Episodes:
    """The episodes of all parts; the first dimension of tensors by step is that of steps, and the second of episodes."""
    tensors = {
        name: torch.cat([part[name] for part in parts], dim=int(name.rsplit("_", 1)[1].startswith("t")))
        for name in parts[0]
    }
    return Episodes(_repeated(encoded, copies), **tensors)
