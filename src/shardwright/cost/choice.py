"""Which cost model serves a task when the caller names none."""

from __future__ import annotations

from pathlib import Path

from shardwright.cost.files import bundled_models, load_model
from shardwright.cost.model import CostModel
from shardwright.cost.origin import unlike
from shardwright.cost.published import GPUS, PublishedModel
from shardwright.cost.user_models import best_user_model, named_user_model
from shardwright.errors import InvalidInput
from shardwright.sharding.plan import Plan
from shardwright.task.task import Optimizer, Task


def cost_model_for(device: str, optimizer: Optimizer = "rowwise_adagrad") -> CostModel:
    """The bundled learned model of a device type, or the one from published figures where none has been trained yet.

    Raises:
        InvalidInput: there is neither.
    """
    bundled = bundled_models()
    if device in bundled:
        return load_model(bundled[device])
    if device in GPUS:
        return PublishedModel(device, optimizer)
    known = ", ".join(sorted({*bundled, *GPUS}))
    raise InvalidInput(
        f"topology: no cost model for device {device!r}; bundled are {known}. Measure and train one "
        "('shardwright collect', 'shardwright train') and pass it as cost_model, or --model on the command line"
    )


def given_cost_model(given: CostModel | str | Path) -> CostModel:
    """The cost model that a caller passed, or that a file holds.

    Raises:
        InvalidInput: the file cannot be read.
    """
    return load_model(Path(given)) if isinstance(given, (str, Path)) else given


def resolve_cost_model(given: CostModel | str | Path | None, task: Task) -> CostModel:
    """A cost model from what a caller may pass: a model, a file, or nothing.

    With nothing, it is the model that was calibrated on this machine, where the task's devices are this machine's, unless the bundled one
    covers more of what the task has; and the bundled one elsewhere.

    Raises:
        InvalidInput: the file cannot be read, or there is no model for the task's devices.
    """
    if given is not None:
        return given_cost_model(given)
    device = task.topology.device
    own = best_user_model(task)
    if own is None:
        return cost_model_for(device, task.optimizer)
    found, model = own
    if device in bundled_models():
        bundled = load_model(bundled_models()[device])
        if len(list(unlike(bundled.metadata, task))) < len(list(unlike(found.metadata, task))):
            return bundled
    return model


def model_behind(plan: Plan) -> CostModel:
    """The model that priced a plan: one of its name that was calibrated here, else the one of the plan's devices.

    Raises:
        InvalidInput: there is neither.
    """
    return named_user_model(plan.cost_model) or cost_model_for(plan.task.topology.device, plan.task.optimizer)
