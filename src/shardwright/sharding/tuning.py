"""What measuring a plan where it is to run came to: kept in the plan and in its file."""

from __future__ import annotations

import math
from dataclasses import dataclass

from shardwright.errors import InvalidPlan


@dataclass(frozen=True)
class Trial:
    """A plan that was measured.

    Attributes:
        round: 0 for the plans that searches found before anything was measured, then 1, 2, …
        name: where it came from, such as "certified" or "2 moves".
        promised_ms: step that was predicted when it was chosen.
        measured_ms: step that was measured.
        accepted: whether it became the best plan.
    """

    round: int
    name: str
    promised_ms: float
    measured_ms: float
    accepted: bool


@dataclass(frozen=True)
class Tuning:
    """A plan's step as measured, and how it was found.

    Measured are the kernels of all devices; links and the synchronisation of sharding groups are predicted.

    Attributes:
        measured_ms: step of the plan.
        interval_ms: 95% interval of it, from repeated visits.
        first_ms: step of the plan that planning alone finds, measured in the same rounds.
        first_interval_ms: 95% interval of that.
        floor_ms: the smallest total of any measured plan over all devices, divided by their number: what perfect balance would take.
        forward_ms: measured forward kernels of each device.
        backward_ms: measured backward kernels of each device.
        history: all plans that were measured.
    """

    measured_ms: float
    interval_ms: tuple[float, float]
    first_ms: float
    first_interval_ms: tuple[float, float]
    floor_ms: float
    forward_ms: tuple[float, ...]
    backward_ms: tuple[float, ...]
    history: tuple[Trial, ...] = ()

    @property
    def above_floor(self) -> float:
        """How far the step is above the floor, as a share of it."""
        return self.measured_ms / self.floor_ms - 1 if self.floor_ms > 0 else 0.0

    def check(self, devices: int) -> None:
        """Check what a file says.

        Raises:
            InvalidPlan: a figure is no time, or there is not one for each device.
        """
        for name in ("measured_ms", "first_ms", "floor_ms"):
            _check_ms(name, getattr(self, name))
        for name in ("interval_ms", "first_interval_ms"):
            low, high = getattr(self, name)
            _check_ms(name, low)
            _check_ms(name, high)
            if low > high:
                raise InvalidPlan(f"tuning.{name} is [{low}, {high}], must be two times in order; tune again")
        for name in ("forward_ms", "backward_ms"):
            times = getattr(self, name)
            if len(times) != devices:
                raise InvalidPlan(
                    f"tuning.{name} has {len(times)} times, must have one for each of {devices} devices; tune again"
                )
            for value in times:
                _check_ms(name, value)
        for number, trial in enumerate(self.history):
            _check_ms(f"history[{number}].promised_ms", trial.promised_ms)
            _check_ms(f"history[{number}].measured_ms", trial.measured_ms)
            if trial.round < 0 or not trial.name.isprintable():
                raise InvalidPlan(
                    f"tuning.history[{number}] is round {trial.round} of {trial.name!r}, must be a round of at least 0 and printable "
                    "text; tune again"
                )


def _check_ms(name: str, value: float) -> None:
    if not (math.isfinite(value) and 0 <= value <= 1e100):
        raise InvalidPlan(f"tuning.{name} is {value}, must be a finite number of ms of at least 0; tune again")
