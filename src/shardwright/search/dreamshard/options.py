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

    Attributes:
        iterations: rounds of collecting costs, updates of the cost network and updates of the policy.
        collected: placements that the world prices in each iteration.
        cost_updates: updates of the cost network in each iteration.
        cost_batch: placements an update of the cost network learns from.
        policy_updates: REINFORCE updates in each iteration.
        policy_tasks: tasks of which an update plays episodes.
        episodes: episodes an update plays of each task.
        learning_rate: of Adam, for both networks; falls linearly to 0 over the iterations.
        entropy_weight: how much a policy that stays undecided is preferred.
        trace_decay: how much the outcome of later steps counts for a step, from 0 to 1, each further step by this factor less.
        objective: what the overall cost is: "step", the sum over phases of the slowest device's time, or "embedding", the papers'
            embedding cost, the slowest device's sum.
        seed: the same seed gives the same policy, on one thread.
    """

    iterations: int = 10
    collected: int = 10
    cost_updates: int = 300
    cost_batch: int = 64
    policy_updates: int = 10
    policy_tasks: int = 1
    episodes: int = 10
    learning_rate: float = 5e-4
    entropy_weight: float = 0.001
    trace_decay: float = 1.0
    objective: Objective = "step"
    seed: int = 0

    def __post_init__(self) -> None:
        least = {"episodes": 2, "seed": 0}  # rewards of an episode are compared with those of others
        for name in (
            "iterations", "collected", "cost_updates", "cost_batch", "policy_updates", "policy_tasks", "episodes", "seed",
        ):  # fmt: skip
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < least.get(name, 1):
                raise InvalidInput(f"{name} is {value!r}, must be a whole number of at least {least.get(name, 1)}")
        if not (math.isfinite(self.learning_rate) and self.learning_rate > 0):
            raise InvalidInput(f"learning_rate is {self.learning_rate!r}, must be a positive number")
        if not (math.isfinite(self.entropy_weight) and self.entropy_weight >= 0):
            raise InvalidInput(f"entropy_weight is {self.entropy_weight!r}, must be a number of at least 0")
        if not 0 <= self.trace_decay <= 1:
            raise InvalidInput(f"trace_decay is {self.trace_decay!r}, must be a number from 0 to 1")
        if self.objective not in get_args(Objective):
            raise InvalidInput(f"objective is {self.objective!r}, must be one of {', '.join(get_args(Objective))}")
