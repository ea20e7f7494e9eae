"""What plans cost on this machine: the fused kernels of each device's shards, one device after another.

Plans are compared, so the devices of all of them are visited in the same rounds (see `shardwright.measure.measuring`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from shardwright.measure.device_work import device_works
from shardwright.measure.measuring import Controls, measure_works
from shardwright.measure.printer import Progress
from shardwright.measure.timing import TimingPolicy
from shardwright.sharding.plan import Plan

Floats: TypeAlias = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class MeasuredPlan:
    """Measured compute times of a plan.

    Attributes:
        plan: the plan.
        forward_ms: `(devices,)` lookups of each device's shards.
        backward_ms: `(devices,)` backward of the same, optimizer included.
        rounds: how often each device was measured.
        controls: what the control sets took meanwhile.
    """

    plan: Plan
    forward_ms: Floats
    backward_ms: Floats
    rounds: int
    controls: Controls = field(default_factory=Controls)

    @property
    def compute_ms(self) -> float:
        """Compute time of a step: devices wait for each other after forward and after backward."""
        return float(self.forward_ms.max() + self.backward_ms.max())

    @property
    def device_ms(self) -> Floats:
        """`(devices,)` forward and backward time together."""
        return self.forward_ms + self.backward_ms


def measure_plans(
    plans: Sequence[Plan],
    *,
    rounds: int = 5,
    seconds: float = math.inf,
    seed: int = 0,
    device: str = "cpu",
    backend: str | None = None,
    policy: TimingPolicy | None = None,
    progress: Progress | None = None,
) -> list[MeasuredPlan]:
    """Measure the fused kernels of each device of each plan on this machine.

    The lookups of a table are the same in all plans. Collectives are not measured: every device in turn uses this machine alone.

    Args:
        plans: plans to compare; their tasks may differ.
        rounds: how often each device's work is rebuilt and measured while the machine is quiet.
        seconds: begin no further round after this time.
        seed: seed of the lookups and of the order.
        device: "cpu" or "cuda".
        backend: "fbgemm", "embedding_bag", or one's own as "package.module:ClassName"; by default fbgemm where it is installed.
        policy: how often batches are run; by default the device's own.
        progress: called before each measurement, and after the last, with those done, those wanted, and what is measured.

    Returns:
        One result per plan, in order.

    Raises:
        InvalidInput: `rounds` is less than 1, or there is no such backend.
        MeasurementFailed: a device's shards do not fit this machine's memory, or a kernel cannot run.
    """
    per_plan = [device_works(plan, seed) for plan in plans]
    found = measure_works(
        [work for works in per_plan for work in works],
        rounds=rounds,
        seconds=seconds,
        seed=seed,
        device=device,
        backend=backend,
        policy=policy,
        progress=progress,
    )
    measured = []
    for plan, works in zip(plans, per_plan, strict=True):
        forward, backward = np.array([found.times(work) for work in works]).T
        measured.append(MeasuredPlan(plan, forward, backward, rounds, found.controls))
    return measured
