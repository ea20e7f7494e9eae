"""One plan as a report shows it, and the measured kernel times that `shardwright verify PLAN --json` prints."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from shardwright.cost.choice import model_behind
from shardwright.cost.model import CostModel
from shardwright.cost.score import scored
from shardwright.errors import InvalidInput
from shardwright.files import MAX_VALUES, read_text
from shardwright.report.changes import Change, Marginals, marginals, priced_changes
from shardwright.schema import Amount, Place, convert
from shardwright.sharding.costs import PHASES, PlanCost
from shardwright.sharding.plan import Plan

_CLOSE = 1e-9  # a plan file and its measurement hold the same predicted times, as the same floats


class _Device(msgspec.Struct):
    rank: int
    measured_forward_ms: Amount
    measured_backward_ms: Amount
    predicted_forward_ms: float | None = None
    predicted_backward_ms: float | None = None


class _Verified(msgspec.Struct):
    devices: list[_Device]
    plan: str = ""
    measured_on: str | None = None


@dataclass(frozen=True)
class MeasuredTimes:
    """Kernel times of each device of a plan.

    Attributes:
        forward_ms: `(devices,)` ms of the lookups.
        backward_ms: `(devices,)` ms of the backward pass, optimizer included.
        device: type of the measured device, as topologies name it; None if unknown.
    """

    forward_ms: tuple[float, ...]
    backward_ms: tuple[float, ...]
    device: str | None = None

    @property
    def compute_ms(self) -> float:
        """Slowest forward plus slowest backward kernel."""
        return max(self.forward_ms) + max(self.backward_ms)


def not_comparable(predicted_for: str, measured_on: str | None) -> str | None:
    """The note that replaces relative differences if two device types are compared; None if the types agree or one is unknown."""
    if measured_on in (None, predicted_for):
        return None
    return f"predicted for {predicted_for}, measured on {measured_on}: the times differ because the devices do"


def read_measured(path: str | Path, plan: Plan) -> MeasuredTimes:
    """Read a measurement and check that it measures this plan.

    Args:
        path: a file with the output of `shardwright verify PLAN --json`.
        plan: the plan that the file should measure.

    Raises:
        InvalidInput: the file cannot be read, is no measurement, or measures another plan.
    """
    from shardwright.documents.json_text import parse_json

    document = parse_json(read_text(path, "measurement"), str(path), MAX_VALUES)
    if not isinstance(document, dict) or "devices" not in document:
        raise InvalidInput(
            f"{path}: holds no kernel times of devices; name the output of 'shardwright verify PLAN --json' without other options"
        )
    content = convert(document, _Verified, Place(str(path)))
    devices = content.devices
    if [device.rank for device in devices] != list(range(plan.task.topology.devices)):
        raise InvalidInput(
            f"{path}: lists {len(devices)} devices, the plan has ranks 0 to {plan.task.topology.devices - 1}; "
            "measure this plan with: shardwright verify PLAN --json"
        )
    _check_predictions(path, devices, plan)
    forward, backward = zip(
        *((device.measured_forward_ms, device.measured_backward_ms) for device in devices), strict=True
    )
    return MeasuredTimes(forward, backward, content.measured_on)


def _check_predictions(path: str | Path, devices: list[_Device], plan: Plan) -> None:
    """Check that the predictions beside the measured times are the plan's, if both have predictions."""
    for device, cost in zip(devices, plan.cost.devices if plan.cost else (), strict=bool(plan.cost)):
        pairs = (
            ("forward", device.predicted_forward_ms, cost.forward_ms),
            ("backward", device.predicted_backward_ms, cost.backward_ms),
        )
        for phase, predicted, expected in pairs:
            if predicted is not None and not math.isclose(predicted, expected, rel_tol=_CLOSE):
                raise InvalidInput(
                    f"{path}: device {device.rank} is predicted to take {predicted:g} ms {phase}, in the plan {expected:g} ms; it is a "
                    "measurement of another plan: measure this one with 'shardwright verify PLAN --json'"
                )


_SAME = 1e-4  # two predicted step times closer than this (relatively) count as one cost model's


@dataclass(frozen=True, eq=False)
class Entry:
    """A plan in a report.

    Attributes:
        name: name of the plan in the report, usually its file's name.
        plan: the plan, with its predicted cost.
        marginals: leave-one-out times; None if no cost model is available.
        measured: measured kernel times, if any.
        notes: caveats about the figures.
        changes: changes that would save time, the largest saving first; empty if no cost model is available.
        cost_model: prices the plan's parts; None if none is available.
    """

    name: str
    plan: Plan
    marginals: Marginals | None = None
    measured: MeasuredTimes | None = None
    notes: tuple[str, ...] = ()
    changes: tuple[Change, ...] = ()
    cost_model: CostModel | None = None

    @property
    def cost(self) -> PlanCost:
        """The plan's predicted cost."""
        assert self.plan.cost is not None
        return self.plan.cost


def entry_of(
    plan: Plan, name: str, *, cost_model: CostModel | None = None, measured: MeasuredTimes | None = None
) -> Entry:
    """Prepare a plan for a report.

    Args:
        plan: the plan; it is scored if it has no predicted cost.
        name: name of the plan in the report.
        cost_model: prices the tables' shares; by default the calibrated model that priced the plan, or the bundled one of its device.
        measured: measured kernel times.

    Raises:
        InvalidInput: the plan has no predicted cost, and there is no cost model for its device.
    """
    unlike = measured and not_comparable(plan.task.topology.device, measured.device)
    notes = [f"Kernels are {unlike}."] if unlike else []
    try:
        model = cost_model or model_behind(plan)
    except InvalidInput as error:
        if plan.cost is None:
            raise
        return Entry(name, plan, measured=measured, notes=(*notes, f"Shares of tables are left out. {error}"))
    if plan.cost is None:
        plan = scored(plan, model)
        notes.append(f"The plan held no predicted cost; it was scored with {model.name} for this report.")
    marginal = marginals(plan, model)
    assert plan.cost is not None
    again = float(marginal.times.max(axis=0).sum())
    if not math.isclose(again, plan.cost.step_ms, rel_tol=_SAME):
        notes.append(
            f"Shares of tables are by cost model {model.name}, which predicts a step of {again:.3f} ms for this plan; the plan states "
            f"{plan.cost.step_ms:.3f} ms by {plan.cost_model or 'an unnamed model'}. Name that model with --model."
        )
    return Entry(name, plan, marginal, measured, tuple(notes), priced_changes(plan, model, marginal), model)


def renamed(entries: Sequence[Entry]) -> list[Entry]:
    """The entries, with names made distinct: the second and later uses of a name get a number."""
    seen: Counter[str] = Counter()
    result = []
    for entry in entries:
        seen[entry.name] += 1
        count = seen[entry.name]
        result.append(entry if count == 1 else replace(entry, name=f"{entry.name} ({count})"))
    return result


def phase_ms(cost: PlanCost) -> list[list[float]]:
    """Times of the four phases: for each phase a list with the ms of every device."""
    return [[float(getattr(device, phase)) for device in cost.devices] for phase in PHASES]
