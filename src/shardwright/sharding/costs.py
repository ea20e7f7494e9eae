"""Predicted costs of a plan per device, the scopes of its bound, and its measured times.

This module holds pure data; the cost models compute it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np

from shardwright.arrays import Floats
from shardwright.errors import InvalidPlan

PHASES = ("forward_ms", "forward_communication_ms", "backward_communication_ms", "backward_ms")
"""The four phases of a step, in the order used everywhere, the native engine included."""
KERNELS, LINKS = slice(0, 4, 3), slice(1, 3)
"""Slices of `PHASES`: the kernel phases and the collective phases, each with forward first."""

BoundScope: TypeAlias = Literal["torchrec", "torchrec_wide", "blocks", "wide", "all", "links"]
BOUND_SCOPES: dict[str, str] = {
    "torchrec": "over all plans that TorchRec trains",
    "torchrec_wide": "over all plans that TorchRec trains in column blocks of at least 32 columns",
    "blocks": "over all plans but unequal grids, replicas on some devices, blocks finer than 4 columns or a sixteenth of the rows",
    "wide": "over all plans but unequal grids, replicas on some devices, blocks finer than 32 columns or a sixteenth of the rows",
    "all": "over all plans, tiers and replicas included",
    "links": "over all plans, tiers and replicas included, of the links alone",
}
"""The plans for which a proven bound holds, by scope. The proofs are in `search.bound` and `search.flexshard.bound`."""

SearchEnd: TypeAlias = Literal["proven", "settled", "deadline", "interrupted"]
SEARCH_ENDS: dict[str, str] = {
    "proven": "the plan was proven good enough",
    "settled": "no better plan was found for a while",
    "deadline": "time was up",
    "interrupted": "it was interrupted",
}
"""Why a search ended."""

_DRAWS = 1000  # of errors; each also counts with the other sign


def expected_slowest(ms: Floats, error: float) -> float:
    """Mean time of the slowest device, if the times of the devices have independent normal errors.

    The slowest of equal devices is the one with the largest error, so the mean is longer than the longest time.

    Args:
        ms: `(devices,)` times.
        error: standard deviation of the errors, as a share of the time.
    """
    drawn = error * np.random.default_rng(0).standard_normal((_DRAWS, ms.size))
    return float(np.mean([(ms * (1 + drawn)).max(axis=1), (ms * (1 - drawn)).max(axis=1)]))


@dataclass(frozen=True)
class DeviceCost:
    """Cost and memory of one device in one step of a plan.

    Attributes:
        rank: rank of the device.
        forward_ms: fused forward lookup.
        forward_communication_ms: collectives of the forward pass.
        backward_communication_ms: collectives of the backward pass.
        backward_ms: fused backward, optimizer included.
        memory_bytes: weights, optimizer state and buffers.
    """

    rank: int
    forward_ms: float
    forward_communication_ms: float
    backward_communication_ms: float
    backward_ms: float
    memory_bytes: int

    @property
    def compute_ms(self) -> float:
        """Time of the forward and backward kernels."""
        return self.forward_ms + self.backward_ms

    @property
    def total_ms(self) -> float:
        """Sum of all four phases."""
        return _sum_of_phases(
            self.forward_ms, self.forward_communication_ms, self.backward_communication_ms, self.backward_ms
        )


@dataclass(frozen=True)
class PlanCost:
    """Predicted cost of a plan.

    Attributes:
        devices: `(devices,)` costs in order of rank.
    """

    devices: tuple[DeviceCost, ...]

    def __repr__(self) -> str:
        return f"<PlanCost: step {self.step_ms:.3f} ms, embedding cost {self.embedding_cost_ms:.3f} ms, {len(self.devices)} devices>"

    @property
    def step_ms(self) -> float:
        """Sum over the four phases of the slowest device's time: collectives wait for the slowest device."""
        return _sum_of_phases(*(max(float(getattr(device, phase)) for device in self.devices) for phase in PHASES))

    @property
    def embedding_cost_ms(self) -> float:
        """Maximum over devices of the sum of the four phases, as the papers define it; never above `step_ms`."""
        return max(device.total_ms for device in self.devices)

    @property
    def compute_ms(self) -> float:
        """Slowest forward plus slowest backward kernel: the part of a step that runs without any link."""
        return max(device.forward_ms for device in self.devices) + max(device.backward_ms for device in self.devices)

    def expected_compute_ms(self, mean_error: float) -> float:
        """`compute_ms` as kernels will take it on average, if predictions are off by `mean_error` (mean absolute, as a share)."""
        kernels = np.array([(device.forward_ms, device.backward_ms) for device in self.devices])
        return sum(expected_slowest(ms, math.sqrt(math.pi / 2) * mean_error) for ms in kernels.T)


def _sum_of_phases(
    forward: float, forward_communication: float, backward_communication: float, backward: float
) -> float:
    # Steps and devices add in one order: a rounded sum depends on the order, and in a fixed order it never falls when a term grows.
    # (From Python 3.12 on, `sum` rounds differently and does not promise that.)
    return forward + forward_communication + backward_communication + backward


@dataclass(frozen=True)
class Trial:
    """A plan that was measured.

    Attributes:
        round: 0 for plans that a search found before anything was measured, then 1, 2, …
        name: origin of the plan, such as "certified" or "2 moves".
        promised_ms: step predicted when the plan was chosen.
        measured_ms: measured step.
        accepted: whether the plan became the best one.
    """

    round: int
    name: str
    promised_ms: float
    measured_ms: float
    accepted: bool


@dataclass(frozen=True)
class Tuning:
    """The measured step of a plan, and how tuning found the plan.

    The kernels of all devices are measured. Links and the synchronisation of sharding groups are predicted.

    Attributes:
        measured_ms: step of the plan.
        interval_ms: 95% interval of `measured_ms`, from repeated visits.
        first_ms: step of the plan that planning alone finds, measured in the same rounds.
        first_interval_ms: 95% interval of `first_ms`.
        floor_ms: step under perfect balance: the smallest total over all devices of any measured plan, divided by the number of devices.
        forward_ms: measured forward kernels of each device.
        backward_ms: measured backward kernels of each device.
        history: all measured plans.
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
        """(step − floor) / floor."""
        return self.measured_ms / self.floor_ms - 1 if self.floor_ms > 0 else 0.0

    def check(self, devices: int) -> None:
        """Check the rules for a tuning read from a file that types cannot express.

        Raises:
            InvalidPlan: an interval is not in order, there is not one time for each device, or a name is not printable.
        """
        for name in ("interval_ms", "first_interval_ms"):
            low, high = getattr(self, name)
            if low > high:
                raise InvalidPlan(f"tuning.{name} is [{low}, {high}], must be two times in order; tune again")
        for name in ("forward_ms", "backward_ms"):
            if (times := len(getattr(self, name))) != devices:
                raise InvalidPlan(
                    f"tuning.{name} has {times} times, must have one for each of {devices} devices; tune again"
                )
        for number, trial in enumerate(self.history):
            if not trial.name.isprintable():
                raise InvalidPlan(
                    f"tuning.history[{number}].name is {trial.name!r}, must be printable text; tune again"
                )
