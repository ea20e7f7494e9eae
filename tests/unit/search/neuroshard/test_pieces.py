"""From arrays back to shards: columns, colocated tables, and pieces of a table that end on one device."""

from __future__ import annotations

import numpy as np

from shardwright.search.neuroshard import Placed, Score, halved, make_pieces, shards_of
from shardwright.search.units import take_apart
from shardwright.sharding.checking import check_plan
from shardwright.task import Constraints, Table, Task, Topology
from shardwright.testing.model import SimpleCostModel

MODEL = SimpleCostModel()
STEP = Score(embedding=False)


def half_and_quarters(task: Task, ranks, score=STEP):
    """The shards of table "a", cut into a half and two quarters that lie on `ranks`, among those of the task."""
    pieces, cuts = make_pieces(task, take_apart(task), MODEL)
    tables = [table.name for table in task.tables]
    (whole,) = cuts.whole[cuts.table[cuts.whole] == tables.index("a")]
    state = halved(cuts, halved(cuts, cuts.whole, int(whole)), int(cuts.half[whole]))
    device = np.zeros_like(state)
    device[cuts.table[state] == tables.index("a")] = ranks
    placed = Placed(STEP(pieces, state, device), state, device)
    shards = shards_of(pieces, placed, score)
    return [shard for shard in shards if shard.table == "a"], shards


def task_of(**limits) -> Task:
    tables = [Table("b", 1000, 8), Table("a", 1000, 32, pooling=50.0), Table("c", 50, 6)]
    return Task(tables, Topology(devices_per_host=3), 256, constraints=Constraints(**limits))


def test_pieces_take_the_columns_in_order_of_their_ranks():
    task = task_of()
    blocks, shards = half_and_quarters(task, [2, 1, 0])  # the half is the costliest, hence first
    assert [(s.columns, s.devices) for s in blocks] == [((0, 8), (0,)), ((8, 16), (1,)), ((16, 32), (2,))]
    check_plan(task, shards)


def test_pieces_on_one_device_are_joined():
    blocks, _ = half_and_quarters(task_of(), [2, 1, 2])
    assert [(s.columns, s.devices) for s in blocks] == [((0, 8), (1,)), ((8, 32), (2,))]


def test_pieces_are_not_joined_if_that_costs_more():
    blocks, _ = half_and_quarters(task_of(), [2, 1, 2], score=lambda *placement: STEP(*placement) + 1e9)
    assert [(s.columns, s.devices) for s in blocks] == [((0, 8), (1,)), ((8, 24), (2,)), ((24, 32), (2,))]


def test_pieces_of_a_whole_table_on_one_device_are_the_table_again():
    blocks, _ = half_and_quarters(task_of(), [1, 1, 1])
    assert [(s.columns, s.devices) for s in blocks] == [((0, 32), (1,))]


def test_colocated_tables_keep_their_blocks():
    task = task_of(colocate=(("b", "c"),))
    _, shards = half_and_quarters(task, [0, 1, 2])
    check_plan(task, shards)
    assert {(s.table, s.columns) for s in shards if s.table != "a"} == {("b", (0, 8)), ("c", (0, 6))}
