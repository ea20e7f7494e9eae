import time
from dataclasses import replace
from itertools import product

import numpy as np
import pytest

import shardwright as sw
from shardwright.cost.model import Pricing
from shardwright.cost.score import score
from shardwright.errors import InfeasibleTask, InvalidInput
from shardwright.linear_programs import Program, Solution
from shardwright.search.baselines import SortedGreedy
from shardwright.search.exact import Exact
from shardwright.search.exact.formulation import Answer, Effort, all_ways, solve
from shardwright.search.exact.placement import column_units, ways_of
from shardwright.sharding import Shard, shard_bytes
from shardwright.task import AccessProfile, Constraints, Table, TableConstraint, Task, Topology
from shardwright.testing.model import SimpleCostModel
from shardwright.testing.tasks import task_of, tight_task
from tests.wide import GatedModel

MODEL = SimpleCostModel()
BATCH = 256


def test_the_integer_program_takes_any_task_in_a_time_limit():
    task = task_of(24, 6)
    with pytest.raises(InfeasibleTask, match="at most 20 on 4"):
        sw.plan(task, strategy="exact", cost_model=MODEL)
    plan = sw.plan(task, strategy="mip", cost_model=MODEL, time_limit=1.0)
    assert plan.strategy == "mip"
    assert plan.cost.step_ms <= sw.plan(task, strategy="greedy", cost_model=MODEL).cost.step_ms


def exact(task: Task, model=MODEL, **options):
    plan = sw.plan(task, strategy=Exact(**options), cost_model=model)
    plan.check()
    return plan


def task_with(limits=None, *, count=2, hosts=1, devices=2, memory="1 GB", constraints=None, dim=16, **links) -> Task:
    tables = [Table(f"t{i}", 2000, dim, 4.0 + i) for i in range(count)]
    topology = Topology(hosts=hosts, devices_per_host=devices, memory=memory, **links)
    return Task(tables, topology, BATCH, constraints=constraints or Constraints({"t0": limits} if limits else {}))


def only(*kinds: str, devices=None, max_shards=None) -> TableConstraint:
    return TableConstraint(kinds or None, devices, max_shards)


@pytest.mark.parametrize(("count", "devices"), [(1, 1), (3, 1), (1, 4), (4, 2)])
def test_the_bound_is_the_step_of_the_plan(count, devices):
    plan = exact(task_of(count, devices))
    assert plan.strategy == "exact"
    assert plan.bound_ms == pytest.approx(plan.cost.step_ms, rel=2e-6)
    assert plan.gap < 2e-6
    assert plan.cost.step_ms <= sw.plan(plan.task, strategy="greedy", cost_model=MODEL).cost.step_ms


@pytest.mark.slow
def test_the_objective_is_the_score_with_the_learned_model():
    """64 hidden units, 32 sums: every unit that bends is in the program."""
    task = task_of(4, 2)
    model = sw.plan(task, strategy="size").cost_model
    from shardwright.cost.choice import resolve_cost_model

    learned = resolve_cost_model(None, task)
    assert learned.name == model
    answer = solve(task, learned, all_ways(task, learned, 4), Effort(None, None, 1e-6))
    assert answer.bound_ms == pytest.approx(score(task, answer.shards, learned).step_ms, rel=2e-6)


@pytest.mark.parametrize("dims", [(16, 16, 16, 96), (16, 16, 96, 96), (96, 96, 96, 96)])
def test_the_best_placement_is_found_if_a_wide_table_makes_others_dearer(dims):
    """Every placement of whole tables is tried; the program's step is the plan's score."""
    tables = [Table(f"t{i}", 2000, dim, 2.0 + i) for i, dim in enumerate(dims)]
    limits = {table.name: only("table_wise") for table in tables}
    task, model = Task(tables, Topology(devices_per_host=2), BATCH, constraints=Constraints(limits)), GatedModel()
    plan = exact(task, model)
    placements = product(range(2), repeat=len(tables))
    every = [
        score(task, [Shard.whole(*placed) for placed in zip(tables, ranks, strict=True)], model).step_ms
        for ranks in placements
    ]
    assert plan.cost.step_ms == pytest.approx(min(every), rel=2e-6)
    assert plan.bound_ms == pytest.approx(plan.cost.step_ms, rel=2e-6)
    answer = solve(task, model, all_ways(task, model, 4), Effort(None, None, 1e-6))
    assert answer.bound_ms == pytest.approx(min(every), rel=2e-6)


@pytest.mark.parametrize("kind", ["row_wise", "table_row_wise"])
def test_row_blocks_lie_across_hosts_or_on_one(kind):
    """The links between hosts are slow, or those inside: the forbidden placement would be faster."""
    slow, fast = 1e5, 1e9
    links = (
        {"intra_bandwidth": fast, "inter_bandwidth": slow}
        if kind == "row_wise"
        else {"intra_bandwidth": slow, "inter_bandwidth": fast}
    )
    plan = exact(task_with(only(kind, max_shards=2), count=1, hosts=2, **links))
    assert plan.sharding_type("t0") == kind
    assert len(plan.shards) == 2


def test_max_shards_and_pinning_are_kept():
    """Three devices would be better than the two blocks, and the two ranks, that are allowed."""
    limits = only("column_wise", "table_wise", max_shards=2)
    plan = exact(task_with(limits, count=1, devices=3, dim=24))
    assert len(plan.shards) == 2
    free = exact(task_with(only("column_wise"), count=1, devices=3, dim=24))
    assert len(free.shards) == 3
    assert free.cost.step_ms < plan.cost.step_ms
    pinned = exact(task_with(only("column_wise", devices=(0, 2)), count=1, devices=3, dim=24))
    assert {shard.devices for shard in pinned.shards} == {(0,), (2,)}


def test_memory_is_kept_to_the_byte():
    task = tight_task()
    assert exact(task).bound_ms is not None
    lacking = [*task.topology.memory_bytes[:3], task.topology.memory_bytes[3] - 1]
    whole = Constraints({t.name: only("table_wise") for t in task.tables})
    full = replace(task, constraints=whole)
    assert len(exact(full).shards) == 8
    with pytest.raises(InfeasibleTask):
        exact(replace(full, topology=replace(full.topology, memory=lacking)))


def test_a_byte_of_very_large_memory_counts():
    """The solver's tolerance is a share of a row, and a byte is 1e-11 of these devices."""
    tables = [Table(f"t{i}", 10**8 + 7 * i, 64, 1.0) for i in range(4)]
    whole = Constraints({t.name: only("table_wise") for t in tables})
    task = Task(tables, Topology(devices_per_host=2), BATCH, constraints=whole)
    sizes = [shard_bytes(task, Shard.whole(t, 0)) for t in tables]
    fits = [sizes[0] + sizes[3], sizes[1] + sizes[2]]
    exact(replace(task, topology=replace(task.topology, memory=fits)))
    with pytest.raises(InfeasibleTask):
        exact(replace(task, topology=replace(task.topology, memory=[fits[0], fits[1] - 1])))


def test_a_table_far_too_large_for_a_tiny_device_does_not_upset_the_solver():
    """Sizes in the memory rows span 16 decades."""
    tables = [Table("huge", 2**43, 64), Table("small", 10, 4)]
    task = Task(tables, Topology(devices_per_host=2, memory=[1, 2**62]), 1)
    plan = exact(task)
    assert {shard.devices for shard in plan.shards} == {(1,)}


def test_an_empty_device_costs_nothing():
    """A head whose constant is large and which falls with every shard: only devices that hold a shard count."""

    class Falling(SimpleCostModel):
        pricing = Pricing(np.zeros((0, 3)), np.zeros(0), np.zeros((2, 0)), np.full((2, 3), -0.1), np.full(2, 5.0))

    whole = Constraints({f"t{i}": only("table_wise") for i in range(2)})
    task = task_with(devices=3, constraints=whole)
    answer = solve(task, Falling(), all_ways(task, Falling(), None), Effort(None, None, 1e-6))
    step_ms = score(task, answer.shards, Falling()).step_ms
    assert answer.bound_ms == pytest.approx(step_ms, rel=1e-6)
    assert len({shard.devices for shard in answer.shards}) == 1


def test_a_task_that_only_a_full_search_shows_to_be_impossible():
    """Sizes 5, 5, 5, 3, 3, 3 into two bins of 12: the sum is 24, counting and L2 see nothing, and yet they do not fit."""
    rows = [5000, 5000, 5000, 3000, 3000, 3000]
    tables = [Table(f"t{i}", count, 16, 1.0) for i, count in enumerate(rows)]
    whole = Constraints({t.name: only("table_wise") for t in tables})
    task = Task(tables, Topology(devices_per_host=2), 8, constraints=whole)
    thousand_rows = 1000 * (16 * 4 + 4)
    buffers = shard_bytes(task, Shard.whole(tables[0], 0)) - 5 * thousand_rows
    task = replace(task, topology=replace(task.topology, memory=12 * thousand_rows + 3 * buffers))
    with pytest.raises(
        InfeasibleTask, match="exhaustive search found no way .* constraints: allow more sharding_types"
    ):
        exact(task)


def test_a_table_without_any_way_is_refused():
    with pytest.raises(
        InfeasibleTask, match="table 't0' allows only row_wise, and cannot be cut in that way: allow table_wise for it"
    ):
        exact(task_with(only("row_wise"), devices=1))


def test_a_deadline_that_has_passed_gives_the_first_heuristic_plan(monkeypatch):
    task = task_of(8, 4)
    monkeypatch.setattr(SortedGreedy, "search", lambda *_, **__: pytest.fail("time is up"))
    plan = sw.plan(task, strategy=Exact(), cost_model=MODEL, time_limit=0)
    plan.check()
    assert plan.bound_ms is None
    assert plan.shards == sw.plan(task, strategy="greedy", cost_model=MODEL).shards


def test_the_relaxed_program_keeps_the_time_limit(monkeypatch):
    """It gives the unit of time; without that there is neither a plan of the solver nor a bound."""
    given = []

    def late(self, seconds=None):
        given.append(seconds)
        return Solution(None, np.inf, -np.inf)

    monkeypatch.setattr(Program, "relaxed", late)
    plan = sw.plan(task_of(8, 4), strategy="mip", cost_model=MODEL, time_limit=60)
    assert 0 < given[-1] < 60
    assert plan.bound_ms is None


def test_a_program_that_is_not_built_in_time_gives_no_bound():
    task = task_of(4, 2)
    effort = Effort(time.monotonic(), None, 1e-6)
    assert solve(task, MODEL, all_ways(task, MODEL, None), effort) == Answer(None, -np.inf)


@pytest.mark.slow
def test_few_nodes_give_a_plan_and_a_valid_bound():
    task = task_of(6, 2)
    short, longer = (exact(task, max_nodes=nodes) for nodes in (1, 10))
    assert short.bound_ms <= longer.cost.step_ms
    assert short.bound_ms < short.cost.step_ms
    assert short.shards == exact(task, max_nodes=1).shards


def test_coarser_columns_give_a_plan_that_is_no_better_and_no_bound():
    task = task_of(4, 2)
    fine, coarse = exact(task), exact(task, units_per_table=2)
    assert coarse.cost.step_ms >= fine.cost.step_ms * (1 - 1e-6)
    assert coarse.bound_ms is None
    assert exact(task, units_per_table=64).bound_ms is not None


def test_column_units():
    free = TableConstraint()
    assert [column_units(Table("t", 10, dim), free, None) for dim in (1, 4, 6, 8, 10, 128)] == [1, 1, 6, 2, 10, 32]
    assert [column_units(Table("t", 10, dim), free, 6) for dim in (4, 48, 28, 128)] == [1, 6, 1, 4]
    assert column_units(Table("t", 10, 4), only("column_wise"), None) == 4  # must be cut, so as narrow as that takes
    assert column_units(Table("t", 10, 128), only("table_wise"), None) == 1


def test_row_blocks_differ_by_one_row_at_most():
    table = Table("t", 11, 4)
    task = Task([table], Topology(devices_per_host=4), BATCH, constraints=Constraints({"t": only("row_wise")}))
    ways = ways_of(task, table, 1, True)
    assert [sorted({piece.shard.row_count for piece in way.pieces}) for way in ways] == [[5, 6], [2, 3]]


def test_row_blocks_on_a_grid_add_up():
    """Sixteenths of 1,030 rows are no whole rows: blocks are rounded down and up so that none is lost."""
    table = Table("t", 1030, 4)
    task = Task([table], Topology(devices_per_host=3), BATCH, constraints=Constraints({"t": only("row_wise")}))
    grid, *equal = ways_of(task, table, 1, True)
    assert {piece.shard.row_count for piece in grid.pieces} >= {64, 65, 128, 129, 515, 965, 966}
    assert [{piece.shard.row_count for piece in way.pieces} for way in equal] == [
        {343, 344},
        {342, 344},
    ]  # or as TorchRec cuts
    plan = exact(replace(task, topology=Topology(devices_per_host=3, memory=["1 GB", "1 GB", "40 KB"])))
    assert sum(shard.row_count for shard in plan.shards) == 1030


@pytest.mark.parametrize("rows", [1_000_000, 1_000_001])
def test_row_blocks_of_nearly_equal_size_are_not_reduced(rows):
    """Equal ones on all devices cost collectives of their own; a row less and a row more cost hardly anything."""
    tables = [sw.Table("cut", rows, 64, 2.0), *(sw.Table(name, 1000, 64) for name in "ab")]
    kinds = {table.name: ("row_wise",) if table.name == "cut" else ("table_wise",) for table in tables}
    limits = sw.Constraints({name: sw.TableConstraint(kind) for name, kind in kinds.items()})
    task = sw.Task(tables, sw.Topology(devices_per_host=2, device="h100"), 64, constraints=limits)
    best, found = (
        sw.plan(task, strategy=name, cost_model=SimpleCostModel(), runs_on="shardwright")
        for name in ("exact", "certified")
    )
    assert best.gap < 1e-4
    assert found.cost.step_ms == pytest.approx(best.cost.step_ms, rel=1e-4)


def test_a_device_holds_one_row_block_of_a_table():
    """Both blocks would fit the first device; no strategy puts them there."""
    with pytest.raises(InfeasibleTask, match="exhaustive"):
        exact(
            Task(
                [Table("t0", 2001, 16)],  # blocks of 1,000 and of 1,001 rows: different pieces
                Topology(devices_per_host=2, memory=["1 GB", "1 KB"]),
                BATCH,
                constraints=Constraints({"t0": only("row_wise")}),
            )
        )


def test_unsupported_tasks_are_refused():
    assert "it has 21 tables on 4 devices" in Exact().supports(task_of(21, 4))
    assert "it has 3 tables on 5 devices" in Exact().supports(task_of(3, 5))
    assert Exact().supports(task_of(20, 4)) is None
    assert "tiered" in Exact().supports(task_with(only("tiered")))


def test_a_model_that_is_not_convex_is_refused():
    class NotConvex(SimpleCostModel):
        @property
        def pricing(self):
            return replace(super().pricing, mix=-np.ones((2, 1)))

    with pytest.raises(InvalidInput, match="convex head.*use strategy certified"):
        exact(task_of(2, 2), NotConvex())


def test_columns_that_no_width_allows_are_no_way():
    """24 columns cannot be cut into blocks of 16 at least: the table is cut into rows."""
    limits = TableConstraint(sharding_types=("column_wise", "row_wise"), min_columns=16)
    plan = exact(task_with(limits, count=1, devices=2, dim=24))
    assert plan.sharding_type("t0") == "row_wise"


def test_the_bound_covers_grids_of_any_row_blocks_which_only_certified_finds():
    hot = Table("hot", 10_000_000, 128, 30.0, access=AccessProfile.zipf(10_000_000, 1.05))
    task = Task([hot], replace(Topology.preset("h100-8"), devices_per_host=4, memory="70 GB"), 131_072)
    plan, other = (sw.plan(task, strategy=strategy, runs_on="shardwright") for strategy in ("exact", "certified"))
    assert other.cost.step_ms < 0.95 * plan.cost.step_ms
    assert plan.bound_ms <= other.cost.step_ms * (1 + 1e-9)
    torchrec = sw.plan(task, strategy="exact", runs_on="torchrec")
    assert torchrec.bound_ms == pytest.approx(torchrec.cost.step_ms, rel=2e-6)
