"""`rnn` as a strategy: trains a network on the task itself, and returns the best plan that training saw."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from importlib.util import find_spec

import numpy as np

from shardwright.cost.model import CostModel
from shardwright.errors import InfeasibleTask, InvalidInput, MissingDependency
from shardwright.search.learned.arrays import PlacementArrays
from shardwright.search.learned.worlds import SimulatedWorld, World
from shardwright.search.strategy import why_not_counted
from shardwright.sharding.plan import Plan
from shardwright.task.task import Task


@dataclass(frozen=True)
class RnnOptions:
    """How long and how the network of a task is trained.

    Attributes:
        updates: gradient steps.
        episodes: plans drawn for each of them.
        hidden: width of encoder and decoder; even, as the encoder reads in both directions.
        learning_rate: of Adam, falling linearly to a tenth.
        entropy: weight of the entropy bonus.
        decay: weight of the past in the moving average that plans are compared with.
    """

    updates: int = 120
    episodes: int = 16
    hidden: int = 64
    learning_rate: float = 1e-2
    entropy: float = 0.01
    decay: float = 0.9

    def __post_init__(self) -> None:
        for name in ("updates", "episodes", "hidden"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise InvalidInput(f"rnn: {name} is {value!r}, must be a whole number of at least 1")
        if self.hidden % 2:
            raise InvalidInput(f"rnn: hidden is {self.hidden}, must be even: half of it reads in each direction")
        if not (math.isfinite(self.learning_rate) and self.learning_rate > 0):
            raise InvalidInput(f"rnn: learning_rate is {self.learning_rate}, must be a finite number greater than 0")
        if not (math.isfinite(self.entropy) and self.entropy >= 0):
            raise InvalidInput(f"rnn: entropy is {self.entropy}, must be a finite number of at least 0")
        if not 0 <= self.decay < 1:
            raise InvalidInput(f"rnn: decay is {self.decay}, must be at least 0 and less than 1")


@dataclass(frozen=True)
class Rnn:
    """Device placement by a sequence-to-sequence network (Mirhoseini et al., ICML 2017), the RNN baseline of DreamShard.

    Nothing is learned beforehand and nothing is kept: each search trains anew, and its plan is the cheapest of all that training drew,
    not only the trained network's last word. Needs torch.

    Attributes:
        options: how long and how to train.
        world: says what plans cost; by default the cost model that the search is given.
        name: name of the strategy.
    """

    options: RnnOptions = field(default_factory=RnnOptions)
    world: World | None = None
    name: str = "rnn"

    def supports(self, task: Task) -> str | None:
        """Any task whose tables may be whole, cut into columns or rows, or replicated."""
        return why_not_counted(task)

    def search(self, task: Task, cost_model: CostModel, *, seed: int, deadline: float | None) -> Plan:
        """Train on the task until the updates are made or the deadline comes, and return the best plan seen.

        Raises:
            InfeasibleTask: no plan that was drawn keeps memory and constraints.
            MissingDependency: torch is not installed.
            ShardwrightError: the world's answer is not a finite number.
        """
        arrays = PlacementArrays.of(task)
        if not len(arrays):
            return arrays.plan([], self.name, seed)
        if find_spec("torch") is None:
            raise MissingDependency(
                f"strategy '{self.name}' trains on the task and needs torch, which is not installed; install it with: "
                "pip install 'shardwright[learn]'"
            )
        from shardwright.search.rnn.training import train_placement

        world = self.world or SimulatedWorld(cost_model)
        best = train_placement(arrays, world, self.options, seed=seed, deadline=deadline)
        if best is None:
            raise InfeasibleTask(
                f"strategy '{self.name}' drew no plan that keeps memory and constraints: allow more updates or episodes, allow "
                "column_wise or row_wise for large tables, or use a strategy that searches, such as certified"
            )
        return arrays.plan(np.asarray(best), self.name, seed)
