"""Where a cost model was learned, how true it was, and for what it was not made."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from shardwright.measure.hardware import cpu_model, gpu_model
from shardwright.task import PRESETS, Task

if TYPE_CHECKING:
    from shardwright.cost.accuracy import Accuracy
    from shardwright.cost.neuroshard.compute import ComputeAccuracy

_BEYOND = 2.0  # a batch this many times outside of the trained ones is called extrapolation
_UNITS = (("day", 86_400), ("hour", 3600), ("minute", 60))


def learned_elsewhere(metadata: Mapping[str, str], kind: str, here: str | None = None) -> str | None:
    """What to say where a model was learned on another processor.

    Args:
        metadata: the model's.
        kind: "cpu" or "cuda".
        here: the processor whose times are predicted; by default that of this machine.

    Returns:
        A clause that goes after "the cost model"; None where that processor is among those it learned from, or where it does not tell.
    """
    learned_on = processors(metadata, kind)
    if not learned_on:
        return None
    here = here or (gpu_model() if kind == "cuda" else cpu_model())
    if here in learned_on:
        return None
    return (
        f"was learned on {' and '.join(learned_on)}, this machine is {here}: times differ because the hardware does; "
        "for a model of this machine, run 'shardwright calibrate'"
    )


def processors(metadata: Mapping[str, str], kind: str = r"\w+") -> list[str]:
    """The processors whose samples a model learned from; none where its metadata does not tell.

    Args:
        metadata: the model's.
        kind: "cpu" or "cuda"; by default any.
    """
    found = re.findall(rf"device_kind {kind}, processor (.*?), cores ", metadata.get("hardware", ""))
    return list(dict.fromkeys(found))


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
    kinds, known = {kind_of_table(table.pooled, table.dtype) for table in task.tables}, metadata.get("tables")
    if known and (missing := sorted(kinds - set(known.split(", ")))):
        yield f"was trained on {known} tables, the task has {', '.join(missing)} ones too"


def kind_of_table(pooled: bool, dtype: str) -> str:
    """A kind of table that a model covers or does not: "pooled-fp32", "sequence-fp16"."""
    return f"{'pooled' if pooled else 'sequence'}-{dtype}"


def provenance(metadata: Mapping[str, str]) -> str | None:
    """Where and when a model was learned and how true it was; None where that is not known.

    As in "calibrated on this machine 3 hours ago, mean error 5.1% on 180 sets it had not seen".
    """
    error, when = metadata.get("mean_error"), metadata.get("calibrated_at")
    if when:
        origin = f"calibrated on this machine {_age(when)}"
    elif found := processors(metadata):
        origin = f"learned on {' and '.join(found)}, {metadata.get('date', 'undated')}"
    else:
        return None
    if not error:
        return origin
    return f"{origin}, mean error {float(error):.1%} on {metadata.get('test_sets', 'some')} sets it had not seen"


def accuracy_metadata(accuracy: Accuracy | ComputeAccuracy) -> dict[str, str]:
    """The errors, for the model's metadata."""
    figures: dict[str, Any] = {key: value for key, value in asdict(accuracy).items() if isinstance(value, float)}
    return {"test_sets": str(accuracy.sets)} | {key: f"{value:.5f}" for key, value in figures.items()}


def device_type(hardware: Mapping[str, str]) -> str:
    """The name that topologies use for a device: "NVIDIA H200" → "h200"; a name of its own where no preset has it."""
    if hardware["device_kind"] == "cpu":
        return "cpu"
    name = re.sub(r"[^a-z0-9]", "", hardware["processor"].lower())
    known = (preset.device for preset in PRESETS.values())
    return next((device for device in known if device in name), name)


def _age(when: str) -> str:
    """How long ago a time was, in the largest unit; clocks may have been set back since."""
    try:
        seconds = (datetime.now(UTC) - datetime.fromisoformat(when)).total_seconds()
    except (ValueError, TypeError):
        return "at an unknown time"
    for unit, length in _UNITS:
        if seconds >= length:
            count = int(seconds // length)
            return f"{count} {unit}{'s' * (count > 1)} ago"
    return "just now"
