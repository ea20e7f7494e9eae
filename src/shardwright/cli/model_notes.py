"""What a user should know before trusting a cost model's figures for a task."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

from shardwright.cli.output import note
from shardwright.cost import CostModel, cost_model_for
from shardwright.cost.origin import learned_elsewhere
from shardwright.cost.score import score
from shardwright.errors import InvalidInput
from shardwright.sharding import Plan
from shardwright.task import Task

_BEYOND = 2.0  # a batch this many times outside of the trained ones is called extrapolation
_SAME = 1e-6  # steps that differ by less were predicted by one model


def print_model_notes(cost_model: CostModel, task: Task) -> None:
    """Print, on stderr, in what the task is unlike the samples that the model learned from."""
    for text in unlike(getattr(cost_model, "metadata", {}), task):
        note(f"note: cost model {cost_model.name} {text}")


def unlike(metadata: Mapping[str, str], task: Task) -> Iterator[str]:
    """In what a task differs from the samples described by a model's metadata; nothing where that does not say."""
    device, optimizer = metadata.get("device"), metadata.get("optimizer")
    if device and device != task.topology.device:
        yield f"was trained on {device}, the task is for {task.topology.device}"
    if optimizer and task.optimizer not in optimizer.split(", "):
        yield f"was trained with {optimizer}, the task uses {task.optimizer}: predicted backward times are those of {optimizer}"
    sizes = [int(size) for size in metadata.get("batch_sizes", "").split(", ") if size.isdigit()]
    if sizes and not min(sizes) / _BEYOND <= task.batch_size <= max(sizes) * _BEYOND:
        yield f"was trained at batch sizes {metadata['batch_sizes']}, the task has {task.batch_size}: predictions are extrapolated"


def print_hardware_note(cost_model: CostModel, kind: str) -> None:
    """Print, on stderr, that a model's predictions are of other hardware than what is about to be measured.

    Args:
        cost_model: the model.
        kind: "cpu" or "cuda", what is measured on.
    """
    text = learned_elsewhere(getattr(cost_model, "metadata", {}), kind)
    if text:
        note(f"note: cost model {cost_model.name} {text}")


def print_origin_notes(plans: Sequence[Plan], kind: str) -> None:
    """Print, on stderr, that times were predicted by a bundled model of other hardware than what is about to be measured, once a model.

    A plan names its model, and another model may have the same name, so a bundled one counts as its model if it predicts the same step.

    Args:
        plans: the plans.
        kind: "cpu" or "cuda", what is measured on.
    """
    found = [model for plan in plans if (model := _bundled_of(plan)) is not None]
    for model in {model.name: model for model in found}.values():
        print_hardware_note(model, kind)


def _bundled_of(plan: Plan) -> CostModel | None:
    """The bundled model that predicted a plan's times; None where another one did."""
    try:
        bundled = cost_model_for(plan.task.topology.device)
    except InvalidInput:
        return None
    if plan.cost is None or bundled.name != plan.cost_model:
        return None
    same = math.isclose(score(plan.task, plan.shards, bundled).step_ms, plan.cost.step_ms, rel_tol=_SAME)
    return bundled if same else None
