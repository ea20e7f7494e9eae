"""The drop-in planner: TorchRec's constructor and methods, our search."""

from __future__ import annotations

import copy
import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from time import perf_counter
from typing import Any

import torch.distributed as dist
from torch import nn
from torchrec.distributed.planner.planners import EmbeddingPlannerBase, to_sharding_plan
from torchrec.distributed.planner.types import (
    Enumerator,
    ParameterConstraints,
    Partitioner,
    PerfModel,
    PlanDebugStats,
    PlanLoader,
    PlannerError,
    PlannerErrorType,
    Proposer,
    ShardingOption,
    Stats,
    StorageReservation,
    hash_sha256_str,
    hash_sha256_to_int,
)
from torchrec.distributed.planner.types import Topology as TorchRecTopology
from torchrec.distributed.sharding_plan import get_default_sharders
from torchrec.distributed.types import ShardingPlan, ShardingStrategy

from shardwright.cost.choice import resolve_cost_model
from shardwright.cost.model import CostModel
from shardwright.integrations.torchrec.checks import (
    check_process_group,
    check_ranks_assigned,
    check_sharding_plan,
)
from shardwright.integrations.torchrec.collective import on_first_rank
from shardwright.integrations.torchrec.context import context_of
from shardwright.integrations.torchrec.groups import (
    GroupSizeChoice,
    Planned,
    best_size,
    group_candidates,
    group_topology,
    of_first_rank,
)
from shardwright.integrations.torchrec.loading import loaded_plan
from shardwright.integrations.torchrec.modules import Sharder, shardable_tables
from shardwright.integrations.torchrec.options import sharding_options
from shardwright.integrations.torchrec.problem import TorchRecProblem, check_names, problem_of_tables
from shardwright.integrations.torchrec.profiles import Profiles
from shardwright.integrations.torchrec.searching import Search
from shardwright.integrations.torchrec.topology import default_cost_model
from shardwright.search.groups import GroupSizes
from shardwright.search.strategy import Strategy
from shardwright.sharding.groups import in_group
from shardwright.sharding.plan import Plan
from shardwright.task.groups import ShardingGroups

Callback = Callable[[list[ShardingOption]], list[ShardingOption]]


class ShardwrightPlanner(EmbeddingPlannerBase):
    """Plans like TorchRec's `EmbeddingShardingPlanner`, with Shardwright's search.

    The arguments up to `plan_loader` are TorchRec's, in its order and with its meaning. `proposer`, `partitioner` and `performance_model`
    are parts of TorchRec's search: they are taken, and have no effect, of which a warning tells. `enumerator` reaches `stats` only.

    Args:
        topology: devices, their storage and bandwidths; by default those of the process group.
        batch_size: samples of a step on each rank; 512 with a warning if not given.
        enumerator: handed to `stats`.
        storage_reservation: what is left for embeddings; by default TorchRec's heuristic one with 15%.
        proposer: has no effect.
        partitioner: has no effect.
        performance_model: has no effect; see `cost_model`.
        stats: logs plans; by default TorchRec's `EmbeddingStats` for up to 256 devices, none for more, where its pages would take longer to
            write than plans take to find.
        constraints: by name of the parameter.
        debug: passed to `stats`.
        callbacks: each gets the chosen sharding options and returns those to use.
        timeout_seconds: the search returns its best plan so far after this time.
        plan_loader: where it has a plan, that is taken in place of a search.
        strategy: name of a strategy, or one of your own.
        cost_model: a model or its file; by default the bundled one for CPUs, else bytes over the topology's memory bandwidth.
        seed: the same inputs and seed give the same plan unless time cuts the search short.
        time_limit: seconds of search; by default 0.2 + √(tables × devices) / 250: 0.4 s for 200 tables on 16 devices, 1.6 s for 1,000 on
            128, 9.3 s for 5,000 on 1,024.
        profiles: access profiles and pooling factors by name of the feature, or a tables.yaml of `shardwright profile`.
        sharding_group_size: for `DMPCollection`: ranks of a sharding group, or "auto" for the best size. The topology is then that of all
            ranks, the plan that of a group, and time limits hold for all sizes together. None for a plan of the topology's ranks.
        sync_interval: steps from one `DMPCollection.sync()` to the next.
        use_inter_host_allreduce: as in `DMPCollection`.
        sharding_strategy: as in `DMPCollection`.

    Attributes:
        last_plan: our plan behind the last sharding plan, with costs and bound; None before, and for a loaded plan.
        last_problem: what was planned; None before.
        last_groups: the sharding groups that the last plan is for, on every rank of `collective_plan`; None without any.
        last_group_sizes: what each size came to, on the rank that planned.
    """

    def __init__(
        self,
        topology: TorchRecTopology | None = None,
        batch_size: int | None = None,
        enumerator: Enumerator | None = None,
        storage_reservation: StorageReservation | None = None,
        proposer: Proposer | list[Proposer] | None = None,
        partitioner: Partitioner | None = None,
        performance_model: PerfModel | None = None,
        stats: Stats | list[Stats] | None = None,
        constraints: dict[str, ParameterConstraints] | None = None,
        debug: bool = True,
        callbacks: list[Callback] | None = None,
        timeout_seconds: int | None = None,
        plan_loader: PlanLoader | None = None,
        *,
        strategy: str | Strategy = "auto",
        cost_model: CostModel | str | Path | None = None,
        seed: int = 0,
        time_limit: float | None = None,
        profiles: Profiles = None,
        sharding_group_size: GroupSizeChoice = None,
        sync_interval: int = 1,
        use_inter_host_allreduce: bool = False,
        sharding_strategy: ShardingStrategy = ShardingStrategy.DEFAULT,
    ) -> None:
        _check_time("time_limit", time_limit)
        _check_time("timeout_seconds", timeout_seconds)
        with warnings.catch_warnings():
            warnings.simplefilter(
                "ignore", FutureWarning
            )  # about the default reservation, which the user did not choose
            super().__init__(
                topology,
                batch_size,
                enumerator,
                storage_reservation,
                stats,
                constraints,
                debug,
                callbacks,
                timeout_seconds,
            )
        _warn_without_effect(proposer=proposer, partitioner=partitioner, performance_model=performance_model)
        if batch_size is None:
            warnings.warn(
                f"batch_size is not given: {self._batch_size} samples on each rank are assumed, as TorchRec does; plans depend on it",
                stacklevel=2,
            )
        if stats is None and self._topology.world_size > _MOST_LOGGED:
            self._stats: list[Stats] = []
        self.plan_loader = plan_loader
        self._strategy, self._seed, self._time_limit, self._profiles = strategy, seed, time_limit, profiles
        self._cost_model = (
            default_cost_model(self._topology) if cost_model is None else resolve_cost_model(cost_model, "")
        )
        self.last_plan: Plan | None = None
        self.last_problem: TorchRecProblem | None = None
        self._context: list[Any] | None = None
        self._sizes: list[ShardingGroups] = []
        if sharding_group_size is not None:
            self._sizes = group_candidates(
                self._topology, sharding_group_size, sync_interval, use_inter_host_allreduce, sharding_strategy
            )
        self.last_groups: ShardingGroups | None = None
        self.last_group_sizes: GroupSizes | None = None

    def plan(self, module: nn.Module, sharders: list[Sharder]) -> ShardingPlan:
        """A sharding plan for the model.

        Args:
            module: the model, on any device, meta included.
            sharders: TorchRec's sharders, one for each type of module.

        Raises:
            PlannerError: no plan keeps storage and constraints, the inputs break a rule, or a loaded plan is not for them; its
                `error_type` says which.
            ShardwrightError: cost model or profiles cannot be read.
        """
        begin = perf_counter()
        self.last_plan = self.last_problem = None
        if self._sizes:
            return self._plan_groups(module, sharders)
        problem = self._problem(module, sharders)
        if problem is None:
            return ShardingPlan({})
        self._context = context_of(problem, self._storage_reservation, self._constraints)
        result = loaded_plan(self.plan_loader, problem, self.hash_planner_context_inputs_str)
        if result is None:
            self.last_plan, result = Search(self._strategy, self._cost_model, self._seed, self._limit).run(problem)
        self.last_problem = problem
        return self._finish(result, problem, sharders, perf_counter() - begin)

    def collective_plan(
        self, module: nn.Module, sharders: list[Sharder] | None = None, pg: dist.ProcessGroup | None = None
    ) -> ShardingPlan:
        """Plan on rank 0 and hand the plan to all ranks of a process group.

        Raises:
            PlannerError: as `plan`, but on every rank; the topology has another number of ranks than the group, or than a sharding group
                of `DMPCollection` may have.
        """
        check_process_group(self._topology, pg, whole=bool(self._sizes))
        given = get_default_sharders() if sharders is None else sharders
        result = on_first_rank(lambda: self.plan(module, given), pg)
        if self._sizes:
            self.last_groups = of_first_rank(self.last_groups, pg)
        return result

    def hash_planner_context_inputs(self) -> int:
        """Hash of what was last planned for: topology, batch size, tables with their choices, reservation and constraints.

        Equal in every process for equal inputs. Strategy, seed and cost model do not count: a plan stays valid with others.

        Raises:
            PlannerError: nothing was planned yet.
        """
        return int(hash_sha256_to_int(self._known_context()))

    def hash_planner_context_inputs_str(self) -> str:
        """The same as text of 64 characters, as TorchRec's plan loaders compare it."""
        return str(hash_sha256_str(self._known_context()))

    def _known_context(self) -> list[Any]:
        if self._context is None:
            raise PlannerError("there is no context to hash before plan() was called; plan first")
        return self._context

    def _problem(self, module: nn.Module, sharders: Sequence[Sharder]) -> TorchRecProblem | None:
        """What is to be planned; None for a model without tables to shard."""
        reserved = self._storage_reservation.reserve(
            topology=self._topology,
            batch_size=self._batch_size,
            module=module,
            sharders=list(sharders),
            constraints=self._constraints,
        )
        found = shardable_tables(module, sharders, self._topology.compute_device, self._constraints)
        if not found:
            return None
        check_names(module, sharders, found, self._constraints)
        problem = problem_of_tables(
            found, self._topology, reserved, self._batch_size, self._constraints, self._profiles
        )
        if self.last_groups is None:
            return problem
        return replace(problem, task=in_group(problem.task, self.last_groups))

    def _plan_groups(self, module: nn.Module, sharders: list[Sharder]) -> ShardingPlan:
        """The plan of a sharding group of the best size; its planner's findings become this one's."""
        planners: dict[int, ShardwrightPlanner] = {}

        def search(groups: ShardingGroups, limit: float | None) -> Planned:
            planner = planners[groups.size] = self._for_group(groups, limit)
            return planner.plan(module, sharders), planner.last_plan

        begin, limits = perf_counter(), [one for one in (self._time_limit, self._timeout_seconds) if one is not None]
        self.last_group_sizes, self.last_groups, result = best_size(self._sizes, search, min(limits, default=None))
        best = planners[self.last_groups.size]
        self.last_plan, self.last_problem, self._context = best.last_plan, best.last_problem, best._context
        if best.last_problem is not None:
            best._callbacks, best._stats = self._callbacks, self._stats
            result = best._finish(result, best.last_problem, sharders, perf_counter() - begin)
        return result

    def _for_group(self, groups: ShardingGroups, limit: float | None) -> ShardwrightPlanner:
        """This planner, but for one of the groups."""
        result = copy.copy(self)
        result._topology, result._sizes, result.last_groups = group_topology(self._topology, groups), [], groups
        result._time_limit, result._callbacks, result._stats = limit, [], []
        return result

    def _limit(self, problem: TorchRecProblem) -> float:
        """Seconds that the search may take."""
        size = len(problem.task.tables) * problem.task.topology.devices
        limit = 0.2 + math.sqrt(size) / 250 if self._time_limit is None else self._time_limit
        return limit if self._timeout_seconds is None else min(limit, self._timeout_seconds)

    def _finish(
        self, result: ShardingPlan, problem: TorchRecProblem, sharders: list[Sharder], seconds: float
    ) -> ShardingPlan:
        """Callbacks, statistics and the last check."""
        if self._callbacks or self._stats:
            options = sharding_options(result, problem, self._cost_model)
            for callback in self._callbacks:
                options = callback(options)
            if self._callbacks:
                check_ranks_assigned(options)
                result = to_sharding_plan(options, self._topology)
        check_sharding_plan(result, problem)
        for stats in self._stats:
            stats.log(
                sharding_plan=result,
                topology=self._topology,
                batch_size=self._batch_size,
                storage_reservation=self._storage_reservation,
                num_proposals=1,
                num_plans=1,
                run_time=seconds,
                best_plan=options,
                constraints=self._constraints,
                sharders=sharders,
                enumerator=self._enumerator,
                debug=self._debug,
                debug_stats=PlanDebugStats(type(self).__name__, self._timeout_seconds),
            )
        return result


_MOST_LOGGED = 256  # devices


def _check_time(name: str, seconds: float | None) -> None:
    if seconds is not None and not (math.isfinite(seconds) and seconds > 0):
        raise PlannerError(
            f"{name} is {seconds}, must be a finite number of seconds above 0", PlannerErrorType.INPUT_VALIDATION
        )


def _warn_without_effect(**parts: object) -> None:
    given = [name for name, part in parts.items() if part is not None]
    if given:
        warnings.warn(
            f"{', '.join(given)}: part of TorchRec's search, without effect on Shardwright's; use strategy and cost_model",
            stacklevel=3,
        )
