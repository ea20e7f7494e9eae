"""The cost model of a task: kernels, codecs of the exchange, and synchronisation of sharding groups."""

from __future__ import annotations

from shardwright.cost.conversion import ConvertingModel, converts
from shardwright.cost.model import CostModel, TaskModel
from shardwright.cost.modules import ModuleModel, module_ms
from shardwright.cost.synchronisation import GroupedModel
from shardwright.task.task import Task


def for_task(model: CostModel, task: Task) -> CostModel:
    """The cost model of a device's kernels plus the task's codecs, its modules, and the synchronisation of its sharding groups.

    Args:
        model: a model of kernels, or one that this function returned, for this task or for another.
        task: the task. If it has none of these, the model of the kernels itself is returned.
    """
    while isinstance(model, TaskModel):
        model = model.base
    if converts(task):
        model = ConvertingModel(model, task)
    if ms := module_ms(task):
        model = ModuleModel(model, ms)
    return model if task.groups is None else GroupedModel(model, task, task.groups)
