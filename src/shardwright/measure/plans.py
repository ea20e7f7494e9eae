"""What plans cost on this machine: the fused kernels of each device's shards, one device after another.

Plans are compared, so their measurements are interleaved: in each round every device of every plan is rebuilt and measured once, in
random order. A slow minute of the machine then touches all plans alike. A device's time is its shortest over the rounds on a CPU, and
their median on a GPU.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from shardwright.errors import InvalidInput, MeasurementFailed
from shardwright.measure.backends import check_backend, default_backend
from shardwright.measure.device_work import DeviceWork, arena_bytes, device_works
from shardwright.measure.hardware import available_memory
from shardwright.measure.printer import Progress
from shardwright.measure.timing import TimingPolicy
from shardwright.measure.worker_client import Worker, WorkerOptions
from shardwright.sharding.plan import Plan
from shardwright.task.units import format_bytes

Floats: TypeAlias = npt.NDArray[np.float64]

_SLACK_BYTES = 256 * 2**20  # sentinel, buffers of torch, and what else the process needs


@dataclass(frozen=True, eq=False)
class MeasuredPlan:
    """Measured compute times of a plan.

    Attributes:
        plan: the plan.
        forward_ms: `(devices,)` lookups of each device's shards.
        backward_ms: `(devices,)` backward of the same, optimizer included.
        rounds: how often each device was measured.
    """

    plan: Plan
    forward_ms: Floats
    backward_ms: Floats
    rounds: int

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
        rounds: how often each device's work is rebuilt and measured.
        seed: seed of the lookups and of the order.
        device: "cpu" or "cuda".
        backend: "fbgemm", "embedding_bag", or one's own as "package.module:ClassName"; by default fbgemm where it is installed.
        policy: how often to repeat within a round; by default the device's own, shortened as rounds repeat it anyway.
        progress: called before each measurement, and after the last, with those done, those wanted, and what is measured.

    Returns:
        One result per plan, in order.

    Raises:
        InvalidInput: `rounds` is less than 1, or there is no such backend.
        MeasurementFailed: a device's shards do not fit this machine's memory, or a kernel cannot run.
    """
    if rounds < 1:
        raise InvalidInput(f"rounds is {rounds}, must be at least 1")
    if device not in ("cpu", "cuda"):
        raise InvalidInput(f"device is {device!r}, must be 'cpu' or 'cuda'")
    backend = backend or default_backend()
    check_backend(backend)
    per_plan = [device_works(plan, seed) for plan in plans]
    distinct = list(dict.fromkeys(work for works in per_plan for work in works if work.works))
    if device == "cpu":
        check_memory(distinct)
    options = WorkerOptions(device, backend, arena_bytes(distinct), policy or short_policy(device))
    times = _measure_distinct(distinct, rounds, seed, options, progress) if distinct else {}
    return [_measured(plan, works, times, rounds) for plan, works in zip(plans, per_plan, strict=True)]


def _measure_distinct(
    distinct: Sequence[DeviceWork], rounds: int, seed: int, options: WorkerOptions, progress: Progress | None
) -> dict[DeviceWork, Floats]:
    """The `(2,)` forward and backward time of each work over the rounds, each round in a new random order."""
    runs: dict[DeviceWork, list[tuple[float, float]]] = {work: [] for work in distinct}
    rng = np.random.default_rng(seed)
    total, tell = rounds * len(distinct), progress or (lambda *_: None)
    tell(0, total, "starting the measuring process")
    with Worker(options) as worker:
        for number in range(rounds):
            for position, index in enumerate(rng.permutation(len(distinct))):
                what = f"device {position + 1} of {len(distinct)}, round {number + 1} of {rounds}"
                tell(number * len(distinct) + position, total, what)
                work = distinct[index]
                result = worker.measure(work.works, work.seeds, work.optimizer)
                runs[work].append((result.forward_ms, result.backward_ms))
    tell(total, total, "")
    return {work: over_rounds(times, options.device) for work, times in runs.items()}


def over_rounds(times: Sequence[Sequence[float]], device: str) -> Floats:
    """`(2,)` forward and backward ms of a device's work from those of `(rounds, 2)` rounds."""
    return np.min(times, axis=0) if device == "cpu" else np.median(times, axis=0)


def _measured(plan: Plan, works: Sequence[DeviceWork], found: dict[DeviceWork, Floats], rounds: int) -> MeasuredPlan:
    times = np.array([found[work] if work.works else np.zeros(2) for work in works])
    return MeasuredPlan(plan, times[:, 0], times[:, 1], rounds)


def short_policy(device: str) -> TimingPolicy:
    """How often a work is run within a round: less often than a sample, as rounds repeat it anyway."""
    base = TimingPolicy.of(device)
    return TimingPolicy(base.statistic, warm_up=2, min_runs=5, max_runs=base.max_runs, precision=base.precision)


def check_memory(distinct: Sequence[DeviceWork]) -> None:
    """Check that the largest device's tables and batch fit this machine's memory.

    Raises:
        MeasurementFailed: they do not.
    """
    needed = max((work.table_bytes + work.buffer_bytes for work in distinct), default=0) + _SLACK_BYTES
    free = available_memory()
    if needed > free:
        raise MeasurementFailed(
            f"the largest device of the plans needs {format_bytes(needed)} of memory, this machine has {format_bytes(free)} free; "
            "scale the tables down, or measure on a machine with more memory"
        )
