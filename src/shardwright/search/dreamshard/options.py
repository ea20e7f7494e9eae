"""Options of DreamShard's training."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import get_args

from shardwright.errors import InvalidInput
from shardwright.search.dreamshard.weights import Objective


@dataclass(frozen=True)
class DreamShardOptions:
    """How a policy is learned.

    The paper's values are 10 placements in each iteration, none explored, 300 cost updates, 10 policy updates of 10 episodes of one task,
    no variants, rates of 5e-4 and a trace_decay of 1. On tasks of 50 unseen tables on 4 devices they take 20 s and close a tenth of the
    distance from the best heuristic to the bound; the defaults here take under two minutes and close half of it.

    Attributes:
        iterations: rounds of collecting costs, updates of the cost network and updates of the policy.
        collected: placements of training tasks, sampled from the policy, that the world prices in each iteration.
        explored: random placements of training tasks and variants that it prices as well.
        cost_updates: updates of the cost network in each iteration.
        cost_batch: placements an update of the cost network learns from.
        policy_updates: REINFORCE updates in each iteration.
        policy_tasks: tasks of which an update plays episodes.
        episodes: episodes an update plays of each task.
        actors: batches that episodes are played in, each with a seed of its own: those of an update by task, so at most `policy_tasks`.
            Several make no better policy, only another one; they are for tasks of hundreds of tables, where the workers of a
            cluster can play them at once.
        variants: tasks made of each training task, with rows, pooling factors and access profiles of its tables changed at random; see
            `variants`.
        cost_rate: learning rate of Adam for the cost network; falls linearly to 0 over the iterations.
        policy_rate: the same for the policy.
        entropy_weight: how much a policy that stays undecided is preferred.
        trace_decay: how much the outcome of later steps counts for a step, each further step by this factor less; the paper's is 1.
        objective: what the overall cost is: "step", the sum over phases of the slowest device's time, or "embedding", the papers'
            embedding cost, the slowest device's sum.
        seed: the same seed gives the same policy, on one thread.
    """

    iterations: int = 10
    collected: int = 50
    explored: int = 250
    cost_updates: int = 900
    cost_batch: int = 64
    policy_updates: int = 60
    policy_tasks: int = 4
    episodes: int = 16
    actors: int = 1
    variants: int = 6
    cost_rate: float = 2e-3
    policy_rate: float = 1e-2
    entropy_weight: float = 0.001
    trace_decay: float = 0.97
    objective: Objective = "step"
    seed: int = 0

    def __post_init__(self) -> None:
        least = {
            "episodes": 2,
            "explored": 0,
            "variants": 0,
            "seed": 0,
        }  # rewards of an episode are compared with those of others
        for name, value in vars(self).items():
            if name == "objective":
                continue
            whole = name in _WHOLE
            if isinstance(value, bool) or not isinstance(value, int if whole else (int, float)):
                raise InvalidInput(f"{name} is {value!r}, must be a {'whole ' if whole else ''}number")
            if whole and value < least.get(name, 1):
                raise InvalidInput(f"{name} is {value!r}, must be at least {least.get(name, 1)}")
            if name.endswith("_rate") and not (math.isfinite(value) and value > 0):
                raise InvalidInput(f"{name} is {value!r}, must be a finite number above 0")
        if not (math.isfinite(self.entropy_weight) and self.entropy_weight >= 0):
            raise InvalidInput(f"entropy_weight is {self.entropy_weight!r}, must be a finite number of at least 0")
        if not 0 <= self.trace_decay <= 1:
            raise InvalidInput(f"trace_decay is {self.trace_decay!r}, must be from 0 to 1")
        if self.objective not in get_args(Objective):
            raise InvalidInput(f"objective is {self.objective!r}, must be one of {', '.join(get_args(Objective))}")


_WHOLE = (
    "iterations", "collected", "explored", "cost_updates", "cost_batch", "policy_updates", "policy_tasks", "episodes", "actors", "variants",
    "seed",
)  # fmt: skip
