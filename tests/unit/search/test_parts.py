"""Grids of any row blocks: the search plans the column blocks of busy tables as tables of their own."""

from __future__ import annotations

import numpy as np
import pytest

import shardwright as sw
from shardwright.search.parts import InParts
from shardwright.sharding.plan import Plan
from shardwright.sharding.shard import Shard
from shardwright.task import Constraints, Exchange, TableConstraint, Task, Topology

HOT = sw.Table("hot", 100_000, 64, 20.0)
COLD = sw.Table("cold", 1_000, 16, 1.0)


def task_of(limits: TableConstraint | None = None, **constraints) -> Task:
    tables = {} if limits is None else {"hot": limits}
    return Task([HOT, COLD], Topology(1, 8), 4096, constraints=Constraints(tables, **constraints))


@pytest.mark.parametrize(("busy", "blocks"), [(3.9, None), (4.0, 2), (5.4, 4), (40.0, 8)])
def test_a_table_has_the_column_blocks_that_send_the_fewest_bytes(busy, blocks):
    """64 columns of sums and their gradients take 512 bytes a sample, the ids and the length 168."""
    parts = InParts.of_busy_tables(task_of(), np.array([busy, 0.1])).parts
    assert parts.get("hot") == blocks


def test_column_blocks_beside_row_blocks_pay_for_pooled_tables_with_many_ids():
    """Rows of sequences travel once, however many row blocks there are; few ids cost little, however many column blocks there are."""
    few, rows = sw.Table("hot", 100_000, 64, 2.0), sw.Table("hot", 100_000, 64, 20.0, pooled=False)
    for table in (few, rows):
        assert not InParts.of_busy_tables(Task([table], Topology(1, 8), 4096), np.array([8.0])).parts


def test_narrower_values_on_the_wire_make_fewer_column_blocks():
    assert InParts.of_busy_tables(Task([HOT], Topology(1, 8), 4096), np.array([5.4])).parts == {"hot": 4}
    task = Task([HOT], Topology(1, 8), 4096, exchange=Exchange(values="fp8", gradients="fp16"))
    assert InParts.of_busy_tables(task, np.array([5.4])).parts == {"hot": 2}


@pytest.mark.parametrize(
    "task",
    [
        task_of(TableConstraint(equal_rows=True)),
        task_of(TableConstraint(("row_wise", "column_wise"))),
        task_of(TableConstraint(max_shards=3)),
        task_of(colocate=(("hot", "cold"),)),
    ],
)
def test_constraints_keep_a_table_whole(task):
    in_parts = InParts.of_busy_tables(task, np.array([8.0, 0.1]))
    assert in_parts.cut(task) is task


def test_limits_hold_for_all_blocks_together():
    task = task_of(TableConstraint(max_shards=9, devices=(0, 1, 2, 3)))
    cut = InParts(task, {"hot": 4}).cut(task)
    blocks = [table for table in cut.tables if table.name != "cold"]
    assert [table.dim for table in blocks] == [16] * 4
    assert {cut.constraints.of(table.name).max_shards for table in blocks} == {2}
    assert {cut.constraints.of(table.name).devices for table in blocks} == {(0, 1, 2, 3)}


def test_blocks_lie_in_their_columns():
    task = task_of()
    in_parts = InParts(task, {"hot": 2})
    first, second, cold = in_parts.cut(task).tables
    plan = Plan(
        in_parts.cut(task),
        [
            Shard.whole(first, 3),
            Shard(second.name, (0, 40_000), (0, 32), (1,)),
            Shard(second.name, (40_000, 100_000), (0, 32), (2,)),
            Shard.whole(cold, 0),
        ],
    )
    assert set(in_parts.joined(plan)) == {
        Shard("hot", (0, 100_000), (0, 32), (3,)),
        Shard("hot", (0, 40_000), (32, 64), (1,)),
        Shard("hot", (40_000, 100_000), (32, 64), (2,)),
        Shard.whole(COLD, 0),
    }


def test_a_lone_hot_table_becomes_a_grid_off_whole_hosts_within_its_bound():
    """On one host, column blocks repeat the ids and row blocks repeat the sums on every device; a grid repeats less of both."""
    access = sw.AccessProfile.zipf(10_000_000, 1.05)
    task = Task([sw.Table("hot", 10_000_000, 128, 30.0, access=access)], Topology.preset("h100-8"), 131_072)
    plan = sw.plan(task, runs_on="shardwright", time_limit=60)
    assert plan.sharding_type("hot") == "grid"
    assert plan.gap is not None
    assert 0 <= plan.gap < 0.01
    assert plan.cost.step_ms < 0.9 * sw.plan(task, time_limit=60).cost.step_ms
