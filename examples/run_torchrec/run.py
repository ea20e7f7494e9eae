"""Run a plan with one process per rank on this machine, watched and ended; returns measurements beside the plan's predictions."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import msgspec

from shardwright.errors import InvalidInput, MeasurementFailed
from shardwright.measure.collectives.group import GroupFailed, GroupOptions, RankGroup
from shardwright.measure.collectives.rank import group_backend
from shardwright.measure.hardware import available_memory
from shardwright.sharding.plan import Plan
from shardwright.task.units import format_bytes

from .records import RankReport, ReportFolder, RunRequest
from .sharded import planned

_PROGRAM = "import sys; sys.path.insert(0, {!r}); from run_torchrec.rank import serve; serve()"
RANK_PROGRAM = ("-c", _PROGRAM.format(str(Path(__file__).parents[1])))
_PROCESS_BYTES = 600 * 2**20  # torch, FBGEMM and TorchRec in one process
_START_S = 120.0


@dataclass(frozen=True)
class RunOptions:
    """Options of a run.

    Attributes:
        device: "cpu" (gloo) or "cuda" (NCCL, one GPU a rank).
        steps: number of timed steps.
        warm_up: number of steps before them.
        profiled: number of profiled steps after them.
        seed: seed of the batches.
        timeout_s: longest time the run may take once its processes have started.
        program: arguments of the Python interpreter that runs a rank.
    """

    device: str = "cpu"
    steps: int = 10
    warm_up: int = 3
    profiled: int = 5
    seed: int = 0
    timeout_s: float = 300.0
    program: tuple[str, ...] = RANK_PROGRAM

    def __post_init__(self) -> None:
        group_backend(self.device)  # raises for other devices
        if self.steps < 1 or self.profiled < 1 or self.warm_up < 1:
            raise InvalidInput(
                f"steps is {self.steps}, warm_up {self.warm_up}, profiled {self.profiled}; each must be at least 1"
            )
        if not 0 < self.timeout_s < float("inf"):
            raise InvalidInput(f"timeout is {self.timeout_s} s, must be a finite number above 0")


@dataclass(frozen=True)
class PlanRun:
    """A plan that TorchRec ran.

    Attributes:
        plan: the plan.
        ranks: measurements of each rank, in order.
    """

    plan: Plan
    ranks: tuple[RankReport, ...]

    @property
    def step_ms(self) -> float:
        """Time of the slowest rank, as the median over the steps."""
        slowest = [max(times) for times in zip(*(report.step_ms for report in self.ranks), strict=True)]
        return float(median(slowest))


def run_plan(plan: Plan, options: RunOptions | None = None, sharding_plan: Path | None = None) -> PlanRun:
    """Run `DistributedModelParallel` on a plan, with batches drawn from the access profiles of its task.

    Args:
        plan: the plan; its topology gives the number of ranks, and which of them share a host.
        options: options of the run.
        sharding_plan: a saved TorchRec plan of the task, to run instead of the plan's shards.

    Raises:
        InvalidPlan: TorchRec cannot run such blocks, or the saved plan is for other tables.
        MeasurementFailed: a rank ended or hung, or this machine lacks memory or GPUs.
    """
    options = options or RunOptions()
    planned(plan, options.device, sharding_plan)  # raises here rather than in every rank
    _check_memory(plan, options.device)
    world = plan.task.topology.devices
    group = GroupOptions(
        world,
        device=options.device,
        timeout_s=options.timeout_s,
        start_timeout_s=_START_S + 5 * world,
        program=options.program,
    )
    with tempfile.TemporaryDirectory(prefix="shardwright-") as folder:
        file = Path(folder) / "plan.json"
        plan.save(file)
        request = RunRequest(
            plan=str(file),
            sharding_plan=None if sharding_plan is None else str(sharding_plan.resolve()),
            steps=options.steps,
            warm_up=options.warm_up,
            profiled=options.profiled,
            seed=options.seed,
            folder=folder,
        )
        try:
            with RankGroup(group) as ranks:
                ranks.ask(msgspec.to_builtins(request), "to run the plan")
        except GroupFailed as error:
            raise MeasurementFailed(
                f"TorchRec did not run the plan: {error}; allow more time with --timeout, or look at the rank named"
            ) from error
        return PlanRun(plan, ReportFolder(Path(folder)).read(world))


def _check_memory(plan: Plan, device: str) -> None:
    """Check that all ranks together fit this machine's memory."""
    world = plan.task.topology.devices
    needed = world * _PROCESS_BYTES + (int(plan.memory.total.sum()) if device == "cpu" else 0)
    free = available_memory()
    if needed > free:
        raise MeasurementFailed(
            f"{world} ranks with the plan's tables need {format_bytes(needed)} of memory, this machine has {format_bytes(free)} free; "
            "scale the tables down, plan for fewer devices, or run it on a machine with more memory"
        )
