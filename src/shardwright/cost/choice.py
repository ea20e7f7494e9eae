"""Which cost model serves a task when the caller names none."""

from __future__ import annotations

from pathlib import Path

from shardwright.cost.analytic import MEMORY_BANDWIDTH, AnalyticModel
from shardwright.cost.files import bundled_models, load_model
from shardwright.cost.model import CostModel
from shardwright.errors import InvalidInput


def cost_model_for(device: str) -> CostModel:
    """The bundled learned model of a device type, or the analytic one where none has been trained yet.

    Raises:
        InvalidInput: there is neither.
    """
    bundled = bundled_models()
    if device in bundled:
        return load_model(bundled[device])
    if device in MEMORY_BANDWIDTH:
        return AnalyticModel(device)
    known = ", ".join(sorted({*bundled, *MEMORY_BANDWIDTH}))
    raise InvalidInput(
        f"topology: no cost model for device {device!r}; bundled are {known}. Measure and train one "
        "('shardwright collect', 'shardwright train') and pass it as cost_model, or --model on the command line"
    )


def resolve_cost_model(given: CostModel | str | Path | None, device: str) -> CostModel:
    """A cost model from what a caller may pass: a model, a file, or nothing."""
    if given is None:
        return cost_model_for(device)
    return load_model(Path(given)) if isinstance(given, (str, Path)) else given
