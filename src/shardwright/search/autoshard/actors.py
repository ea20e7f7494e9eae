"""Actors that play their shares of a round's episodes, here one after another, or on workers: the same episodes either way.

The networks' sums differ in their last bits with the size of a batch, so each actor's share is a batch of its own wherever it is played. On
machines with other processors or versions of torch the last bits may differ, too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from shardwright.jobs import WorkerPool
from shardwright.search.autoshard.network import AutoShardNetwork
from shardwright.search.autoshard.rollout import Trajectory, in_batches, roll_out, scattered
from shardwright.search.learned.environment import PlacementBatch
from shardwright.threads import one_thread


@dataclass(frozen=True, eq=False)
class Share:
    """What one actor is to play.

    Attributes:
        network: the policy.
        batch: tasks to place by it; None if there are fewer than actors.
        random: tasks to scatter; likewise.
        seed: of all choices.
    """

    network: AutoShardNetwork
    batch: PlacementBatch | None
    random: PlacementBatch | None
    seed: int


class Scattered(NamedTuple):
    """Random placements; the names are those of `Environment`."""

    assignment_eu: Tensor
    excess_e: Tensor


class Acted(NamedTuple):
    """What an actor played: tensors of its trajectory by name, empty without a task; and its scattered placements."""

    trajectory: dict[str, Tensor]
    random: Scattered | None


def act(share: Share) -> Acted:
    """Play a share of the episodes."""
    rng = np.random.default_rng(share.seed)
    with one_thread():
        trajectory = {} if share.batch is None else roll_out(share.network, share.batch, rng).tensors()
        if share.random is None:
            return Acted(trajectory, None)
        done = scattered(share.random, rng)
    return Acted(trajectory, Scattered(done.assignment_eu, done.excess_e))


def play(
    network: AutoShardNetwork,
    batch: PlacementBatch,
    random: PlacementBatch,
    seeds: Sequence[int],
    pool: WorkerPool | None = None,
) -> tuple[Trajectory, Scattered]:
    """Place one batch by the policy, and scatter another one.

    Args:
        network: the policy.
        batch: the tasks to place; at least one.
        random: the tasks to scatter; at least one.
        seeds: one for each actor.
        pool: workers for the actors; by default they play here.
    """
    batches, randoms = _cut(batch, len(seeds)), _cut(random, len(seeds))
    shares = [Share(network, *parts) for parts in zip(batches, randoms, seeds, strict=True)]
    if pool is None:
        acted = [act(share) for share in shares]
    else:
        by_number = dict(pool.map(_act_on, shares))
        acted = [by_number[number] for number in range(len(shares))]
    parts = [one.trajectory for one in acted if one.trajectory]
    found = [one.random for one in acted if one.random is not None]
    return Trajectory.joined(batch, parts), Scattered(*map(torch.cat, zip(*found, strict=True)))


def _act_on(_: object, share: Share) -> Acted:
    return act(share)


def _cut(batch: PlacementBatch, actors: int) -> list[PlacementBatch | None]:
    """Parts of about equal size, without the tasks; None beyond the number of episodes."""
    bare = batch.without_tasks()
    parts: list[PlacementBatch | None] = [bare.rows(index) for index in in_batches(batch.episodes, actors)]
    return parts + [None] * (actors - len(parts))
