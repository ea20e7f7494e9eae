"""Measure plans with one process a rank on this machine, watched and ended, or with the ranks that torchrun started."""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from statistics import median

import msgspec

from shardwright.cost.choice import model_behind
from shardwright.cost.score import score
from shardwright.errors import InvalidInput, MeasurementFailed
from shardwright.hardware import available_memory
from shardwright.integrations.torchrec.steps.rank import RankReport, Rounds, prepared, run_rounds
from shardwright.measure.collectives.group import GroupFailed, GroupOptions, RankGroup
from shardwright.measure.collectives.rank import Member, PlaceInGroup, group_backend, joined_group
from shardwright.sharding.costs import PlanCost
from shardwright.sharding.files import plan_to_dict
from shardwright.sharding.plan import Plan
from shardwright.task.quantities import format_bytes

STEP = "step"
PHASES = {
    "forward kernel": ("forward_ms", ("lookup_ms",)),
    "forward communication": ("forward_communication_ms", ("input_dist_ms", "output_dist_ms")),
    "backward communication": ("backward_communication_ms", ("gradient_dist_ms",)),
    "backward kernel": ("backward_ms", ("backward_ms",)),
}
"""The phases of a predicted step: a device's time in `DeviceCost`, and the parts of a measured step that the phase holds."""

_RANK = "import os, sys; os.environ['GLIBC_TUNABLES'] = {!r}; os.execv({!r}, [{!r}, '-m', {!r}, sys.argv[1]])"
_PROCESS_BYTES = 600 * 2**20  # torch, FBGEMM and TorchRec in one process
_START_S = 120.0
_MORE_TIME = "allow more time with --timeout of verify or --minutes of tune"


def rank_program() -> tuple[str, ...]:
    """Arguments of Python that run a rank, without the huge pages of other measuring processes, since trainings use none."""
    tunables, module = os.environ.get("GLIBC_TUNABLES", ""), "shardwright.integrations.torchrec.steps.rank"
    return ("-c", _RANK.format(tunables, sys.executable, sys.executable, module))


@dataclass(frozen=True)
class Steps:
    """A plan that was trained.

    Attributes:
        plan: the plan.
        reports: measurements of the ranks, by round and rank.
    """

    plan: Plan
    reports: Sequence[Sequence[RankReport]]

    @property
    def step_ms(self) -> float:
        """Time of a step: the median over rounds."""
        return self.measured(STEP)

    @property
    def spread(self) -> float:
        """Largest step of a round less the smallest one, relative to the median: the difference between two measurements of this plan."""
        steps = self.rounds(STEP)
        return (max(steps) - min(steps)) / self.step_ms

    def rounds(self, phase: str) -> list[float]:
        """Ms of a step, or of one of `PHASES`, in each round: the median over its steps of the slowest rank."""
        return [
            median(max(of_step) for of_step in zip(*(_times(report, phase) for report in ranks), strict=True))
            for ranks in self.reports
        ]

    def measured(self, phase: str) -> float:
        """Ms of a step, or of one of `PHASES`: the median over rounds."""
        return median(self.rounds(phase))

    def predicted(self, phase: str) -> float | None:
        """Predicted ms of a step, or of one of `PHASES`; None if the plan has no cost."""
        cost = self._cost
        if cost is None:
            return None
        return cost.step_ms if phase == STEP else max(getattr(device, PHASES[phase][0]) for device in cost.devices)

    @cached_property
    def _cost(self) -> PlanCost | None:
        """The plan's cost without hidden traffic, since the trainings have no pipeline and hardly any dense layers."""
        plan, exchange = self.plan, self.plan.task.exchange
        if plan.cost is None or not exchange.hidden.total_ms:
            return plan.cost
        bare = replace(plan.task, exchange=replace(exchange, dense_ms=0.0))
        return score(bare, plan.shards, model_behind(plan))


Measure = Callable[[Sequence[Plan], Rounds], list[Steps]]
"""Measures plans on ranks that are kept between calls."""


def _times(report: RankReport, phase: str) -> list[float]:
    """A rank's ms of a phase in each step of a round."""
    if phase == STEP:
        return report.step_ms
    return [sum(of_step) for of_step in zip(*(report.phases[part] for part in PHASES[phase][1]), strict=True)]


def run_here(
    plans: Sequence[Plan],
    rounds: Rounds | None = None,
    *,
    device: str = "cpu",
    timeout_s: float = 300.0,
    program: tuple[str, ...] | None = None,
) -> list[Steps]:
    """Measure steps, one process of this machine a rank; batches are drawn by the tasks' access profiles.

    `DistributedModelParallel` trains the plans that TorchRec runs, and `shardwright.runtime` the others.

    Args:
        plans: plans for equally many devices; ranks share hosts as in their topologies.
        rounds: numbers of rounds and steps.
        device: "cpu" (gloo) or "cuda" (NCCL, one GPU a rank).
        timeout_s: longest time of the rounds, once the processes have started.
        program: arguments of Python that run a rank.

    Raises:
        InvalidInput: an option is out of range.
        InvalidPlan: neither TorchRec nor `shardwright.runtime` runs a plan.
        MeasurementFailed: a rank ended or hung, or this machine lacks memory or GPUs.
    """
    (world,) = {plan.task.topology.devices for plan in plans}
    with ranks(plans, world, None, device=device, timeout_s=timeout_s, program=program) as measure:
        return measure(plans, rounds or Rounds())


@contextmanager
def ranks(
    plans: Sequence[Plan],
    world: int,
    place: PlaceInGroup | None,
    *,
    device: str = "cpu",
    timeout_s: float = 300.0,
    program: tuple[str, ...] | None = None,
) -> Iterator[Measure]:
    """Ranks that measure plans as often as they are asked: processes of this machine, or the ranks that torchrun started.

    Under torchrun, every rank calls this and measures the plans of rank 0, as often as rank 0 does; all ranks get the result.

    Args:
        plans: the plans that will be measured, which are checked before any process starts; those of other ranks than 0 do not count.
        world: devices that the plans are for.
        place: place of this rank in the group that torchrun started; None to start processes here, see `run_here`.
        device: "cpu" (gloo) or "cuda" (NCCL).
        timeout_s: longest time of one call.
        program: arguments of Python that run a rank.

    Raises:
        InvalidInput: an option is out of range, or the group has another number of ranks.
        InvalidPlan: neither TorchRec nor `shardwright.runtime` runs a plan.
        MeasurementFailed: a rank ended or hung, or this machine lacks memory or GPUs.
    """
    _check(plans, device, timeout_s)
    if place is not None and place.world != world:
        raise InvalidInput(
            f"the plan is for {world} devices, and torchrun started {place.world} ranks; start as many ranks as devices, or plan anew"
        )
    if place is None:
        _check_memory(plans, device)
        started = _processes(world, device, timeout_s, program or rank_program())
    else:
        started = _of_torchrun(place, device, timeout_s)
    with started as measure:
        yield measure


@contextmanager
def _processes(world: int, device: str, timeout_s: float, program: tuple[str, ...]) -> Iterator[Measure]:
    def measure(plans: Sequence[Plan], rounds: Rounds) -> list[Steps]:
        with tempfile.TemporaryDirectory(prefix="shardwright-") as folder:
            files = [Path(folder) / f"plan-{number}.json" for number in range(len(plans))]
            for plan, file in zip(plans, files, strict=True):
                plan.save(file)
            request = {"plans": list(map(str, files)), "rounds": msgspec.to_builtins(rounds)}
            reply = group.ask(request, "to run the plan")
        reports = msgspec.convert(reply["reports"], list[list[list[RankReport]]])
        return [Steps(plan, of_plan) for plan, of_plan in zip(plans, reports, strict=True)]

    start_s = _START_S + 5 * world
    options = GroupOptions(world, device=device, timeout_s=timeout_s, start_timeout_s=start_s, program=program)
    try:
        with RankGroup(options) as group:
            yield measure
    except GroupFailed as error:
        raise MeasurementFailed(
            f"the ranks did not run the plan: {error}; {_MORE_TIME}, or look at the rank named"
        ) from error


@contextmanager
def _of_torchrun(place: PlaceInGroup, device: str, timeout_s: float) -> Iterator[Measure]:
    def measure(plans: Sequence[Plan], rounds: Rounds) -> list[Steps]:
        shared = _of_rank_0(plans, member)
        return [Steps(plan, of_plan) for plan, of_plan in zip(shared, run_rounds(shared, rounds, member), strict=True)]

    try:
        with joined_group(device, place, timeout_s) as member:
            yield measure
    except RuntimeError as error:  # raised by torch.distributed if another rank ended or does not answer
        first = str(error).splitlines()[0]
        raise MeasurementFailed(
            f"rank {place.rank} did not run the plan: {first}; look at the output of the other ranks, or {_MORE_TIME}"
        ) from error


def _of_rank_0(plans: Sequence[Plan], member: Member) -> list[Plan]:
    """The plans that rank 0 passes, on every rank."""
    text = member.texts(json.dumps([plan_to_dict(plan) for plan in plans]).encode())[0]
    with tempfile.TemporaryDirectory(prefix="shardwright-") as folder:
        file, received = Path(folder) / "plan.json", []
        for document in json.loads(text):
            file.write_text(json.dumps(document))
            received.append(Plan.load(file))
        return received


def _check(plans: Sequence[Plan], device: str, timeout_s: float) -> None:
    """Make the checks that need no process."""
    group_backend(device)  # raises for other devices
    if not 0 < timeout_s < float("inf"):
        raise InvalidInput(f"timeout is {timeout_s} s, must be a finite number above 0")
    for plan in plans:
        prepared(plan, device)  # raises here rather than in every rank


def _check_memory(plans: Sequence[Plan], device: str) -> None:
    """Check that all ranks together fit this machine's memory."""
    world = plans[0].task.topology.devices
    tables = max(int(plan.memory.total.sum()) for plan in plans) if device == "cpu" else 0
    needed, free = world * _PROCESS_BYTES + tables, available_memory()
    if needed > free:
        raise MeasurementFailed(
            f"{world} ranks with the plan's tables need {format_bytes(needed)} of memory, this machine has {format_bytes(free)} free; "
            "scale the tables down, plan for fewer devices, or run it on a machine with more memory"
        )
