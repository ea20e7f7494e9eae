"""The size of sharding groups: the best of all, by looking at each."""

import signal
import time

import pytest

from shardwright import plan
from shardwright.cost.published import PublishedModel
from shardwright.cost.score import score
from shardwright.errors import InfeasibleTask, InvalidInput
from shardwright.questions.group_sizes import GroupSize, each_size, plan_groups
from shardwright.search.certified import Certified
from shardwright.sharding.groups import group_task
from shardwright.task import Constraints, ShardingGroups, Table, TableConstraint, Task, Topology

MODEL = PublishedModel("h100")
QUICK = {"cost_model": MODEL, "strategy": Certified(patience=1)}
TABLES = [Table(f"t{i}", 20_000 * (i + 1), 16 * (1 + i % 3), 2.0 + 3 * (i % 4)) for i in range(5)]


def cluster(memory="100 MB", **fields):
    links = {
        "intra_bandwidth": "100 GB/s",
        "inter_bandwidth": "5 GB/s",
        "intra_latency_ms": 0.02,
        "inter_latency_ms": 0.05,
    }
    return Task(TABLES, Topology(2, 4, "h100", memory, **links), 4096, **fields)


@pytest.mark.parametrize(("interval", "inter"), [(1, False), (100, True), (10_000, False)])
def test_the_best_of_all_sizes_is_taken(interval, inter):
    task = cluster()
    sizes = plan_groups(task, sync_interval=interval, inter_host_allreduce=inter, **QUICK)
    assert [result.groups.size for result in sizes] == [1, 2, 4, 8]
    steps = {}
    for size in (1, 2, 4, 8):
        own = group_task(task, ShardingGroups(size, 2, 4, sync_interval=interval, inter_host_allreduce=inter))
        alone = plan(own, runs_on="torchrec", **QUICK)
        steps[size] = score(own, alone.shards, MODEL).step_ms
    assert {result.groups.size: result.step_ms for result in sizes} == pytest.approx(steps)
    assert sizes.best.groups.size == min(steps, key=steps.get)
    assert all(result.plan.bound_ms <= result.step_ms for result in sizes)
    assert sizes[-1].plan.task == task


def test_rare_synchronisation_makes_small_groups_pay_and_frequent_one_does_not():
    sizes = [plan_groups(cluster(), sync_interval=n, **QUICK).best.groups.size for n in (1, 10_000)]
    assert sizes[0] == 8
    assert sizes[1] < 8


def test_a_size_without_a_plan_gives_the_reason_and_a_size_with_a_plan_is_taken():
    total = sum(table.weight_bytes for table in TABLES)
    task = cluster(total // 3, constraints=Constraints(tables={"t0": TableConstraint(devices=(3,))}))
    sizes = plan_groups(task, sync_interval=10_000, **QUICK)
    by_size = {result.groups.size: result for result in sizes}
    assert "rank 3" in by_size[1].why_not
    assert "rank 3" in by_size[2].why_not
    assert sizes.best.groups.size in (4, 8)
    document = by_size[1].to_dict()
    assert document["step_ms"] is document["memory_bytes"] is None
    assert "rank 3" in document["why_not"]


def test_no_size_has_a_plan():
    sizes = plan_groups(cluster(1_000_000), **QUICK)
    with pytest.raises(InfeasibleTask, match=r"sharding groups of 1: the tables need .*; sharding groups of 8: "):
        _ = sizes.best_plan


def test_memory_of_the_fullest_device_is_that_of_the_plan():
    sizes = plan_groups(cluster(), sharding_group_size=2, fully_sharded=True, **QUICK)
    (one,) = sizes
    document = one.to_dict()
    limit = cluster().topology.memory_bytes[0]
    assert document["memory_between_passes_bytes"] < one.plan.memory.total.max() < document["memory_bytes"] <= limit


def test_a_named_size_must_divide_and_must_have_the_pinned_ranks():
    with pytest.raises(InvalidInput, match="size is 3, must divide the 8 devices"):
        plan_groups(cluster(), sharding_group_size=3)
    pinned = cluster(constraints=Constraints(tables={"t0": TableConstraint(devices=(3,))}))
    with pytest.raises(InvalidInput, match="rank 3"):
        plan_groups(pinned, sharding_group_size=2)


FOUR = [ShardingGroups(size, 1, 4) for size in (1, 2, 4)]


def test_time_is_shared_out_evenly(monkeypatch):
    """Later sizes get the time that a size leaves over."""
    clock = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    limits = []

    def search(groups, limit):
        limits.append(limit)
        clock[0] += 1.0 if len(limits) == 1 else 20.0
        return GroupSize(groups)

    each_size(FOUR, 9.0, search)
    each_size(FOUR[:1], None, search)
    assert limits == [3.0, 4.0, 0.0, None]


@pytest.mark.parametrize("answered", [True, False])
def test_after_an_interruption_the_sizes_so_far_count(answered):
    """A search that Ctrl-C ends has a plan, or none; no further size is searched."""
    first = plan_groups(cluster(), sharding_group_size=8, **QUICK)[0]

    def search(groups, limit):
        if groups.size == 1:
            return first
        try:
            signal.raise_signal(signal.SIGINT)
        except KeyboardInterrupt:
            if not answered:
                raise
        return GroupSize(groups)

    assert len(each_size(FOUR, None, search)) == (2 if answered else 1)
    with pytest.raises(KeyboardInterrupt):
        each_size(FOUR[1:], None, lambda groups, limit: signal.raise_signal(signal.SIGINT))
