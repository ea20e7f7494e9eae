"""The drop-in planner: it has TorchRec's constructor and methods, and our search."""

import copy
import logging
import math
import reprlib
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Callable, Dict, List

import torch.distributed as dist
from torch import nn
from torchrec.distributed.planner.planners import EmbeddingPlannerBase, to_sharding_plan
from torchrec.distributed.planner.types import (
    Enumerator,
    ParameterConstraints,
    Partitioner,
    PerfModel,
    PlanLoader,
    PlannerError,
    PlannerErrorType,
    Proposer,
    ShardingOption,
    Stats,
    StorageReservation,
    hash_planner_context_inputs_str,
)
from torchrec.distributed.planner.types import Topology as TorchRecTopology
from torchrec.distributed.sharding_plan import get_default_sharders
from torchrec.distributed.types import ShardingPlan, ShardingStrategy

from shardwright.cost.choice import given_cost_model
from shardwright.cost.model import CostModel
from shardwright.errors import InvalidInput
from shardwright.integrations.torchrec.caching import warn_of_small_caches
from shardwright.integrations.torchrec.checks import (
    check_process_group,
    check_ranks_assigned,
    check_sharding_plan,
    on_first_rank,
    returned_options,
)
from shardwright.integrations.torchrec.context import EnumeratorOnDemand, enumerator_without_times, other_orders
from shardwright.integrations.torchrec.conversion import plan_of
from shardwright.integrations.torchrec.enumerators import Said, listed_by
from shardwright.integrations.torchrec.events import (
    PlannerEvents,
    SearchPage,
    SearchStats,
    log_replicas,
    logged,
    reservation_line,
)
from shardwright.integrations.torchrec.loader import loaded_plan
from shardwright.integrations.torchrec.modules import Sharder, shardable_tables, unsharded
from shardwright.integrations.torchrec.moved import Moved, moved
from shardwright.integrations.torchrec.options import sharding_options, unplaced_options
from shardwright.integrations.torchrec.problem import (
    NO_TABLE,
    TorchRecProblem,
    problem_of_tables,
    warn_of_unknown,
    warn_without_optimizer,
)
from shardwright.integrations.torchrec.profiles import Profiles, check_numbers, profiles_by_name
from shardwright.integrations.torchrec.searching import best_plan
from shardwright.integrations.torchrec.sharding_groups import (
    GroupSizeChoice,
    Planned,
    best_size,
    group_candidates,
    group_topology,
)
from shardwright.integrations.torchrec.topology import KnownLinks, default_cost_model, warn_of_multipliers
from shardwright.questions.group_sizes import GroupSizes
from shardwright.questions.review import Review, compared
from shardwright.search.solve import plan as find_plan
from shardwright.search.strategy import Strategy
from shardwright.sharding.groups import in_group
from shardwright.sharding.plan import Plan
from shardwright.task.links import Links
from shardwright.task.quantities import real
from shardwright.task.sharding_groups import ShardingGroups

Callback = Callable[[List[ShardingOption]], List[ShardingOption]]


class ShardwrightPlanner(EmbeddingPlannerBase):
    """Plans like TorchRec's `EmbeddingShardingPlanner`, with Shardwright's search.

    The arguments up to `plan_loader` are TorchRec's, in its order and with its meaning. `proposer`, `partitioner` and `performance_model`
    are parts of TorchRec's search: they are accepted without effect, with a warning. `hash_planner_context_inputs()` equals that of
    TorchRec's planner for the same inputs in the same process. `_best_plan`, `_num_proposals` and `_num_plans` are as TorchRec keeps them.

    Args:
        topology: devices, their storage and bandwidths; by default those of the process group.
        batch_size: samples of a step on each rank; the enumerator's if it has one, 512 with a warning if neither is given.
        enumerator: its constraints, batch size and pipeline count as for TorchRec's planner, its constraints before those given here. The
            planner asks an enumerator of your own class for the sharding types and kernels of each table. It is passed to `stats`, and
            lists the search space for the hash of the inputs on demand.
        storage_reservation: reserves storage for the rest of the model; by default TorchRec's heuristic reservation with 15%.
        proposer: has no effect.
        partitioner: has no effect.
        performance_model: has no effect; see `cost_model`.
        stats: logs plans and failures to plan, with a `SearchStats` as `debug_stats`; by default TorchRec's page with bound and gap; no
            page for more than 256 devices, since writing it would take longer than the search.
        constraints: constraints by name of the parameter.
        debug: passed to `stats`.
        callbacks: each gets the chosen sharding options and returns those to use.
        timeout_seconds: the search returns its best plan so far after this time.
        plan_loader: if it has a plan, that plan is used instead of a search.
        strategy: name of a strategy, or a strategy object of your own.
        cost_model: a model or its file; by default the one calibrated here, else the bundled one for CPUs or one by memory bandwidth.
        seed: the same inputs and seed give the same plan unless time cuts the search short.
        time_limit: seconds of search; by default 0.5 + √(tables × devices) / 200:
            0.8 s for 200 tables on 16 devices, 2.3 s for 1,000 on 128, 12 s for 5,000 on 1,024.
        profiles: access profiles and pooling factors by name of the feature, or a tables.yaml of `shardwright profile`.
        sharding_group_size: for `DMPCollection`: ranks of a sharding group, or "auto" for the best size. The topology is then that of all
            ranks, the plan is that of a group, and time limits hold for all sizes together. None plans for the topology's ranks.
        sync_interval: steps from one `DMPCollection.sync()` to the next.
        use_inter_host_allreduce: as in `DMPCollection`.
        sharding_strategy: as in `DMPCollection`.
        links: latency and bandwidth of single collectives, which TorchRec's topology lacks, or a file of
            `shardwright calibrate --links` for this cluster. For collectives that it lacks, the topology's bandwidths count.
        latencies_ms: ms of a collective inside a host and between hosts, unless `links` has them; by default 0.02 and 0.05.

    Attributes:
        last_plan: our plan behind the last sharding plan, with costs and bound; None before the first plan, and for a loaded plan.
        last_problem: the last planned problem; None before the first plan.
        last_moved: rows that the last sharding plan, found or loaded, keeps in host memory and on SSD; None before the first plan.
        last_groups: the sharding groups that the last plan is for, on every rank of `collective_plan`; None without groups.
        last_group_sizes: the result of each group size, on the rank that planned.
    """

    def __init__(
        self,
        topology: TorchRecTopology | None = None,
        batch_size: int | None = None,
        enumerator: Enumerator | None = None,
        storage_reservation: StorageReservation | None = None,
        proposer: Proposer | List[Proposer] | None = None,
        partitioner: Partitioner | None = None,
        performance_model: PerfModel | None = None,
        stats: Stats | List[Stats] | None = None,
        constraints: Dict[str, ParameterConstraints] | None = None,
        debug: bool = True,
        callbacks: List[Callback] | None = None,
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
        links: Links | str | Path | None = None,
        latencies_ms: tuple[float, float] | None = None,
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
        warn_of_multipliers(self._topology)
        self._said = Said.by(
            enumerator, constraints, batch_size
        )  # hash and reservation cover the planner's own arguments
        if stats is None:
            self._stats: list[Stats] = [SearchPage()] if self._topology.world_size <= _MOST_LOGGED else []
        self._enumerator = EnumeratorOnDemand(
            enumerator or enumerator_without_times(self._topology, self._batch_size, constraints)
        )
        self._asked = enumerator
        self.plan_loader = plan_loader
        self._strategy, self._seed, self._time_limit, self._profiles = strategy, seed, time_limit, profiles
        self._given_model = None if cost_model is None else given_cost_model(cost_model)
        self._known_links = KnownLinks.of(links, latencies_ms, self._topology)
        self._sizes: list[ShardingGroups] = []
        if sharding_group_size is not None:
            self._sizes = group_candidates(
                self._topology, sharding_group_size, sync_interval, use_inter_host_allreduce, sharding_strategy
            )
        self._group: ShardingGroups | None = None  # set in a planner for one of the groups
        self._forget()

    def _forget(self) -> None:
        """Forget the last plan."""
        self.last_plan: Plan | None = None
        self.last_problem: TorchRecProblem | None = None
        self.last_moved: Moved | None = None
        self._best_plan: list[ShardingOption] | None = None  # other code reads this and the two numbers below
        self._num_proposals = self._num_plans = 0
        self.last_groups: ShardingGroups | None = None
        self.last_group_sizes: GroupSizes | None = None
        self._of_group: ShardwrightPlanner | None = None

    @logged
    def plan(self, module: nn.Module, sharders: List[Sharder]) -> ShardingPlan:
        """Find a sharding plan for the model.

        Args:
            module: the model, on any device, meta included.
            sharders: TorchRec's sharders, one for each type of module.

        Raises:
            PlannerError: no plan keeps storage and constraints, the inputs break a rule, or a loaded plan is for other inputs; see its
                `error_type`.
            ShardwrightError: the cost model or the profiles cannot be read.
        """
        begin = perf_counter()
        self._forget()
        if self._sizes:
            return self._plan_groups(module, sharders)
        constraints = self._said.constraints
        tables = shardable_tables(module, sharders, self._topology.compute_device, constraints)
        with _as_planner_error():
            check_numbers(constraints, {table.name for table in tables})
        left = self._storage_reservation.reserve(
            topology=self._topology,
            batch_size=self._batch_size,
            module=module,
            sharders=sharders,
            constraints=self._constraints,
        )
        self._enumerator.planned = (module, sharders)
        listed = listed_by(self._asked, module, sharders)
        events = PlannerEvents(type(self).__name__, constraints)
        events.begins(self._topology, left, self._storage_reservation, timeout_s=self._timeout_seconds)
        if not tables:
            return ShardingPlan({})
        warn_of_unknown(module, sharders, tables, constraints)
        warn_without_optimizer(tables)
        known = profiles_by_name(self._profiles)
        try:
            with _as_planner_error():
                problem = problem_of_tables(
                    tables,
                    self._topology,
                    left,
                    self._said.batch_size,
                    constraints,
                    known,
                    self._known_links,
                    listed,
                    self._said.pipeline,
                )
                if self._group is not None:
                    problem = replace(problem, task=in_group(problem.task, self._group))
            self._cost_model = self._given_model or default_cost_model(self._topology, problem.task)
            plan = self._finish(self._found(problem, sharders, begin), problem, sharders, begin)
        except PlannerError as error:
            events.failed(error.error_type.name, str(error), **self._figures(begin))
            if error.error_type == PlannerErrorType.INSUFFICIENT_STORAGE:
                said = reservation_line(self._storage_reservation)
                raise PlannerError(f"{error} ({said})", error.error_type) from error
            raise
        assert self._best_plan is not None
        events.planned(self._best_plan, **self._figures(begin))
        return plan

    @logged
    def collective_plan(
        self, module: nn.Module, sharders: List[Sharder] | None = None, pg: dist.ProcessGroup | None = None
    ) -> ShardingPlan:
        """Plan on rank 0 and hand the plan to all ranks of a process group.

        Raises:
            PlannerError: as in `plan`, but on every rank; or the topology's ranks fit neither the process group nor a sharding group.
        """
        check_process_group(self._topology, pg, whole=bool(self._sizes))
        given = get_default_sharders() if sharders is None else sharders
        result, self.last_groups = on_first_rank(lambda: (self.plan(module, given), self.last_groups), pg)
        return result

    def review(
        self,
        module: nn.Module,
        sharders: List[Sharder] | None = None,
        sharding_plan: ShardingPlan | None = None,
        pg: dist.ProcessGroup | None = None,
    ) -> tuple[Review, ShardingPlan]:
        """Rate the sharding of a model: its predicted step, that of the best plan found, and the proven bound.

        Args:
            module: a sharded model (`DistributedModelParallel`), which stays as it is; or a model that is not sharded, with a plan.
            sharders: TorchRec's sharders; its default ones if None.
            sharding_plan: the plan under review; that of the sharded model if None.
            pg: process group whose ranks all call this: its first rank reviews, and all get the same better plan. Without it, each rank
                searches until time is up, and ranks may find different plans.

        Returns:
            The review, and the better plan as TorchRec's sharding plan; the given plan if none is better.

        Raises:
            PlannerError: as in `plan`.
            InvalidInput: there is no plan to review, a sharded module's tables cannot be read, or the planner is for sharding groups.
            InvalidPlan: the plan is not for the model.
        """
        if pg is not None:
            check_process_group(self._topology, pg, whole=True)
            return on_first_rank(lambda: self.review(module, sharders, sharding_plan), pg)
        from torchrec.distributed.model_parallel import get_unwrapped_module  # it imports the planner this may replace

        given = getattr(module, "plan", None) if sharding_plan is None else sharding_plan
        if not isinstance(given, ShardingPlan):
            raise InvalidInput(
                f"{type(module).__name__} has no sharding plan; pass a DistributedModelParallel, or sharding_plan"
            )
        if self._sizes:
            raise InvalidInput("sharding_group_size is given; review the plan of a group with that group's topology")
        sharders = get_default_sharders() if sharders is None else sharders
        best = self.plan(unsharded(get_unwrapped_module(module)), sharders)
        if self.last_problem is None or self.last_plan is None:
            raise InvalidInput(NO_TABLE)
        result = compared(plan_of(given, self.last_problem), self.last_plan, self._cost_model)
        return result, given if result.better is result.plan else best

    def hash_planner_context_inputs(self) -> int:
        """TorchRec's hash of the inputs; of a sharding group's inputs, if the last plan is for a group."""
        if self._of_group is not None:
            return self._of_group.hash_planner_context_inputs()
        return int(super().hash_planner_context_inputs())

    def hash_planner_context_inputs_str(self) -> str:
        """The same hash as text of 64 characters, which plan loaders compare."""
        if self._of_group is not None:
            return self._of_group.hash_planner_context_inputs_str()
        return str(super().hash_planner_context_inputs_str())

    def _plan_groups(self, module: nn.Module, sharders: list[Sharder]) -> ShardingPlan:
        """Plan a sharding group of the best size; the results of that size's planner become this planner's."""
        planners: dict[int, ShardwrightPlanner] = {}

        def search(groups: ShardingGroups, limit: float | None) -> Planned:
            planner = planners[groups.size] = self._for_group(groups, limit)
            return planner.plan(module, sharders), planner.last_plan

        begin = perf_counter()
        limits = [limit for limit in (self._time_limit, self._timeout_seconds) if limit is not None]
        self.last_group_sizes, self.last_groups, result = best_size(self._sizes, search, min(limits, default=None))
        best = self._of_group = planners[self.last_groups.size]
        if best.last_problem is not None:
            best._callbacks, best._stats = self._callbacks, self._stats
            result = best._finish(result, best.last_problem, sharders, begin)
        self.last_plan, self.last_problem, self.last_moved = best.last_plan, best.last_problem, best.last_moved
        self._best_plan = best._best_plan
        self._num_proposals, self._num_plans = len(planners), sum(planner._num_plans for planner in planners.values())
        return result

    def _for_group(self, groups: ShardingGroups, limit: float | None) -> "ShardwrightPlanner":
        """Copy this planner for one of the groups."""
        result = copy.copy(self)
        result._topology, result._sizes, result._group = group_topology(self._topology, groups), [], groups
        result._time_limit, result._callbacks, result._stats = limit, [], []
        result._enumerator = EnumeratorOnDemand(
            enumerator_without_times(result._topology, self._batch_size, self._constraints)
        )
        return result

    def get_selected_options(self) -> List[ShardingOption]:
        """The last plan as sharding options, for which TorchRec asks from 1.9 on; empty without a plan."""
        return self._best_plan or []

    def get_search_space(self) -> List[ShardingOption] | None:
        """The search space of TorchRec's enumerator for the last model, also for TorchRec 1.9; it is listed only when asked for."""
        return self._enumerator.last_stored_search_space

    def _limit(self, problem: TorchRecProblem) -> float:
        """Seconds that the search may take."""
        size = len(problem.task.tables) * problem.task.topology.devices
        limit = 0.5 + math.sqrt(size) / 200 if self._time_limit is None else self._time_limit
        return limit if self._timeout_seconds is None else min(limit, self._timeout_seconds)

    def _found(self, problem: TorchRecProblem, sharders: list[Sharder], begin: float) -> ShardingPlan:
        """Load a plan, or else search for one."""
        result = loaded_plan(self.plan_loader, problem, self._context_hashes)
        if result is None:
            self._num_proposals = 1
            find = partial(
                find_plan,
                strategy=self._strategy,
                cost_model=self._cost_model,
                seed=self._seed,
                time_limit=self._limit(problem),
                runs_on="torchrec",
            )
            try:
                self.last_plan, result = best_plan(problem, find)
            except PlannerError:
                options = unplaced_options(problem, self._cost_model)
                self._log(ShardingPlan({}), options, sharders, begin)
                raise
            self._num_plans = 1
        self.last_problem = problem
        return result

    def _finish(
        self, result: ShardingPlan, problem: TorchRecProblem, sharders: list[Sharder], begin: float
    ) -> ShardingPlan:
        """Apply the callbacks to a plan, check it, and log statistics."""
        options = sharding_options(result, problem, self._cost_model)
        for callback in self._callbacks:
            options = returned_options(callback(options), callback)
        if self._callbacks:
            check_ranks_assigned(options)
            result = to_sharding_plan(options, self._topology)
        check_sharding_plan(result, problem)
        warn_of_small_caches(problem, result)
        self.last_moved = moved(result, problem)
        if self.last_moved.kernels:
            _logger.info("%s", self.last_moved)
        log_replicas(result, problem)
        self._best_plan = options
        self._log(result, options, sharders, begin)
        return result

    def _log(self, plan: ShardingPlan, options: list[ShardingOption], sharders: list[Sharder], begin: float) -> None:
        """Log statistics of a plan. If the plan is empty, the options are those that could not be placed."""
        ours = self.last_plan
        search_stats = SearchStats(type(self).__name__, self._timeout_seconds)
        if ours is not None and ours.cost is not None:
            search_stats.strategy, search_stats.step_ms = ours.strategy, ours.cost.step_ms
            search_stats.bound_ms, search_stats.gap = ours.bound_ms, ours.gap
        for stats in self._stats:
            stats.log(
                sharding_plan=plan,
                topology=self._topology,
                batch_size=self._said.batch_size,
                storage_reservation=self._storage_reservation,
                num_proposals=self._num_proposals,
                num_plans=self._num_plans,
                run_time=perf_counter() - begin,
                best_plan=options,
                constraints=self._said.constraints,
                sharders=sharders,
                enumerator=self._enumerator.given,
                debug=self._debug,
                debug_stats=search_stats,
            )

    def _figures(self, begin: float) -> dict[str, object]:
        """Figures that event logging gets about every plan."""
        return {
            "num_proposals": self._num_proposals,
            "num_plans": self._num_plans,
            "planner_time_seconds": round(perf_counter() - begin, 3),
            "plan_source": "loaded" if self._num_proposals == 0 else "solved",
        }

    def _context_hashes(self) -> Iterator[str]:
        """The hash of the inputs, then the hashes that the same inputs may have in other processes."""
        yield self.hash_planner_context_inputs_str()
        for enumerator in other_orders(self._enumerator.last_stored_search_space or [], self._constraints):
            yield hash_planner_context_inputs_str(
                self._topology, self._batch_size, enumerator, self._storage_reservation, self._constraints
            )


_logger = logging.getLogger(__name__)
_MOST_LOGGED = 256  # most devices for which a page is logged by default


def _check_time(name: str, seconds: float | None) -> None:
    if seconds is not None and not 0 < (real(seconds) or 0) < math.inf:
        raise PlannerError(
            f"{name} is {reprlib.repr(seconds)}, must be a finite number of seconds above 0",
            PlannerErrorType.INPUT_VALIDATION,
        )


@contextmanager
def _as_planner_error() -> Iterator[None]:
    """Report constraints and topologies that break a rule with TorchRec's type of error."""
    try:
        yield
    except InvalidInput as error:
        raise PlannerError(str(error), PlannerErrorType.INPUT_VALIDATION) from error


def _warn_without_effect(**parts: object) -> None:
    given = [name for name, part in parts.items() if part is not None]
    if given:
        warnings.warn(
            f"{', '.join(given)}: part of TorchRec's search, without effect on Shardwright's; use strategy and cost_model",
            stacklevel=3,
        )
