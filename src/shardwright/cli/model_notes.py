"""What a user should know before trusting a cost model's figures for a task."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from shardwright.cli.output import note
from shardwright.cost import CostModel
from shardwright.cost.origin import learned_elsewhere
from shardwright.task import Task

_BEYOND = 2.0  # a batch this many times outside of the trained ones is called extrapolation


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
