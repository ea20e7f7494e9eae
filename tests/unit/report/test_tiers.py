import pytest

from shardwright.report import tiered_tables, tiers_of
from shardwright.sharding import Plan, Shard
from shardwright.task import AccessProfile, Table, Task, Topology
from tests.unit.report.plans import mixed_plan


def test_the_tiers_of_a_tiered_table():
    plan = mixed_plan()
    assert tiered_tables(plan) == ("history",)
    hot, warm, cold = tiers_of(plan, "history")
    assert [(one.name, one.rows, one.copies, one.blocks) for one in (hot, warm, cold)] == [
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
    found = [(one.name, one.rows, one.copies, one.blocks) for one in tiers_of(plan, "t")]
    assert found == [("hot", (0, 10), 3, 1), ("2 copies", (10, 20), 2, 1), ("cold", (20, 100), 1, 2)]
