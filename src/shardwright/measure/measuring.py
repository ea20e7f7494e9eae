"""Measured times of works and plans: each is visited in rounds, in a new random order each round, with controls among them.

A slow minute of the machine thus affects all works equally.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from time import monotonic
from typing import TYPE_CHECKING

import numpy as np

from shardwright.arrays import Floats
from shardwright.errors import InvalidInput
from shardwright.hardware import check_device
from shardwright.measure.campaign import BETWEEN_CONTROLS, Campaign
from shardwright.measure.device_work import DeviceWork, arena_bytes, device_works
from shardwright.measure.measurer import Measurer, check_memory
from shardwright.measure.timing import TimingPolicy
from shardwright.measure.visits import Controls, Progress, control_works, standard_error, visit_noise
from shardwright.sharding.costs import expected_slowest
from shardwright.sharding.plan import Plan

if TYPE_CHECKING:
    from shardwright.measure.remote import Fleet


def measure_works(
    works: Sequence[DeviceWork],
    *,
    rounds: int = 1,
    seconds: float = math.inf,
    seed: int = 0,
    device: str = "cpu",
    backend: str | None = None,
    policy: TimingPolicy | None = None,
    progress: Progress | None = None,
    fleet: Fleet | None = None,
) -> Campaign:
    """Visit works and controls in rounds, each in a new random order.

    Args:
        works: the works. Equal works are visited once a round, and works without shards not at all.
        rounds: quiet visits to each work. A disturbed work is visited again at the end of its round.
        seconds: no new round begins after this time.
        seed: seed of the order.
        device: "cpu" or "cuda".
        backend: see `Measurer`.
        policy: see `Measurer`.
        progress: called before each visit and after the last, with the visits done, the visits wanted, and the name of the work.
        fleet: visits the works instead of a process of this machine.

    Returns:
        The finished campaign: `Campaign.time` has the time of a work, `Campaign.of_controls` those of the controls in the same period.

    Raises:
        InvalidInput: `rounds` is less than 1, or there is no such device or backend.
        MeasurementFailed: a work does not fit this machine's memory, or a kernel cannot run.
    """
    if rounds < 1:
        raise InvalidInput(f"rounds is {rounds}, must be at least 1")
    check_device(device)
    distinct = list(dict.fromkeys(work for work in works if work.works))
    controls = control_works(device, distinct[0].optimizer) if distinct else ()
    everything = (*distinct, *controls)
    if device == "cpu" and fleet is None:
        check_memory(everything)
    size = len(distinct) + len(controls) * math.ceil(len(distinct) / BETWEEN_CONTROLS)  # of a round
    stop_at, rng = monotonic() + seconds, np.random.default_rng(seed)
    tell = progress or (lambda *_: None)
    total, number, done = rounds * size, 0, 0
    tell(0, total, "starting the measuring process")

    def told() -> None:
        nonlocal done
        done = min(done + 1, size)
        tell(number * size + done - 1, total, f"device {done} of {size}, round {number + 1} of {rounds}")

    room = arena_bytes(everything)
    largest = max(everything, key=lambda work: work.table_bytes + work.buffer_bytes, default=None)
    with nullcontext(fleet.visitor(room, largest)) if fleet else Measurer(device, backend, room, policy) as visitor:
        campaign = Campaign(visitor, controls, told=told, most_failed=1)
        for number in range(rounds):
            if number and monotonic() >= stop_at:
                break
            done = 0
            campaign.visit_rounds(everything, [number + 1], rng)
    tell(total, total, "")
    return campaign


@dataclass(frozen=True, eq=False)
class MeasuredPlan:
    """Measured compute times of a plan.

    Attributes:
        plan: the plan.
        forward_ms: `(devices,)` ms of the lookups of each device's shards.
        backward_ms: `(devices,)` ms of their backward pass, optimizer included.
        rounds: how often each device was measured.
        controls: times of the controls in the same period.
        noise: standard errors of a device's forward and backward ms, as shares.
    """

    plan: Plan
    forward_ms: Floats
    backward_ms: Floats
    rounds: int
    controls: Controls = field(default_factory=Controls)
    noise: tuple[float, float] = (0.0, 0.0)

    @property
    def compute_ms(self) -> float:
        """Compute ms of a step: devices wait for each other after forward and after backward."""
        return float(self.forward_ms.max() + self.backward_ms.max())

    @property
    def device_ms(self) -> Floats:
        """`(devices,)` forward + backward ms."""
        return self.forward_ms + self.backward_ms

    @property
    def excess(self) -> float:
        """The share by which `compute_ms` is expected to be too long: the slowest of equal devices is the one with most noise."""
        return sum(map(expected_slowest, (self.forward_ms, self.backward_ms), self.noise)) / self.compute_ms - 1


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
    fleet: Fleet | None = None,
) -> list[MeasuredPlan]:
    """Measure the fused kernels of each device of each plan on this machine.

    The lookups of a table are the same in all plans. Collectives are not measured, since each device in turn has this machine to itself.

    Args:
        plans: plans to compare; their tasks may differ.
        rounds: how often each device's work is rebuilt and measured while the machine is quiet.
        seconds: no new round begins after this time.
        seed: seed of the lookups and of the order.
        device: "cpu" or "cuda".
        backend: see `Measurer`.
        policy: see `Measurer`.
        progress: see `measure_works`.
        fleet: see `measure_works`.

    Returns:
        One result per plan, in order.

    Raises:
        InvalidInput: `rounds` is less than 1, or there is no such backend.
        MeasurementFailed: a device's shards do not fit this machine's memory, or a kernel cannot run.
    """
    per_plan = [device_works(plan, seed) for plan in plans]
    campaign = measure_works(
        [work for works in per_plan for work in works],
        rounds=rounds,
        seconds=seconds,
        seed=seed,
        device=device,
        backend=backend,
        policy=policy,
        progress=progress,
        fleet=fleet,
    )
    of_plans = [visits for work, visits in campaign.visits.items() if work not in campaign.controls]
    noise, controls = standard_error(visit_noise(of_plans), rounds), campaign.of_controls()
    measured = []
    for plan, works in zip(plans, per_plan, strict=True):
        forward, backward = np.array([campaign.time(work) for work in works]).T
        measured.append(MeasuredPlan(plan, forward, backward, rounds, controls, (noise[0], noise[1])))
    return measured


class Printer:
    """Prints progress on standard error, once a second; needs only the measuring packages."""

    def __init__(self) -> None:
        self._first: tuple[int, float] | None = None
        self._printed, self._width = 0.0, 0

    def __call__(self, done: int, wanted: int, detail: str = "") -> None:
        """Print the number of measurements made and wanted."""
        now = monotonic()
        if self._first is None:
            self._first = (done, now)
        if done == wanted or now - self._printed >= 1:
            rate = (done - self._first[0]) / max(now - self._first[1], 1e-9)
            line = f"{done}/{wanted} measured, {rate:.1f} a second{detail and f'; {detail}'}"
            print(f"\r{line:{self._width}}", end="", file=sys.stderr, flush=True)
            self._printed, self._width = now, len(line)
