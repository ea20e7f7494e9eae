import numpy as np
import pytest

import shardwright as sw
from shardwright.errors import InfeasibleTask, InvalidInput
from shardwright.search.hugectr import HugeCTR, Planner
from shardwright.testing import check_strategy
from shardwright.testing.model import SimpleCostModel

MODEL = SimpleCostModel()


def test_every_rule_is_kept_by_rows_alone():
    check_strategy(HugeCTR(columns=False))


def cluster(hosts=1, devices=4, memory="40 GB"):
    return sw.Topology(hosts, devices, "h100", memory)


def planned(tables, topology=None, **options):
    return HugeCTR(**options).search(sw.Task(tables, topology or cluster(), 1024), MODEL, seed=0, deadline=None)


def test_a_table_that_outweighs_all_others_is_cut_into_as_many_pieces_as_devices():
    plan = planned([sw.Table("hot", 10_000, 64, 900.0), sw.Table("a", 100, 16), sw.Table("b", 100, 16)], columns=False)
    assert len(plan.by_table["hot"]) == 4
    assert {shard.rows[1] - shard.rows[0] for shard in plan.by_table["hot"]} == {2500}


def test_traffic_is_what_columns_divide():
    """Rows leave the outputs whole, columns halve them: with few lookups, columns are the cheaper cut."""
    plan = planned([sw.Table("wide", 10_000, 256, 1.0), sw.Table("a", 100, 16)])
    assert {shard.rows for shard in plan.by_table["wide"]} == {(0, 10_000)}
    assert len({shard.columns for shard in plan.by_table["wide"]}) == 4


def test_tables_that_fit_nowhere_are_cut_until_they_fit():
    plan = planned([sw.Table("big", 1_000_000, 64)], cluster(memory="100 MB"))
    assert len(plan.by_table["big"]) == 4


def test_hosts_share_their_pieces_by_rows():
    plan = planned([sw.Table(name, 1000, 32, 5.0) for name in "abcd"], cluster(2, 2), hierarchical=True)
    for shards in plan.by_table.values():
        assert len({shard.devices[0] // 2 for shard in shards}) == 1
        assert [shard.rows for shard in shards] == [(0, 500), (500, 1000)]


def test_load_is_even_for_equal_tables():
    plan = planned([sw.Table(f"t{index}", 1000, 32, 5.0) for index in range(8)])
    assert np.bincount([shard.devices[0] for shard in plan.shards]).tolist() == [2, 2, 2, 2]


def test_another_memory_account_counts():
    tables = [sw.Table("a", 1000, 32), sw.Table("b", 1000, 32)]
    task = sw.Task(tables, sw.Topology(1, 2, "h100", 4 * 1000 * 32), 64)
    with pytest.raises(InfeasibleTask):
        Planner(task, HugeCTR()).best()
    assert Planner(task, HugeCTR(), bytes_of=lambda _, shard: 4 * shard.area).best().stuck is None


def test_tasks_that_cannot_be_planned_raise_with_the_reason():
    with pytest.raises(InfeasibleTask, match="no device has room"):
        planned([sw.Table("big", 10_000_000, 64)], cluster(memory="100 MB"))
    assert "one host" in HugeCTR(hierarchical=True).supports(sw.Task([sw.Table("a", 10, 8)], cluster(), 64))
    with pytest.raises(InvalidInput, match="rounds is 0"):
        HugeCTR(rounds=0)
