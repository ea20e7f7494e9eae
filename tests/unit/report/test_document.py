import json
from dataclasses import replace

import numpy as np
import pytest

from shardwright.cost import traffic
from shardwright.cost.flows import traffic_by_kind
from shardwright.report import entry_of, tiered_tables, tiers_of
from shardwright.report.document import document
from shardwright.sharding import PHASES, Plan, Shard
from shardwright.sharding.memory import shard_bytes
from shardwright.task import AccessProfile, Table, Task, Topology
from tests.unit.report.plans import mixed_plan, row_wise_plan


@pytest.fixture(scope="module")
def data():
    plan = mixed_plan(bound_ms=0.01)
    return document([entry_of(row_wise_plan(), "before"), entry_of(plan, "after")])


def test_a_task_of_two_plans_is_there_once(data):
    json.dumps(data, allow_nan=False)
    assert len(data["tasks"]) == 1
    assert [plan["task"] for plan in data["plans"]] == [0, 0]
    assert data["tasks"][0]["tables"]["name"][-1] == "history"
    assert data["tasks"][0]["limit"] == 64_000_000


def test_times_and_memory_are_the_plans(data):
    plan, shown = mixed_plan(), data["plans"][1]
    for phase, column in zip(PHASES, shown["phases"], strict=True):
        assert column == pytest.approx([getattr(device, phase) for device in plan.cost.devices], rel=1e-5)
    assert np.array(shown["memory"]).sum(axis=0).tolist() == plan.memory.total.tolist()
    assert (shown["stepMs"], shown["boundMs"]) == (plan.cost.step_ms, 0.01)
    assert shown["gap"] == pytest.approx(plan.cost.step_ms / 0.01 - 1)


def test_blocks_and_cells_describe_the_same_places(data):
    plan, shown = mixed_plan(), data["plans"][1]
    blocks, cells = shown["blocks"], shown["cells"]
    ranks = [list(range(4)) if devices == "all" else devices for devices in blocks["devices"]]
    holders = [[] for _ in plan.task.tables]
    for table, devices in zip(blocks["table"], ranks, strict=True):
        holders[table] += [devices] if isinstance(devices, int) else devices
    starts = np.concatenate([[0], np.cumsum(cells["counts"])])
    for table, devices in enumerate(holders):
        assert cells["devices"][starts[table] : starts[table + 1]] == sorted(set(devices))
    assert sorted(blocks["bytes"]) == sorted(shard_bytes(plan.task, shard) for shard in plan.shards)
    assert blocks["types"] == ["table_wise", "column_wise", "row_wise", "data_parallel", "data_parallel", "tiered"]
    assert blocks["byHotness"] == [5]
    assert len(blocks["tier"]) == 6


def test_traffic_by_pass_and_link(data):
    flows = traffic(mixed_plan().task, mixed_plan().shards)
    rows = data["plans"][1]["traffic"]
    assert [(row["pass"], row["link"]) for row in rows] == [
        (name, link) for name in ("forward", "backward") for link in ("inside a host", "between hosts")
    ]
    assert all(sum(row["kinds"].values()) == pytest.approx(row["sent"], rel=1e-4) for row in rows)
    assert rows[1]["kinds"].keys() == {"ids", "values", "sums"}
    kinds = traffic_by_kind(mixed_plan().task, mixed_plan().shards)
    backward = sum(flow.sent[1].sum() for (phase, _), flow in kinds.items() if phase == "backward")
    assert rows[3]["sent"] == pytest.approx(backward, rel=1e-5)
    assert rows[0]["busiest"] == pytest.approx(np.maximum(flows.forward.sent[0], flows.forward.received[0]), rel=1e-5)
    slowest = max(row["ms"] for row in rows[:2])
    assert slowest + flows.waits[0] == pytest.approx(max(data["plans"][1]["phases"][1]), rel=1e-5)


def test_one_device_has_no_traffic():
    plan = row_wise_plan()
    task = replace(plan.task, topology=Topology(1, 1, "cpu", "640 MB"))
    one = replace(plan, task=task, shards=tuple(replace(shard, devices=(0,)) for shard in plan.shards), cost=None)
    assert document([entry_of(one, "one")])["plans"][0]["traffic"] == []


def test_moves_from_the_first_plan_are_listed(data):
    diff = row_wise_plan().diff(mixed_plan())
    first, change = data["changes"]
    assert first is None
    assert (change["movedBytes"], change["keptBytes"]) == (diff.moved_bytes, diff.kept_bytes)
    assert sum(size for _, _, size in change["moves"]) == diff.moved_bytes
    sizes = [row[3] for row in change["tables"]]
    assert sizes == sorted(sizes, reverse=True)


def test_the_tiers_of_a_tiered_table():
    plan = mixed_plan()
    assert tiered_tables(plan) == ("history",)
    hot, warm, cold = tiers_of(plan, "history")
    assert [(tier.name, tier.rows, tier.copies, tier.blocks) for tier in (hot, warm, cold)] == [
        ("hot", (0, 40), 4, 1),
        ("warm", (40, 400), 2, 2),
        ("cold", (400, 2000), 1, 4),
    ]
    assert hot.share + warm.share + cold.share == pytest.approx(1)
    assert hot.share == pytest.approx(plan.task.table_by_name["history"].access.share_of(0, 40))


def test_neighbouring_blocks_with_as_many_copies_are_one_tier():
    table = Table("t", 100, 8, access=AccessProfile.zipf(100, 1.0))
    task = Task((table,), Topology(1, 3, "cpu", "64 MB"), batch_size=8)
    blocks = [((0, 10), (0, 1, 2)), ((10, 20), (0, 1)), ((20, 50), (0,)), ((50, 100), (2,))]
    plan = Plan(task, tuple(Shard("t", rows, (0, 8), devices, "hotness") for rows, devices in blocks))
    plan.check()
    tiers = [(tier.name, tier.rows, tier.copies, tier.blocks) for tier in tiers_of(plan, "t")]
    assert tiers == [("hot", (0, 10), 3, 1), ("2 copies", (10, 20), 2, 1), ("cold", (20, 100), 1, 2)]
