"""The time of modules in a step besides kernels and collectives, as measured on a cluster (`task.links.ModuleTimes`).

It is the same for every plan of a task, so it changes no choice; with it, the predicted step is that of `DistributedModelParallel`, or of
`shardwright.runtime` for a task with shared collectives. Every device with shards pays half of it in the forward pass and half in the
backward pass.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

from shardwright.arrays import Floats
from shardwright.cost.collectives import sequence_dims
from shardwright.cost.features import WorkArrays
from shardwright.cost.model import CostModel, Pricing, TaskModel
from shardwright.task.links import ModuleTimes
from shardwright.task.task import Task


def module_ms(task: Task) -> float:
    """Ms of the modules that a task needs; 0 if they are not known, or if rows travel as no measured module sends them."""
    links = task.topology.links
    if links is None or not task.exchange.as_torchrec:
        return 0.0
    if task.exchange.collectives == "shared":
        return links.modules.shared_ms
    pooled = any(table.pooled for table in task.tables)
    return pooled * links.modules.pooled_ms + len(sequence_dims(task)) * links.modules.sequence_ms


def without_modules(task: Task) -> Task:
    """The task as if the times of modules were not known."""
    links = task.topology.links
    if links is None:
        return task
    return replace(task, topology=replace(task.topology, links=replace(links, modules=ModuleTimes())))


@dataclass(frozen=True, eq=False)
class ModuleModel(TaskModel):
    """A cost model that adds the time of modules to each device.

    Attributes:
        base: the cost model of the kernels.
        ms: ms of a step to add, half of it in each pass.
    """

    base: CostModel
    ms: float

    @property
    def superadditive(self) -> CostModel | None:
        """The base model's; it counts no modules, and so never predicts more."""
        return self.base.superadditive

    @cached_property
    def pricing(self) -> Pricing:
        """The base model's pricing plus the modules, once for each device with shards."""
        pricing = self.base.pricing
        return replace(pricing, once=pricing.once + self.ms / 2)

    def added(self, works: WorkArrays, latents: Floats) -> Floats:
        """`(n, 0)`: shards add nothing."""
        return latents[:, :0]
