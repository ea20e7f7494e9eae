"""Measured kernel times of a plan, as `shardwright verify PLAN --json` prints them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np

from shardwright.errors import InvalidInput
from shardwright.files import MAX_VALUES, read_text
from shardwright.schema import Place, convert
from shardwright.sharding.plan import Plan

_CLOSE = 1e-9  # predicted times of a plan file and of its measurement are the same floats


class _Device(msgspec.Struct):
    rank: int
    measured_forward_ms: float
    measured_backward_ms: float
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
        device: type of the device they were measured on, as topologies name it; None if unknown.
    """

    forward_ms: tuple[float, ...]
    backward_ms: tuple[float, ...]
    device: str | None = None

    @property
    def compute_ms(self) -> float:
        """Slowest forward plus slowest backward kernel."""
        return max(self.forward_ms) + max(self.backward_ms)


def not_comparable(predicted_for: str, measured_on: str | None) -> str | None:
    """What to say in place of relative differences where times are of two types of devices; None where they are of one."""
    if measured_on in (None, predicted_for):
        return None
    return f"predicted for {predicted_for}, measured on {measured_on}: the times differ because the devices do"


def read_measured(path: str | Path, plan: Plan) -> MeasuredTimes:
    """Read a measurement and check that it is of this plan.

    Args:
        path: what `shardwright verify PLAN --json` printed.
        plan: the plan it should be of.

    Raises:
        InvalidInput: the file cannot be read, is no measurement, or was made of another plan.
    """
    from shardwright.documents.json_text import parse_json

    document = parse_json(read_text(path, "measurement"), str(path), MAX_VALUES)
    if not isinstance(document, dict) or "devices" not in document:
        raise InvalidInput(
            f"{path}: holds no kernel times of devices; name what 'shardwright verify PLAN --json' printed, without other options"
        )
    content = convert(document, _Verified, Place(str(path)))
    devices = content.devices
    if [device.rank for device in devices] != list(range(plan.task.topology.devices)):
        raise InvalidInput(
            f"{path}: lists {len(devices)} devices, the plan has ranks 0 to {plan.task.topology.devices - 1}; "
            "measure this plan with: shardwright verify PLAN --json"
        )
    times = np.array([[device.measured_forward_ms, device.measured_backward_ms] for device in devices])
    if (times < 0).any():
        raise InvalidInput(
            f"{path}: measured times must not be negative; measure again with: shardwright verify PLAN --json"
        )
    _check_predictions(path, devices, plan)
    forward, backward = times.T.tolist()
    return MeasuredTimes(tuple(forward), tuple(backward), content.measured_on)


def _check_predictions(path: str | Path, devices: list[_Device], plan: Plan) -> None:
    """The predictions beside the measured times must be the plan's, where both have them."""
    for device, cost in zip(devices, plan.cost.devices if plan.cost else (), strict=bool(plan.cost)):
        pairs = (
            ("forward", device.predicted_forward_ms, cost.forward_ms),
            ("backward", device.predicted_backward_ms, cost.backward_ms),
        )
        for phase, found, expected in pairs:
            if found is not None and not math.isclose(found, expected, rel_tol=_CLOSE):
                raise InvalidInput(
                    f"{path}: device {device.rank} is predicted to take {found:g} ms {phase}, in the plan {expected:g} ms; it is a "
                    "measurement of another plan: measure this one with 'shardwright verify PLAN --json'"
                )
