"""Column blocks of one width, several of them on a device if that pays."""

from dataclasses import replace

import numpy as np
import pytest

import shardwright as sw
from shardwright.errors import InvalidPlan
from shardwright.search.engine.catalog import make_catalog
from shardwright.search.engine.session import Start, prepare, start
from shardwright.sharding.memory import memory_account
from shardwright.sharding.ways import equal_blocks
from shardwright.testing.model import SimpleCostModel
from shardwright.testing.tasks import task_of

MODEL = SimpleCostModel()
EQUAL = sw.TableConstraint(("table_wise", "column_wise"), equal_columns=True)


def equal(tables, devices=2, memory="1 GB", limits=EQUAL, **groups):
    where = sw.Topology(devices_per_host=devices, memory=memory)
    return sw.Task(tables, where, 1024, constraints=sw.Constraints({t.name: limits for t in tables}, **groups))


def widths(plan):
    return {name: {shard.dim for shard in shards} for name, shards in plan.by_table.items()}


def test_numbers_of_blocks_divide_the_dim_and_keep_the_other_limits():
    table = sw.Table("t", 1000, 48)
    assert equal_blocks(table, EQUAL) == [2, 3, 4, 6, 12]
    assert equal_blocks(table, replace(EQUAL, min_columns=12)) == [2, 3, 4]
    assert equal_blocks(table, replace(EQUAL, min_columns=11, column_multiple=8)) == [2, 3]
    assert equal_blocks(table, replace(EQUAL, max_shards=3)) == [2, 3]
    assert equal_blocks(table, sw.TableConstraint(("row_wise",))) == []
    assert equal_blocks(replace(table, dim=10), replace(EQUAL, column_multiple=4)) == []


@pytest.mark.parametrize("strategy", ["auto", "certified", "exact", "greedy", "neuroshard", "column_wise"])
@pytest.mark.parametrize("dim", [36, 64])
def test_every_strategy_keeps_one_width(strategy, dim):
    tables = [sw.Table(f"t{i}", 100_000, dim, 20.0) for i in range(2)]
    task = equal(tables, 4, limits=replace(EQUAL, sharding_types=None), memory="14 MB" if dim == 36 else "24 MB")
    plan = sw.plan(task, strategy=strategy, cost_model=MODEL, time_limit=10)
    plan.check()
    assert all(len(dims) == 1 for dims in widths(plan).values())


def test_a_device_holds_several_blocks_if_that_pays():
    """A quarter of the large table lies beside the small one, which is whole, and three quarters on the other device."""
    tables = [sw.Table("small", 10_000, 32, 10.0), sw.Table("large", 10_000, 64, 10.0)]
    limits = {"small": sw.TableConstraint(("table_wise",)), "large": EQUAL}
    task = replace(equal(tables), constraints=sw.Constraints(limits))
    plan = sw.plan(task, strategy="certified", cost_model=MODEL)
    held = {rank: sum(s.dim for s in plan.shards if s.devices == (rank,)) for rank in (0, 1)}
    assert widths(plan)["large"] == {16}
    assert held == {0: 48, 1: 48}
    best = sw.plan(task, strategy="exact", cost_model=MODEL)
    assert best.cost.step_ms == pytest.approx(plan.cost.step_ms, rel=1e-6)


def test_the_search_prices_what_the_plan_costs():
    """Pieces of several blocks cost their blocks, in kernels, bytes on links and memory."""
    task = equal([replace(table, dim=48) for table in task_of(6, 2).tables])
    forms = make_catalog(task, MODEL).forms
    assert forms.units.tolist() == [2] * 6 + [3, 4, 6, 12] * 6
    for form in np.flatnonzero(forms.units > 2):
        first, last = forms.first[form], forms.first[form + 1] - 1
        one, two = (forms.costs.vectors[first + more] for more in (0, 1))
        assert two == pytest.approx(2 * one)
        assert forms.costs.bytes[first + 1] == 2 * forms.costs.bytes[first]
        assert forms.costs.bytes[last] == forms.costs.bytes[forms.first[forms.table[form] + 1] - 1]
    prepared = prepare(task, MODEL)
    assert prepared.bound_ms <= sw.plan(task, cost_model=MODEL).cost.step_ms * (1 + 1e-9)


def test_memory_of_several_blocks_is_that_of_the_plan():
    """A device that a table's three quarters fill to the byte takes them."""
    table = sw.Table("t", 10_000, 64, 1.0)
    roomy = equal([table])
    shards = [sw.Shard("t", (0, 10_000), (16 * i, 16 * i + 16), (int(i == 3),)) for i in range(4)]
    memory = memory_account(roomy, shards).total
    tight = replace(roomy, topology=sw.Topology(devices_per_host=2, memory=memory.tolist()))
    plan = sw.plan(tight, strategy="certified", cost_model=MODEL)
    assert sorted(shard.devices for shard in plan.shards) in ([(0,), (0,), (0,), (1,)], [(0,), (1,)])


def test_colocated_tables_are_cut_alike_into_blocks_of_their_own_width():
    tables = [sw.Table("a", 50_000, 32, 10.0), sw.Table("b", 50_000, 64, 10.0)]
    limits = replace(EQUAL, sharding_types=("column_wise",))
    plan = sw.plan(equal(tables, limits=limits, colocate=(("a", "b"),)), strategy="certified", cost_model=MODEL)
    plan.check()
    assert all(len(dims) == 1 for dims in widths(plan).values())


def test_a_plan_with_other_columns_is_named():
    task = equal([sw.Table("t", 1000, 40)])
    shards = [sw.Shard("t", (0, 1000), pair, (rank,)) for rank, pair in enumerate(((0, 12), (12, 40)))]
    with pytest.raises(InvalidPlan, match="has blocks of 12 and of 28 columns; all of its column blocks must have one"):
        sw.Plan(task, shards).check()


def test_a_search_goes_on_from_a_plan_with_several_blocks_a_device():
    task = equal([sw.Table("small", 10_000, 32, 10.0), sw.Table("large", 10_000, 64, 10.0)])
    before = sw.plan(task, strategy="certified", cost_model=MODEL)
    after = sw.plan(task, strategy="certified", cost_model=MODEL, start=before, move_cost=1e6)
    assert sorted(map(str, after.shards)) == sorted(map(str, before.shards))
    grown = replace(task, topology=sw.Topology(devices_per_host=3))
    plan = sw.plan(grown, strategy="certified", cost_model=MODEL, start=before, move_cost=0.0)
    plan.check()
    assert all(len(dims) == 1 for dims in widths(plan).values())


@pytest.mark.parametrize(
    "limits", [sw.TableConstraint(("column_wise",)), replace(EQUAL, sharding_types=("column_wise",))]
)
def test_tables_that_must_be_cut_are_cut_if_room_for_pieces_runs_out(limits):
    """Every table in its narrowest blocks would be 1,536 pieces, more than a search has room for."""
    task = equal([sw.Table(f"t{i}", 100 + i, 512, 10.0) for i in range(12)], limits=limits)
    prepared = prepare(task, MODEL)
    state, stuck = start(prepared, Start(1e-9))
    assert stuck < 0
    sw.Plan(task, prepared.shards(state)).check()


@pytest.mark.parametrize("strategy", ["certified", "exact", "greedy", "neuroshard"])
@pytest.mark.parametrize("devices", [1, 2])
def test_a_table_wider_than_the_kernels_is_cut_with_several_blocks_on_a_device(strategy, devices):
    """FBGEMM takes blocks of up to 2,048 columns on GPUs; on CPUs, and in narrow tables, nothing changes."""
    tables = [sw.Table("wide", 1000, 6144, 4.0), sw.Table("narrow", 1000, 64, 4.0)]
    task = sw.Task(tables, sw.Topology(devices_per_host=devices, device="h100"), 64)
    plan = sw.plan(task, strategy=strategy, cost_model=MODEL, time_limit=10)
    assert max(widths(plan)["wide"]) <= 2048
    assert len(plan.by_table["wide"]) >= 3
    assert plan.runs_on == ("shardwright", "torchrec")
    whole = replace(plan, shards=tuple(sw.Shard.whole(table, 0) for table in tables))
    assert whole.runs_on == ()
    on_cpu = sw.plan(replace(task, topology=sw.Topology(devices_per_host=1)), strategy=strategy, cost_model=MODEL)
    assert len(on_cpu.shards) == 2


def test_a_wide_table_that_may_not_be_cut_is_refused():
    table = sw.Table("wide", 1000, 4096)
    for limits in (
        sw.TableConstraint(("table_wise", "row_wise")),
        sw.TableConstraint(max_shards=1),
        sw.TableConstraint(min_columns=2049),
    ):
        task = sw.Task(
            [table], sw.Topology(devices_per_host=2, device="h100"), 64, constraints=sw.Constraints({"wide": limits})
        )
        with pytest.raises(sw.InfeasibleTask, match="4096 columns.*at most 2048"):
            sw.plan(task, runs_on="torchrec", cost_model=MODEL)


def test_equal_blocks_that_may_not_be_whole_may_all_lie_on_one_device():
    limits = sw.TableConstraint(("column_wise",), equal_columns=True, max_columns=32)
    tables = [sw.Table("cut", 1000, 64, 4.0)]
    plans = [
        sw.plan(equal(tables, 1, limits=limits), strategy=strategy, cost_model=MODEL)
        for strategy in ("certified", "exact")
    ]
    assert all(len(of := widths(plan)["cut"]) == 1 and of <= {4, 8, 16, 32} for plan in plans)
    assert plans[0].cost.step_ms == pytest.approx(plans[1].cost.step_ms)
    assert plans[0].bound_ms <= plans[0].cost.step_ms * (1 + 1e-9)
    one_block = replace(plans[0], shards=(sw.Shard.whole(tables[0], 0),))
    with pytest.raises(InvalidPlan):
        one_block.check()
