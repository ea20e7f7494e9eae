"""Choose the size of sharding groups: search a plan for each size, and take the size with the shortest step."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypedDict

from shardwright.cost.score import synchronisation_ms
from shardwright.errors import InfeasibleTask, InvalidInput
from shardwright.search.solve import check_time_limit
from shardwright.search.solve import plan as find_plan
from shardwright.search.strategy import Interruptible
from shardwright.sharding.groups import GroupMemory, group_memory, group_task
from shardwright.sharding.plan import Plan
from shardwright.task.sharding_groups import ShardingGroups, group_sizes
from shardwright.task.task import Task


class SizeOfGroups(TypedDict):
    """A size of sharding groups."""

    size: int
    groups: int
    step_ms: float | None
    synchronisation_ms: float | None
    bound_ms: float | None
    memory_bytes: int | None
    memory_between_passes_bytes: int | None
    why_not: str | None


@dataclass(frozen=True)
class GroupSize:
    """The result for sharding groups of one size.

    Attributes:
        groups: the groups.
        plan: the plan of a group, its cost and bound with the synchronisation of groups; None if there is no plan.
        why_not: why there is no plan.
    """

    groups: ShardingGroups
    plan: Plan | None = None
    why_not: str = ""

    @property
    def step_ms(self) -> float:
        """Step ms of all groups; infinite if there is no plan."""
        return self.plan.cost.step_ms if self.plan is not None and self.plan.cost is not None else float("inf")

    @property
    def synchronisation_ms(self) -> float:
        """Ms of a step that synchronising the groups takes on the slowest device; 0 if there is no plan."""
        return (
            0.0 if self.plan is None else float(synchronisation_ms(self.plan.task, self.plan.shards).max(axis=0).sum())
        )

    @property
    def memory(self) -> GroupMemory | None:
        """Memory of the devices of a group; None if there is no plan."""
        return None if self.plan is None else group_memory(self.plan)

    def to_dict(self) -> SizeOfGroups:
        """The size, its step, bound and memory as plain data."""
        plan, memory = self.plan, self.memory
        return {
            "size": self.groups.size,
            "groups": self.groups.count,
            "step_ms": None if plan is None else self.step_ms,
            "synchronisation_ms": None if plan is None else self.synchronisation_ms,
            "bound_ms": None if plan is None else plan.bound_ms,
            "memory_bytes": None if memory is None else int(memory.peak.max()),
            "memory_between_passes_bytes": None if memory is None else int(memory.between.max()),
            "why_not": self.why_not or None,
        }


@dataclass(frozen=True)
class GroupSizes(Sequence[GroupSize]):
    """The results for all sizes of sharding groups.

    Attributes:
        sizes: a result for each size, ascending.
    """

    sizes: tuple[GroupSize, ...]

    def __getitem__(self, index: Any) -> Any:
        return self.sizes[index]

    def __len__(self) -> int:
        return len(self.sizes)

    @property
    def best(self) -> GroupSize:
        """The size with the shortest step; of equal steps the largest size, which takes the least memory."""
        return min(reversed(self.sizes), key=lambda size: size.step_ms)

    @property
    def best_plan(self) -> Plan:
        """The plan of the best size.

        Raises:
            InfeasibleTask: no size has a plan.
        """
        plan = self.best.plan
        if plan is None:
            raise InfeasibleTask(
                "; ".join(f"sharding groups of {size.groups.size}: {size.why_not}" for size in self.sizes)
            )
        return plan


def candidates(hosts: int, devices_per_host: int, size: int | None = None, **given: Any) -> list[ShardingGroups]:
    """The groups to choose among: of one size, or of every size that divides the devices.

    Args:
        hosts: hosts of the cluster.
        devices_per_host: devices of each host.
        size: the only size; None for every size.
        given: other fields of `ShardingGroups`.

    Raises:
        InvalidInput: the size does not divide the devices, or another field breaks a rule.
    """
    first = ShardingGroups(hosts * devices_per_host if size is None else size, hosts, devices_per_host, **given)
    return [first] if size is not None else [replace(first, size=divisor) for divisor in group_sizes(first.devices)]


def plan_groups(
    task: Task,
    *,
    sharding_group_size: int | None = None,
    sync_interval: int = 1,
    inter_host_allreduce: bool = False,
    fully_sharded: bool = False,
    time_limit: float | None = None,
    **options: Any,
) -> GroupSizes:
    """Plan 2D parallelism for TorchRec's `DMPCollection`: one plan of a sharding group for every size of the groups.

    With groups of G of W devices, a step takes as long as that of one group: G devices with G / W of the batch, plus the time to average
    its weights with those of the other groups at intervals. The largest size, one group of all devices, is plain sharding.

    Args:
        task: the tables to place, and the whole cluster.
        sharding_group_size: the only size to look at; None for every size that divides the devices.
        sync_interval: steps from one `DMPCollection.sync()` to the next.
        inter_host_allreduce: how ranks are assigned to groups, see `ShardingGroups`.
        fully_sharded: whether weights are scattered between forward and backward pass, see `ShardingGroups`.
        time_limit: seconds of all searches together, shared out evenly; None for no limit.
        options: further arguments of `plan`, except `runs_on`, which is TorchRec.

    Raises:
        InvalidInput: the size does not divide the devices, or an argument breaks a rule.
    """
    if task.groups is not None:
        raise InvalidInput(
            "sharding_groups: this task is already that of one group; give the task of the whole cluster, or call plan instead"
        )
    check_time_limit(time_limit)
    where = task.topology
    sizes = candidates(
        where.hosts,
        where.devices_per_host,
        sharding_group_size,
        sync_interval=sync_interval,
        inter_host_allreduce=inter_host_allreduce,
        fully_sharded=fully_sharded,
    )

    def search(groups: ShardingGroups, limit: float | None) -> GroupSize:
        try:
            of_group = group_task(task, groups)
        except InvalidInput as error:
            if sharding_group_size is not None:
                raise
            return GroupSize(groups, why_not=str(error))
        try:
            return GroupSize(groups, find_plan(of_group, runs_on="torchrec", time_limit=limit, **options))
        except InfeasibleTask as error:
            return GroupSize(groups, why_not=str(error))

    return each_size(sizes, time_limit, search)


def each_size(
    sizes: Sequence[ShardingGroups],
    time_limit: float | None,
    search: Callable[[ShardingGroups, float | None], GroupSize],
) -> GroupSizes:
    """Search each size in turn. After Ctrl-C, return the sizes so far if one of them has a plan.

    Args:
        sizes: the sizes.
        time_limit: seconds of all searches together: each gets an even part of the remaining time. None for no limit.
        search: plans one size within the seconds that it is given.
    """
    end = None if time_limit is None else time.monotonic() + time_limit
    tried: list[GroupSize] = []
    watch = Interruptible()
    with watch.until_interrupted():
        for groups in sizes:
            left = None if end is None else max(end - time.monotonic(), 0.0) / (len(sizes) - len(tried))
            try:
                tried.append(search(groups, left))
            except KeyboardInterrupt:
                if all(size.plan is None for size in tried):
                    raise
                break
            if watch.interrupted:
                break
    return GroupSizes(tuple(tried))
