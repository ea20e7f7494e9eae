"""The cost of synchronising sharding groups, by hand."""

from dataclasses import replace

import numpy as np
import pytest

from shardwright.cost.blocks import Blocks, Tables
from shardwright.cost.for_task import for_task
from shardwright.cost.published import PublishedModel
from shardwright.cost.score import kernels_and_links, score, synchronisation_ms
from shardwright.cost.synchronisation import GroupedModel
from shardwright.search import plan
from shardwright.search.bound import lower_bound
from shardwright.sharding import Plan, Shard
from shardwright.task import ShardingGroups, Table, Task, Topology

MODEL = PublishedModel("h100")
BAG, HALF = Table("bag", 1000, 64, 3.0), Table("half", 500, 32, 2.0, dtype="fp16")
BYTES = {"bag": 1000 * 64 * 4, "half": 500 * 32 * 2}
STATE = {"bag": 4 * 1000, "half": 4 * 500}


def task_of(groups, tables=(BAG, HALF), **fields):
    """A group of two devices on one host, with 1 GB/s inside and 0.1 GB/s between hosts."""
    links = {
        "intra_bandwidth": "1 GB/s",
        "inter_bandwidth": "0.1 GB/s",
        "intra_latency_ms": 0.02,
        "inter_latency_ms": 0.05,
    }
    return Task(tables, Topology(1, 2, "h100", "1 GB", **links), 16, groups=groups, **fields)


def added(task, shards):
    """`(devices, 2)` forward and backward ms that groups add to the kernels."""
    alone = score(replace(task, groups=None), shards, MODEL).devices
    grouped = score(task, shards, MODEL).devices
    synchronisation = synchronisation_ms(task, shards)
    kernels = kernels_and_links(Plan(task, shards, cost=score(task, shards, MODEL))).cost.devices
    assert [(device.forward_ms, device.backward_ms) for device in kernels] == [
        pytest.approx((device.forward_ms, device.backward_ms)) for device in alone
    ]
    assert [(device.forward_communication_ms, device.backward_communication_ms) for device in alone] == [
        (device.forward_communication_ms, device.backward_communication_ms) for device in grouped
    ]
    result = np.array(
        [(b.forward_ms - a.forward_ms, b.backward_ms - a.backward_ms) for a, b in zip(alone, grouped, strict=True)]
    )
    assert synchronisation == pytest.approx(result)
    return result


WHOLE = [Shard.whole(BAG, 0), Shard.whole(HALF, 1)]


def test_neighbouring_replicas_all_reduce_inside_their_host_every_so_often():
    task = task_of(ShardingGroups(2, 2, 4, sync_interval=10))  # four replicas, on one host
    latency = 3 * 0.02  # weights of two types, and the state
    expected = [(2 * 3 / 4 * (BYTES[name] + STATE[name]) / 1e9 * 1e3 + latency) / 10 for name in ("bag", "half")]
    assert added(task, WHOLE) == pytest.approx(np.array([(0, expected[0]), (0, expected[1])]))


def test_replicas_on_several_hosts_wait_for_the_slower_link():
    """With one replica on each of two hosts, all bytes go between hosts; with two on each, half of them for each replica."""
    two = task_of(ShardingGroups(2, 2, 2, inter_host_allreduce=True))
    four = task_of(ShardingGroups(2, 2, 4, inter_host_allreduce=True))
    for task, bytes_sent in ((two, 2 * 1 / 2), (four, 2 * 1 / 2 / 2)):
        expected = bytes_sent * (BYTES["bag"] + STATE["bag"]) / 0.1e9 * 1e3 + 3 * 0.05
        assert added(task, WHOLE)[0] == pytest.approx([0, expected])


def test_sgd_has_no_state_to_average():
    task = task_of(ShardingGroups(2, 1, 4), tables=(BAG,), optimizer="sgd")
    expected = 2 * 1 / 2 * BYTES["bag"] / 1e9 * 1e3 + 0.02
    assert added(task, [Shard.whole(BAG, 0)]) == pytest.approx(np.array([(0, expected), (0, 0)]))


def test_fully_sharded_groups_scatter_after_forward_and_gather_before_backward():
    task = task_of(ShardingGroups(2, 1, 4, fully_sharded=True))
    expected = 1 / 2 * BYTES["bag"] / 1e9 * 1e3 + 0.02
    assert added(task, WHOLE)[0] == pytest.approx([expected, expected])


def test_gradients_of_replicated_tables_are_reduced_over_the_whole_cluster():
    """The group lies on one host; the time of the cluster's all-reduce between its two hosts, beyond that in the group, counts."""
    shards = [Shard.whole(BAG, 0, 1), Shard.whole(HALF, 1)]
    task = task_of(ShardingGroups(2, 2, 2, inter_host_allreduce=True))
    gradient = 4 * 1000 * 64
    more = gradient * (2 * 1 / 2 / 2 / 0.1e9 - 2 * 1 / 2 / 1e9) * 1e3
    assert added(task, shards)[0] == pytest.approx([0, more + 3 * 0.05])


def test_without_other_groups_nothing_is_added():
    task = task_of(None)
    assert for_task(MODEL, task) is MODEL
    grouped = for_task(MODEL, task_of(ShardingGroups(2, 1, 4)))
    assert isinstance(grouped, GroupedModel)
    assert for_task(grouped, task) is MODEL
    assert grouped.name == MODEL.name


def test_columns_and_shards_are_encoded_alike():
    task = task_of(ShardingGroups(2, 2, 4))
    model = for_task(MODEL, task)
    blocks = Blocks(*(np.array(column) for column in ([0, 0, 1], [1000, 1000, 500], [64, 32, 32], [1, 1, 2])))
    shards = [Shard("bag", (0, 1000), (0, 64), (0,)), Shard("bag", (0, 1000), (0, 32), (0,)), Shard.whole(HALF, 0, 1)]
    from shardwright.sharding.work import shard_work

    expected = model.pricing.vectors(model.encode([shard_work(task, shard) for shard in shards]))
    assert Tables(task, model).costs(blocks).vectors == pytest.approx(expected)


def test_searches_balance_the_synchronisation_and_bounds_hold_with_it():
    """Big cold tables cost nearly nothing but their synchronisation, so a plan spreads that."""
    tables = [Table(f"t{i}", 200_000 * (i + 1), 32, 1.0) for i in range(5)]
    task = task_of(ShardingGroups(2, 2, 4), tables=tables)
    group_plan = plan(task, cost_model=MODEL, runs_on="torchrec")
    weights = group_plan.memory.weights
    assert weights.max() < 1.02 * weights.mean()
    assert group_plan.cost.step_ms > 2 * 3 / 4 * weights.mean() / 1e9 * 1e3
    bound = lower_bound(task, for_task(MODEL, task))
    rng = np.random.default_rng(0)
    for _ in range(20):
        shards = [Shard.whole(table, int(rng.integers(2))) for table in tables]
        assert score(task, shards, MODEL).step_ms >= bound.ms
    assert group_plan.cost.step_ms >= bound.ms > 0.9 * group_plan.cost.step_ms


def test_a_plan_of_a_group_is_scored_alike_when_it_is_loaded(tmp_path):
    task = task_of(ShardingGroups(2, 2, 4, sync_interval=3))
    group_plan = plan(task, cost_model=MODEL, runs_on="torchrec")
    group_plan.save(tmp_path / "plan.json")
    loaded = Plan.load(tmp_path / "plan.json")
    assert loaded.task.groups == task.groups
    assert loaded.runs_on == ("torchrec",)
    assert score(loaded.task, loaded.shards, MODEL).step_ms == pytest.approx(group_plan.cost.step_ms)
