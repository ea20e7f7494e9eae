"""Plans as TorchRec's and back; TorchRec's own calculation of shards is the reference."""

from dataclasses import replace

import pytest

pytest.importorskip("torchrec")

import itertools

import torch
from torchrec.distributed.planner.types import ParameterConstraints
from torchrec.distributed.sharding_plan import calculate_shard_sizes_and_offsets

import shardwright as sw
from shardwright.errors import InvalidPlan
from shardwright.integrations.torchrec import plan_of, problem_of, sharding_plan_of
from shardwright.integrations.torchrec.conversion import runnable

from .made import SHARDERS, bags, ranks_of, sequences, tables_of, topology

pytestmark = pytest.mark.torchrec

ROWS, DIM = 1001, 64
TYPES = ["data_parallel", "table_wise", "column_wise", "row_wise", "table_row_wise", "table_column_wise", "grid_shard"]


def problem(types=TYPES, rows=ROWS, dim=DIM, world=4, local=2, min_partition=None):
    asked = ParameterConstraints(sharding_types=list(types), min_partition=min_partition)
    return problem_of(bags([(rows, dim)]), SHARDERS, topology(world, local), 8, {"t0": asked})


def converted(shards, our_problem=None):
    our_problem = our_problem or problem()
    return tables_of(sharding_plan_of(sw.Plan(our_problem.task, shards), our_problem))["", "t0"]


def blocks(cuts, ranks, columns=(0, DIM)):
    return [sw.Shard("t0", rows, columns, (rank,)) for rows, rank in zip(itertools.pairwise(cuts), ranks, strict=True)]


def metadata(table):
    shards = table.sharding_spec.shards
    return [shard.shard_sizes for shard in shards], [shard.shard_offsets for shard in shards]


@pytest.mark.parametrize("rows", [1001, 1000, 7, 5, 4, 3])
@pytest.mark.parametrize(("kind", "near"), [("row_wise", 4), ("table_row_wise", 2)])
def test_row_blocks_are_those_of_torchrec(kind, near, rows):
    ranks = range(near)
    cuts = [rows * i // near for i in range(near + 1)]
    shards = list(blocks(sorted(set(cuts)), list(ranks)[: len(set(cuts)) - 1]))
    table = converted(shards, problem([kind], rows))
    expected = calculate_shard_sizes_and_offsets(torch.empty(rows, DIM, device="meta"), 4, 2, kind)
    assert table.sharding_type == kind
    assert metadata(table) == tuple(expected)
    assert ranks_of(table) == list(ranks)


def test_column_blocks_and_whole_tables_keep_their_ranks():
    table = converted([sw.Shard("t0", (0, ROWS), (0, 32), (3,)), sw.Shard("t0", (0, ROWS), (32, DIM), (0,))])
    assert (table.sharding_type, ranks_of(table)) == ("column_wise", [3, 0])
    assert metadata(table) == ([[ROWS, 32], [ROWS, 32]], [[0, 0], [0, 32]])
    assert str(table.sharding_spec.shards[0].placement) == "rank:3/cuda:1"
    whole = converted([sw.Shard("t0", (0, ROWS), (0, DIM), (2,))])
    assert (whole.sharding_type, whole.ranks) == ("table_wise", [2])


def test_whole_tables_beside_column_blocks_are_one_column_block():
    """Two sharding types of a module would call two sets of collectives."""
    our_problem = problem_of(bags([(100, 64), (200, 64), (300, 64)]), SHARDERS, topology(2), 8)
    cut = [sw.Shard("t0", (0, 100), (0, 32), (0,)), sw.Shard("t0", (0, 100), (32, 64), (1,))]
    whole = [sw.Shard.whole(our_problem.task.tables[at], at - 1) for at in (1, 2)]
    tables = tables_of(sharding_plan_of(sw.Plan(our_problem.task, cut + whole), our_problem))
    assert {table.sharding_type for table in tables.values()} == {"column_wise"}
    assert [ranks_of(tables["", name]) for name in ("t1", "t2")] == [[0], [1]]
    alone = tables_of(
        sharding_plan_of(
            sw.Plan(our_problem.task, [sw.Shard.whole(our_problem.task.tables[0], 1), *whole]), our_problem
        )
    )
    assert {table.sharding_type for table in alone.values()} == {"table_wise"}


def test_replicas_on_all_ranks_are_data_parallel_and_dense():
    table = converted([sw.Shard("t0", (0, ROWS), (0, DIM), (0, 1, 2, 3))])
    assert (table.sharding_type, table.compute_kernel, table.sharding_spec) == ("data_parallel", "dense", None)


def test_a_grid_is_row_blocks_on_one_host_for_each_range_of_columns():
    shards = blocks([0, 501, ROWS], [2, 3], (0, 32)) + blocks([0, 501, ROWS], [0, 1], (32, DIM))
    table = converted(shards)
    expected = calculate_shard_sizes_and_offsets(torch.empty(ROWS, DIM, device="meta"), 4, 2, "grid_shard", 32)
    assert table.sharding_type == "grid_shard"
    assert metadata(table) == tuple(expected)
    assert ranks_of(table) == [2, 3, 0, 1]


HOT = [
    sw.Shard("t0", (0, 10), (0, DIM), (0, 1, 2, 3), "hotness"),
    sw.Shard("t0", (10, ROWS), (0, DIM), (1,), "hotness"),
]
UNPLANNED = {
    "tiered": HOT,
    "replicas on some": [sw.Shard("t0", (0, ROWS), (0, DIM), (0, 2))],
    "unequal rows": blocks([0, 900, ROWS], [0, 1]),
    "equal rows on two hosts": blocks([0, 501, ROWS], [1, 2]),
    "whole and cut columns": [*blocks([0, ROWS], [0], (0, 32)), *blocks([0, 500, ROWS], [1, 2], (32, DIM))],
    "unequal columns": [*blocks([0, ROWS], [0], (0, 24)), *blocks([0, ROWS], [1], (24, DIM))],
    "a grid of unequal columns": [*blocks([0, 501, ROWS], [2, 3], (0, 24)), *blocks([0, 501, ROWS], [0, 1], (24, DIM))],
}


@pytest.mark.parametrize("kind", UNPLANNED)
def test_plans_that_torchrec_cannot_run_are_refused_by_name(kind):
    with pytest.raises(InvalidPlan, match="table 't0': TorchRec cannot run its"):
        converted(UNPLANNED[kind])


def test_forbidden_sharding_types_are_refused_by_name():
    with pytest.raises(InvalidPlan, match="table 't0' is sharded table_wise.*allow row_wise only"):
        converted([sw.Shard("t0", (0, ROWS), (0, DIM), (2,))], problem(["row_wise"]))


def test_missing_tables_are_named_both_ways():
    our_problem = problem()
    with pytest.raises(InvalidPlan, match="tables t0 are missing"):
        sharding_plan_of(sw.Plan(our_problem.task, ()), our_problem)
    made = sharding_plan_of(sw.Plan(our_problem.task, [sw.Shard("t0", (0, ROWS), (0, DIM), (2,))]), our_problem)
    del made.plan[""]["t0"]
    with pytest.raises(InvalidPlan, match=r"tables '\.t0' are missing"):
        plan_of(made, our_problem)
    made.plan[""]["ghost"] = made.plan[""].get("t0")
    made.plan[""]["t0"] = None
    with pytest.raises(InvalidPlan, match=r"'\.ghost' of the sharding plan are not in the model"):
        plan_of(made, our_problem)


def test_sequences_of_a_module_are_cut_in_one_width():
    our_problem = problem_of(sequences([500, 600], 48), SHARDERS, topology(4), 8)
    cuts = {"s0": (0, 24, 48), "s1": (0, 12, 24, 36, 48)}
    shards = [
        sw.Shard(name, (0, rows), columns, (rank,))
        for (name, ends), rows in zip(cuts.items(), (500, 600), strict=True)
        for rank, columns in enumerate(itertools.pairwise(ends))
    ]
    plan = sw.Plan(our_problem.task, shards)
    tables = tables_of(sharding_plan_of(plan, our_problem))
    assert {shard.shard_sizes[1] for table in tables.values() for shard in table.sharding_spec.shards} == {12}
    assert ranks_of(tables["", "s0"]) == [0, 0, 1, 1]
    back = runnable(plan, our_problem)
    back.check()
    assert back.memory.weights.tolist() == plan.memory.weights.tolist()
    assert runnable(back, our_problem) == back


def test_torchrecs_planner_made_plans_convert_too():
    from torchrec.distributed.planner import EmbeddingShardingPlanner

    model, where = bags([(2000, 64), (300, 128), (9, 16)]), topology(4, 2)
    theirs = EmbeddingShardingPlanner(where, 64, stats=[]).plan(model, SHARDERS)
    our_problem = problem_of(model, SHARDERS, where, 64)
    plan = plan_of(theirs, our_problem)
    replace(plan, task=replace(plan.task, constraints=sw.Constraints())).check()
    assert tables_of(sharding_plan_of(plan, our_problem)).keys() == tables_of(theirs).keys()
