"""From a problem to a sharding plan: tables in host memory where devices are short of it, then the search."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from torchrec.distributed.planner.types import PlannerError, PlannerErrorType
from torchrec.distributed.types import ShardingPlan

from shardwright.cost.model import CostModel
from shardwright.errors import InfeasibleTask, InvalidPlan
from shardwright.integrations.torchrec.caching import cached_within, demanded, held_bytes
from shardwright.integrations.torchrec.conversion import KernelChoice, runnable, sharding_plan_of
from shardwright.integrations.torchrec.host_sync import with_host_sync
from shardwright.integrations.torchrec.moved import ssd_bytes
from shardwright.integrations.torchrec.off_device import KEY_VALUE, STORES
from shardwright.integrations.torchrec.problem import TorchRecProblem
from shardwright.integrations.torchrec.search_task import search_task
from shardwright.search.solve import plan as find_plan
from shardwright.search.strategy import Strategy
from shardwright.sharding.plan import Plan
from shardwright.task.units import format_bytes

_FILLS = (0.95, 0.85, 0.7, 0.5, 0.0)
"""Parts of the memory of all devices that tables and caches may take, tried in turn: full devices may not be packable."""


@dataclass(frozen=True)
class Search:
    """How plans are found.

    Attributes:
        strategy: a strategy or its name.
        cost_model: prices shards.
        seed: of the search.
        limit: seconds that the search of a problem may take.
    """

    strategy: str | Strategy
    cost_model: CostModel
    seed: int
    limit: Callable[[TorchRecProblem], float]

    def run(self, problem: TorchRecProblem) -> tuple[Plan, ShardingPlan]:
        """The best plan found, and the same for TorchRec.

        Raises:
            PlannerError: there is none, or none was found.
        """
        binding: InfeasibleTask | None = None
        tried: list[dict[str, KernelChoice]] = []
        for choices in _kernels_to_try(problem):
            if choices in tried:
                continue
            tried.append(choices)
            for spread in (False, True) if any(choice.kernel == KEY_VALUE for choice in choices.values()) else (False,):
                try:
                    found = self._with(problem, choices, spread)
                    result = sharding_plan_of(found, problem, choices)
                    _check_ssd(result, problem)
                    return found, result
                except InfeasibleTask as error:
                    binding = binding or error
                except InvalidPlan as error:
                    raise PlannerError(str(error), PlannerErrorType.OTHER) from error
        raise _no_plan(problem, binding) from binding

    def _with(self, problem: TorchRecProblem, choices: dict[str, KernelChoice], spread: bool) -> Plan:
        searched = search_task(problem, choices, spread=spread)
        found = find_plan(
            searched.task,
            strategy=self.strategy,
            cost_model=self.cost_model,
            seed=self.seed,
            time_limit=self.limit(problem),
            runs_on="torchrec",
        )
        result = with_host_sync(runnable(searched.answer(found, problem), problem), problem, choices)
        if not choices:
            result.check()
        return result


def _kernels_to_try(problem: TorchRecProblem) -> Iterator[dict[str, KernelChoice]]:
    """First as few tables in host memory as the constraints demand, if that can fit at all; then more and more.

    After that the same with tables of key-value stores whole, as each of their shards takes a cache.
    """
    forced = demanded(problem)
    held = sum(held_bytes(problem.task, table) for table in problem.task.tables if table.name not in forced)
    for whole in (False, True):
        if held <= sum(problem.task.topology.memory_bytes):
            yield cached_within(problem, _FILLS[0], whole=whole) if forced else {}
        for fill in _FILLS:
            yield cached_within(problem, fill, whole=whole)


def _check_ssd(plan: ShardingPlan, problem: TorchRecProblem) -> None:
    """Check that no rank's SSD holds more than it has room for.

    Raises:
        InfeasibleTask: one does.
    """
    for rank, (needed, device) in enumerate(zip(ssd_bytes(plan, problem), problem.reserved.devices, strict=True)):
        if needed > device.storage.ssd:
            raise InfeasibleTask(
                f"rank {rank} needs {format_bytes(needed)} of SSD for its key_value tables and has {format_bytes(device.storage.ssd)}: "
                "allow them row_wise or column_wise sharding, or set a larger ssd_cap"
            )


def _no_plan(problem: TorchRecProblem, binding: InfeasibleTask | None) -> PlannerError:
    """TorchRec's error, of the kind that TorchRec gives it: storage where the tables are larger than all devices together."""
    task = problem.task
    stored = {name for name, choice in demanded(problem).items() if choice.kernel in STORES}
    need = sum(held_bytes(task, table) for table in task.tables if table.name not in stored)
    room = sum(task.topology.memory_bytes)
    why = str(binding) if binding else "the tables need more memory than all devices have"
    figures = (
        f"{len(task.tables) - len(stored)} tables need {format_bytes(need)} with optimizer state, {task.topology.devices} devices have "
        f"{format_bytes(room)} for them after the storage reservation, batch size {problem.batch_size} on each rank"
    )
    kind = PlannerErrorType.INSUFFICIENT_STORAGE if need > room else PlannerErrorType.STRICT_CONSTRAINTS
    what = "insufficient storage" if need > room else "the strict constraints"
    return PlannerError(f"unable to find a plan for this model because of {what}: {why} ({figures})", kind)
