"""The strategy `rnn`: it trains a network on the task itself and returns the best plan that training saw."""

from __future__ import annotations

from dataclasses import dataclass, field
from importlib.util import find_spec

import numpy as np

from shardwright.cost.model import CostModel
from shardwright.errors import InfeasibleTask, MissingDependency
from shardwright.learned.arrays import PlacementArrays
from shardwright.learned.options import RnnOptions
from shardwright.learned.worlds import SimulatedWorld, World
from shardwright.search.strategy import why_not_counted
from shardwright.sharding.plan import Plan
from shardwright.task.task import Task

__all__ = ["Rnn", "RnnOptions"]


@dataclass(frozen=True)
class Rnn:
    """Device placement by a sequence-to-sequence network (Mirhoseini et al., ICML 2017), after the RNN baseline of DreamShard.

    It has three advantages over that baseline (see `training`), and its reward is the cost model's step. Each search trains anew: nothing
    is learned beforehand or kept. The search returns the cheapest plan that training drew, which need not be the trained network's own.
    The strategy needs torch.

    Attributes:
        options: how long and how to train.
        world: prices plans; by default the cost model that the search receives.
        name: name of the strategy.
    """

    options: RnnOptions = field(default_factory=RnnOptions)
    world: World | None = None
    name: str = "rnn"

    def supports(self, task: Task) -> str | None:
        """Why the task is not supported; None for tasks whose tables may be whole, cut into columns or rows, or replicated."""
        return why_not_counted(task)

    def search(self, task: Task, cost_model: CostModel, *, seed: int, deadline: float | None) -> Plan:
        """Train on the task until all updates are made or the deadline passes, and return the best plan seen.

        Raises:
            InfeasibleTask: no plan drawn keeps memory and constraints.
            MissingDependency: torch is not installed.
            ShardwrightError: the world returned a cost that is not finite.
        """
        arrays = PlacementArrays.of(task)
        if not len(arrays):
            return arrays.plan([], self.name, seed)
        if find_spec("torch") is None:
            raise MissingDependency(
                f"strategy '{self.name}' trains on the task and needs torch, which is not installed; install it with: "
                "pip install 'shardwright[learn]'"
            )
        from shardwright.learned.rnn.training import train_placement

        world = self.world or SimulatedWorld(cost_model)
        best = train_placement(arrays, world, self.options, seed=seed, deadline=deadline)
        if best is None:
            raise InfeasibleTask(
                f"strategy '{self.name}' drew no plan that keeps memory and constraints: allow more updates or episodes, allow "
                "column_wise or row_wise for large tables, or use a strategy that searches, such as certified"
            )
        return arrays.plan(np.asarray(best), self.name, seed)
