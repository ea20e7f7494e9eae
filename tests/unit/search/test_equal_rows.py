"""Limits that executors set: equal row blocks on all devices or one host, and the narrowest column block."""

from dataclasses import replace

import pytest

import shardwright as sw
from shardwright.errors import InvalidInput, InvalidPlan
from shardwright.search.bound import lower_bound
from shardwright.task.files import task_from_dict, task_to_dict
from shardwright.testing.model import SimpleCostModel
from shardwright.testing.tasks import task_of

MODEL = SimpleCostModel()


def limited(devices=4, hosts=1, tables=12, **limits):
    task = task_of(tables, devices)
    constraint = sw.TableConstraint(**limits)
    where = replace(task.topology, hosts=hosts, devices_per_host=devices // hosts)
    return replace(task, topology=where, constraints=sw.Constraints({t.name: constraint for t in task.tables}))


def blocks_of(plan):
    return {name: [(s.rows, s.columns, s.devices) for s in shards] for name, shards in plan.by_table.items()}


@pytest.mark.parametrize(
    ("hosts", "kinds"), [(1, ("row_wise",)), (2, ("row_wise", "table_row_wise")), (2, ("table_row_wise",))]
)
@pytest.mark.parametrize("strategy", ["certified", "greedy", "neuroshard"])
def test_equal_rows_are_on_all_devices_or_one_host(hosts, kinds, strategy):
    task = limited(8, hosts, sharding_types=(*kinds, "column_wise"), equal_rows=True)
    plan = sw.plan(task, strategy=strategy, cost_model=MODEL, time_limit=5)
    for table in task.tables:
        shards = plan.by_table[table.name]
        if all(shard.row_count == table.rows for shard in shards):
            continue
        ranks = sorted(shard.devices[0] for shard in shards)
        near = task.topology.devices_per_host
        groups = [list(range(8)), *(list(range(host * near, (host + 1) * near)) for host in range(hosts))]
        assert ranks in groups or len(shards) == table.rows
        assert max(shard.row_count for shard in shards) - min(shard.row_count for shard in shards) <= 1


def test_certified_makes_rows_of_both_kinds_and_its_bound_holds():
    task = limited(8, 2, sharding_types=("row_wise", "table_row_wise"), equal_rows=True)
    plan = sw.plan(task, cost_model=MODEL)
    assert {plan.sharding_type(table.name) for table in task.tables} <= {"row_wise", "table_row_wise"}
    assert lower_bound(task, MODEL).ms <= plan.cost.step_ms * (1 + 1e-9)
    assert plan.bound_ms <= plan.cost.step_ms * (1 + 1e-9)


@pytest.mark.slow
def test_equal_rows_do_not_beat_any_rows():
    free = limited(8, 2)
    equal = replace(
        free, constraints=sw.Constraints({t.name: sw.TableConstraint(equal_rows=True) for t in free.tables})
    )
    assert sw.plan(free, cost_model=MODEL).bound_ms <= sw.plan(equal, cost_model=MODEL).cost.step_ms * (1 + 1e-9)


@pytest.mark.parametrize("strategy", ["certified", "greedy", "neuroshard"])
@pytest.mark.parametrize("least", [8, 24])
def test_column_blocks_have_the_fewest_columns_asked_for(strategy, least):
    task = limited(sharding_types=("column_wise", "table_wise"), min_columns=least)
    plan = sw.plan(task, strategy=strategy, cost_model=MODEL)
    assert all(s.dim >= least or s.dim == task.table_by_name[s.table].dim for s in plan.shards)
    only = limited(sharding_types=("column_wise",), min_columns=8)
    wide = replace(only, tables=tuple(replace(t, dim=64) for t in only.tables))
    wide_plan = sw.plan(wide, strategy=strategy, cost_model=MODEL, runs_on="torchrec")  # sequences too
    assert all(len(b) > 1 for b in blocks_of(wide_plan).values())


@pytest.mark.parametrize("strategy", ["certified", "exact", "greedy", "neuroshard", "column_wise"])
def test_columns_are_a_minimum_and_not_a_grid(strategy):
    """16 and 20 columns of 36 are allowed, and on two devices are the best plan."""
    limits = sw.TableConstraint(("column_wise",), min_columns=16)
    table = sw.Table("t", 100_000, 36, 20.0)
    task = sw.Task([table], sw.Topology(devices_per_host=2), 1024, constraints=sw.Constraints({"t": limits}))
    if strategy == "neuroshard":
        table = replace(table, dim=64)  # it halves
        task = replace(task, tables=[table])
    plan = sw.plan(task, strategy=strategy, cost_model=MODEL)
    assert sorted(shard.dim for shard in plan.shards) == ([32, 32] if strategy == "neuroshard" else [16, 20])


@pytest.mark.parametrize("strategy", ["certified", "exact", "greedy", "neuroshard", "column_wise"])
@pytest.mark.parametrize("dim", [48, 20])
def test_columns_are_multiples_of_what_is_asked_for(strategy, dim):
    limits = sw.TableConstraint(("column_wise", "table_wise"), column_multiple=12)
    if strategy == "column_wise":
        limits = replace(limits, sharding_types=None)
    tables = [sw.Table(f"t{i}", 100_000, dim, 20.0) for i in range(2)]
    constraints = sw.Constraints({table.name: limits for table in tables})
    task = sw.Task(tables, sw.Topology(devices_per_host=3, memory="22 MB"), 1024, constraints=constraints)
    if dim % 12:
        task = replace(task, topology=sw.Topology(devices_per_host=3))
    plan = sw.plan(task, strategy=strategy, cost_model=MODEL)
    plan.check()
    assert all(shard.dim % 12 == 0 or shard.dim == dim for shard in plan.shards)
    broken = [sw.Shard(t.name, (0, t.rows), pair, (0,)) for t in tables for pair in ((0, 8), (8, dim))]
    with pytest.raises(InvalidPlan, match="must be a multiple of 12"):
        sw.Plan(replace(task, topology=sw.Topology(devices_per_host=3)), broken).check()


def test_plans_that_break_these_limits_are_named():
    task = limited(4, sharding_types=None, min_columns=8, equal_rows=True)
    table = next(t for t in task.tables if t.rows > 100 and t.dim >= 16)
    others = [sw.Shard.whole(t, 0) for t in task.tables if t is not table]

    def check(*shards):
        sw.Plan(replace(task, topology=replace(task.topology, memory="1 TB")), [*others, *shards]).check()

    def rows(start, stop, rank):
        return sw.Shard(table.name, (start, stop), (0, table.dim), (rank,))

    cuts = [table.rows * i // 4 for i in range(5)]
    check(*(rows(cuts[i], cuts[i + 1], i) for i in range(4)))
    with pytest.raises(InvalidPlan, match="row blocks must be equal, one on each device of the cluster"):
        check(rows(0, table.rows // 2, 0), rows(table.rows // 2, table.rows, 1))
    with pytest.raises(InvalidPlan, match="a block of 4 columns; blocks must have at least 8"):
        check(
            sw.Shard(table.name, (0, table.rows), (0, 4), (0,)),
            sw.Shard(table.name, (0, table.rows), (4, table.dim), (1,)),
        )


def test_task_files_keep_these_limits():
    task = limited(min_columns=8, column_multiple=4, equal_rows=True)
    assert task_from_dict(task_to_dict(task), "task").constraints == task.constraints
    with pytest.raises(InvalidInput, match="min_columns is 0"):
        sw.TableConstraint(min_columns=0)


def test_exact_keeps_them_too_and_is_at_least_as_good():
    task = limited(
        2, 2, tables=3, equal_rows=True, min_columns=8, sharding_types=("row_wise", "table_wise", "column_wise")
    )
    best, certified = (sw.plan(task, strategy=name, cost_model=MODEL) for name in ("exact", "certified"))
    assert best.cost.step_ms <= certified.cost.step_ms * (1 + 1e-3)


def test_rows_of_a_short_table_on_two_hosts_are_not_reduced_inside_one():
    """Two row blocks on two hosts of two devices are as many as a host has devices; links inside hosts are slow."""
    limits = sw.TableConstraint(sharding_types=("row_wise", "table_row_wise"), devices=(1, 2), equal_rows=True)
    topology = sw.Topology(2, 2, "cpu", "1 GB", intra_bandwidth=1e3, inter_bandwidth=1e9)
    task = sw.Task([sw.Table("short", 2, 64, 1.0)], topology, 64, constraints=sw.Constraints({"short": limits}))
    plan = sw.Plan(task, [sw.Shard("short", (row, row + 1), (0, 64), (row + 1,)) for row in range(2)])
    assert lower_bound(task, MODEL).ms <= sw.cost.score(task, plan.shards, MODEL).step_ms
