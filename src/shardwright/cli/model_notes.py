"""Notes on a cost model's origin and on its limits for a task."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from shardwright.cli.output import note
from shardwright.cost import CostModel
from shardwright.cost.choice import machine_with, model_behind
from shardwright.cost.files import learned_elsewhere, processors, provenance, unlike
from shardwright.cost.score import score
from shardwright.errors import InvalidInput
from shardwright.sharding import Plan
from shardwright.task import Task

_SAME = 1e-6  # steps that differ by less (relatively) were predicted by one model


def print_model_notes(cost_model: CostModel, task: Task, file: Path | None = None) -> None:
    """Print on stderr the origin of the model, and the differences between the task and the samples that the model learned from.

    Args:
        cost_model: the model.
        task: the task that the model prices.
        file: the task's file, named in the command that would make a model for it on a machine with such devices; None for no such advice.
    """
    metadata = cost_model.metadata
    origin = provenance(metadata)
    if origin:
        note(f"cost model {cost_model.name}: {origin}")
    lacking = list(unlike(metadata, task))
    for text in lacking:
        note(f"note: cost model {cost_model.name} {text}")
    here = machine_with(task.topology.device) if file is not None else None
    if here is not None and (lacking or processors(metadata) not in ([], [here["processor"]])):
        note(f"note: for a model of this machine and this task, run: shardwright calibrate {file}")


def print_hardware_note(cost_model: CostModel, kind: str) -> None:
    """Print a note on stderr if a model predicts other hardware than the hardware about to be measured."""
    text = learned_elsewhere(cost_model.metadata, kind)
    if text:
        note(f"note: cost model {cost_model.name} {text}")


def print_origin_notes(plans: Sequence[Plan], kind: str) -> None:
    """Print one note per model on stderr if it predicted the plans for other hardware than the hardware about to be measured.

    A plan names its model, but another model may have the same name. A known model counts as the plan's if it predicts the same step.
    """
    models = [model for plan in plans if (model := model_of(plan)) is not None]
    for model in {model.name: model for model in models}.values():
        print_hardware_note(model, kind)


def model_of(plan: Plan) -> CostModel | None:
    """The model that predicted a plan's times; None if no known model has its name and predicts the same step."""
    try:
        model = model_behind(plan)
    except InvalidInput:
        return None
    if plan.cost is None or model.name != plan.cost_model:
        return None
    same = math.isclose(score(plan.task, plan.shards, model).step_ms, plan.cost.step_ms, rel_tol=_SAME)
    return model if same else None
