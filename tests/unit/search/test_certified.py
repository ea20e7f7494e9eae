"""Guarantees of `certified` beyond the conformance suite: a proof, the same plan on any number of threads, and a plan at any time."""

import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

import shardwright as sw
from shardwright.cost import load_model
from shardwright.cost.choice import cost_model_for
from shardwright.cost.collectives import way_of
from shardwright.cost.files import bundled_models
from shardwright.cost.model import Pricing
from shardwright.errors import InfeasibleTask
from shardwright.search.baselines import FusedGreedy
from shardwright.search.bound import BoundProof, lower_bound
from shardwright.search.certified import Certified
from shardwright.search.engine.catalog import make_catalog
from shardwright.search.engine.plans import holding_of
from shardwright.search.engine.session import SearchSession, prepare
from shardwright.search.relaxation import Branch, Relaxation
from shardwright.sharding.diff import carry
from shardwright.sharding.runtimes import task_for
from shardwright.sharding.ways import row_units
from shardwright.testing.model import SimpleCostModel
from shardwright.testing.tasks import task_of
from shardwright.workload import public_task, random_task

MODEL = SimpleCostModel()


def with_pricing(**changes) -> SimpleCostModel:
    head = replace(MODEL.pricing, **changes)

    class Changed(SimpleCostModel):
        pricing = head

    return Changed()


def search(task, model=MODEL, seed=0, **options):
    plan = Certified(**options).search(task, model, seed=seed, deadline=None)
    plan.check()
    return sw.cost.scored(plan, model)


def shards(plan):
    return [(s.table, s.rows, s.columns, s.devices) for s in plan.shards]


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 3])
def test_one_thread_and_two_find_the_same_plan(seed):
    task = task_of(25, 4, hosts=2)
    one, two = (search(task, seed=seed, threads=threads, tolerance=0.0, patience=2) for threads in (1, 2))
    assert shards(one) == shards(two)
    assert one.bound_ms == two.bound_ms


def test_the_bound_is_below_the_plan_and_no_lower_than_the_first():
    task = task_of(12, 4)
    plan = search(task, patience=0)
    assert lower_bound(task, MODEL).ms <= plan.bound_ms * (1 + 1e-12)
    assert plan.bound_ms <= plan.cost.step_ms * (1 + 1e-9)


def test_a_bound_that_cannot_be_met_gets_tighter_with_the_plan():
    """A table that may not be cut takes as long as on one device, however many devices there are."""
    table = sw.Table("heavy", rows=100_000, dim=64, pooling=50.0)
    light = [sw.Table(f"light{i}", rows=1000, dim=8, pooling=1.0) for i in range(6)]
    limits = {"heavy": sw.TableConstraint(sharding_types=("table_wise",))}
    task = sw.Task([table, *light], sw.Topology(devices_per_host=4), 1024, constraints=sw.Constraints(limits))
    plan = search(task)
    assert lower_bound(task, MODEL).ms < 0.6 * plan.cost.step_ms
    assert plan.bound_ms > 0.9 * plan.cost.step_ms


def test_a_head_that_is_not_convex_gives_a_plan_without_a_bound():
    model = with_pricing(mix=np.array([[1.0], [-0.2]]))
    plan = search(task_of(10, 3), model, patience=0)
    assert plan.bound_ms is None
    assert plan.gap is None
    greedy = sw.plan(task_of(10, 3), strategy="greedy", cost_model=model)
    assert plan.cost.step_ms <= greedy.cost.step_ms * (1 + 1e-9)


def test_negative_predictions_count_as_no_time():
    model = with_pricing(linear=-MODEL.pricing.linear, mix=np.zeros((2, 1)), bias=np.array([-1.0, -1.0]))
    plan = search(task_of(6, 2), model)
    assert plan.cost.step_ms >= 0
    assert plan.bound_ms <= plan.cost.step_ms


def test_identical_tables_are_shared_out_evenly():
    tables = [sw.Table(f"t{i}", rows=5000, dim=16, pooling=5.0) for i in range(8)]
    plan = search(sw.Task(tables, sw.Topology(devices_per_host=4), 1024), patience=0)
    loads = [device.total_ms for device in plan.cost.devices]
    assert max(loads) == pytest.approx(min(loads), rel=1e-6)


def test_one_device_takes_everything():
    plan = search(task_of(9, 1))
    assert {s.devices for s in plan.shards} == {(0,)}
    assert plan.gap == pytest.approx(0, abs=1e-3)


def test_no_time_at_all_still_gives_a_plan():
    plan = sw.plan(task_of(30, 4), strategy="certified", cost_model=MODEL, time_limit=0.0)
    assert plan.strategy == "certified"
    assert plan.bound_ms is None
    plan.check()


def test_an_interrupted_search_returns_the_best_so_far(monkeypatch):
    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(SearchSession, "kick", interrupt)
    assert search(task_of(20, 4), tolerance=0.0).gap >= 0


@pytest.mark.parametrize("where", ["start", "survey", "adopt"])
def test_a_search_interrupted_before_its_first_plan_returns_that_of_greedy(monkeypatch, where):
    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(SearchSession, where, interrupt)
    task = task_of(20, 4)
    greedy = sw.plan(task, strategy="greedy", cost_model=MODEL)
    plan = search(task, tolerance=0.0)
    assert plan.cost.step_ms <= greedy.cost.step_ms
    assert (shards(plan) == shards(greedy)) == (where == "start")


def test_an_interrupt_while_greedy_runs_is_answered_with_its_plan(monkeypatch):
    pending = [KeyboardInterrupt()]
    place = FusedGreedy.search

    def interrupted_once(self, *arguments, **options):
        if pending:
            raise pending.pop()
        return place(self, *arguments, **options)

    monkeypatch.setattr(FusedGreedy, "search", interrupted_once)
    task = task_of(20, 4)
    assert shards(search(task)) == shards(sw.plan(task, strategy="greedy", cost_model=MODEL))


def test_plans_of_other_strategies_in_tight_memory_are_taken(monkeypatch):
    monkeypatch.setattr(Certified, "_starts", lambda *_: 0)  # as if no start found a device for the first item
    task = task_of(20, 4)
    others = [sw.plan(task, strategy=name, cost_model=MODEL).cost.step_ms for name in ("greedy", "neuroshard")]
    plan = search(task)
    assert plan.cost.step_ms <= min(others)
    assert plan.bound_ms <= plan.cost.step_ms


def test_replicas_everywhere_are_found_if_latency_dominates():
    """Under any other plan, a step waits for the links twice more."""
    topology = sw.Topology(devices_per_host=4, intra_latency_ms=50.0)
    tables = [sw.Table(f"t{i}", rows=20_000, dim=16, pooling=5.0) for i in range(10)]
    task = sw.Task(tables, topology, 1024)
    replicated = sw.plan(task, strategy="data_parallel", cost_model=MODEL)
    assert search(task).cost.step_ms <= replicated.cost.step_ms * (1 + 1e-9)


def test_a_head_without_hidden_units_is_bounded_too():
    class Linear(SimpleCostModel):
        pricing = Pricing(np.zeros((0, 3)), np.zeros(0), np.zeros((2, 0)), MODEL.pricing.linear, MODEL.pricing.bias)

    plan = search(task_of(40, 4), Linear(), patience=0)
    assert 0 <= plan.gap < 0.05


def test_the_bound_of_blocks_in_hundreds_of_widths_takes_little_memory():
    """Each width of a sequence table's blocks is a fused call of its own, and each call has all of the model's hidden units."""
    task = sw.Task([sw.Table("a", 2, 1028, pooled=False)], sw.Topology(1, 2, memory="1 GB"), 64)
    model = load_model(bundled_models()["cpu"])
    proof = BoundProof(make_catalog(task, model), model)
    tracemalloc.start()
    try:
        proof.solve(deadline=0)
        assert tracemalloc.get_traced_memory()[1] < 300e6
    finally:
        tracemalloc.stop()


def test_tables_of_four_columns_are_not_cut_into_single_ones():
    tables = [sw.Table(f"t{i}", rows=20_000, dim=4, pooling=40.0) for i in range(3)]
    plan = search(sw.Task(tables, sw.Topology(devices_per_host=4), 1024))
    assert all(shard.dim == 4 for shard in plan.shards)


def wide_together(max_shards: int | None = None, devices: int = 4) -> sw.Task:
    """Two wide tables to be colocated, which cost more than all others, and six light ones."""
    wide = [sw.Table("items", 50_000, 128, 30.0), sw.Table("shops", 9_000, 48, 20.0)]
    light = [sw.Table(f"light{i}", 1000, 8, 1.0) for i in range(6)]
    limits = {"shops": sw.TableConstraint(max_shards=max_shards, sharding_types=("table_wise", "column_wise"))}
    constraints = sw.Constraints(limits, colocate=(("items", "shops"),))
    return sw.Task([*wide, *light], sw.Topology(devices_per_host=devices), 1024, constraints=constraints)


@pytest.mark.parametrize("most", [None, 2, 1])
def test_colocated_tables_are_cut_into_columns_together(most):
    plan = search(wide_together(most))
    held = {name: sorted(shard.devices[0] for shard in plan.by_table[name]) for name in ("items", "shops")}
    assert held["items"] == held["shops"]
    assert len(held["items"]) == (most or 4)
    for shard, other in zip(*(sorted(plan.by_table[n], key=lambda s: s.columns) for n in held), strict=True):
        assert shard.devices == other.devices
        assert shard.columns[1] / 128 == other.columns[1] / 48  # the same share of both


def test_colocated_tables_cost_what_the_best_plan_does():
    task = wide_together(devices=2)
    task = replace(task, tables=task.tables[:4])
    best = sw.plan(task, strategy="exact", cost_model=MODEL)
    assert best.cost.step_ms <= search(task, tolerance=0.0).cost.step_ms <= 1.01 * best.cost.step_ms


def test_a_plan_with_colocated_columns_is_kept_by_a_warm_start():
    task = wide_together()
    plan = search(task)
    again = sw.plan(task, start=plan, move_cost=float("inf"), cost_model=MODEL)
    assert plan.diff(again).moved_bytes == 0


@pytest.mark.parametrize("megabytes", [34, 35, 40])
@pytest.mark.parametrize("kinds", [("column_wise", "table_wise"), ("row_wise", "table_wise"), None])
def test_memory_that_five_tables_nearly_fill_is_filled(megabytes, kinds):
    """Four devices have room for one table each and for a quarter of the fifth: even cuts of all five would not fit."""
    tables = [sw.Table(f"t{i}", 100_000, 64, 20.0) for i in range(5)]
    limits = {table.name: sw.TableConstraint(kinds) for table in tables}
    topology = sw.Topology(devices_per_host=4, memory=f"{megabytes} MB")
    search(sw.Task(tables, topology, 1024, constraints=sw.Constraints(limits)))


@pytest.mark.slow
def test_spreads_are_told_from_forms_that_cannot_be_cut():
    """A form without widths had the number of a spread, which was then booked on devices that had no room for it."""
    tables = [sw.Table("t0", 1_000_000, 4, 30.0), sw.Table("t1", 20_000, 16, 30.0), sw.Table("t2", 200_000, 8, 5.0)]
    for seed in range(4):
        search(sw.Task(tables, sw.Topology(devices_per_host=8, memory=3_796_116), 512), seed=seed, tolerance=0.0)


def test_row_pieces_on_all_devices_cost_what_the_search_thinks():
    """Equal ones would be reduced by collectives, at the price of a set of their own; a border is moved by a row."""
    tables = [sw.Table("wide", 1_000_000, 4096, 5.0), sw.Table("narrow", 1_000_000, 64, 5.0)]
    task, model = sw.Task(tables, sw.Topology.preset("h100-8"), 4096), cost_model_for("h100")
    plan = sw.plan(task, strategy=Certified(0.05, patience=0), cost_model=model, runs_on="shardwright")
    assert len(plan.by_table["narrow"]) == 8
    assert way_of(task, plan.by_table["narrow"]) == "all_to_all"
    assert plan.gap < 0.05
    assert lower_bound(task_for(task, "shardwright"), model).ms <= plan.cost.step_ms


@pytest.mark.parametrize(("rows", "apart"), [(160_000, 1), (160_001, 1), (3, 0)])
def test_a_search_resumes_from_blocks_of_which_one_border_was_moved(rows, apart):
    task = sw.Task([sw.Table("t", rows, 8)], sw.Topology(devices_per_host=4), 64)
    prepared, half = prepare(task, MODEL), rows // 2
    blocks = [sw.Shard("t", (0, half - apart), (0, 8), (0,)), sw.Shard("t", (half - apart, rows), (0, 8), (2,))]
    holding = holding_of(carry(sw.Plan(task, blocks), task), prepared.assembly, 0)
    units = row_units(rows)
    assert holding.runs == ((0, 0, units // 2), (2, units // 2, units))


@pytest.mark.slow
def test_few_tables_on_many_devices_take_the_same_step_whatever_the_seed():
    """Every table is in grids, and each in another way than the others favour: kicks alone ended 4% apart."""
    task = public_task("hugectr-7", sw.Topology.preset("h100-8", hosts=8), batch_size=131_072)
    steps = [sw.plan(task, runs_on="torchrec", seed=seed).cost.step_ms for seed in range(2)]
    assert max(steps) <= min(steps) * 1.01


@pytest.mark.slow
def test_free_plans_on_gpus_are_no_slower_than_those_for_torchrec():
    task = random_task(4, tables=32, devices=4, memory="40 GB", device="h100", batch_size=16_384)
    brief = Certified(patience=1)
    free, equal = (sw.plan(task, strategy=brief, runs_on=runtime) for runtime in ("shardwright", "torchrec"))
    assert free.cost.step_ms <= equal.cost.step_ms


def test_two_blocks_on_one_device_are_left_to_greedy():
    """Pinned to one rank, and to be cut: the search has one piece of a table on a device."""
    limits = {"t": sw.TableConstraint(("column_wise",), devices=(1,))}
    task = sw.Task([sw.Table("t", 1000, 16)], sw.Topology(devices_per_host=2), 512, constraints=sw.Constraints(limits))
    assert {shard.devices for shard in search(task).shards} == {(1,)}


@pytest.mark.parametrize("kinds", [("row_wise", "column_wise"), ("data_parallel", "column_wise", "row_wise")])
def test_colocated_tables_are_cut_in_ways_of_their_own_over_the_same_devices(kinds):
    limits = {name: sw.TableConstraint((kind,)) for name, kind in zip("abc", kinds, strict=False)}
    tables = [sw.Table(name, 1000, 16) for name in limits]
    topology = sw.Topology(2, devices_per_host=2)
    task = sw.Task(tables, topology, 512, constraints=sw.Constraints(limits, (tuple(limits),)))
    plan = search(task)
    for name, kind in zip(limits, kinds, strict=True):
        assert plan.sharding_type(name) == kind
        assert {device for shard in plan.by_table[name] for device in shard.devices} == {0, 1, 2, 3}


def test_colocated_tables_that_share_no_way_are_told_to():
    limits = {"a": sw.TableConstraint(("row_wise",), max_shards=2), "b": sw.TableConstraint(("data_parallel",))}
    tables = [sw.Table(name, 1000, 16) for name in "ab"]
    task = sw.Task(tables, sw.Topology(devices_per_host=4), 512, constraints=sw.Constraints(limits, (("a", "b"),)))
    with pytest.raises(InfeasibleTask, match="colocated tables"):
        search(task)


def test_colocated_tables_are_as_fast_as_the_best_plan():
    """Rows of one table on all devices and replicas of the other, while two tables are kept apart."""
    task = random_task(1, tables=6, devices=2, device="cpu", batch_size=8192)
    first, second, third, fourth, *_ = (table.name for table in task.tables)
    task = replace(task, constraints=sw.Constraints(colocate=((first, second),), apart=((third, fourth),)))
    best = sw.plan(task, strategy="exact", runs_on="torchrec")
    found = sw.plan(task, strategy="certified", runs_on="torchrec")
    assert found.cost.step_ms <= best.cost.step_ms * 1.01


@pytest.mark.slow
def test_cuts_that_gain_almost_nothing_are_undone(monkeypatch):
    tasks = [task_of(count, devices, hosts=hosts) for count, devices, hosts in ((30, 8, 1), (25, 4, 2), (50, 8, 1))]
    # Without latencies: else no table is replicated for almost nothing, since the first pays for an all-reduce.
    at_once = {"intra_latency_ms": 0.0, "inter_latency_ms": 0.0}
    tasks = [replace(task, topology=replace(task.topology, **at_once)) for task in tasks]
    simple = [search(task, patience=1) for task in tasks]
    monkeypatch.setattr(SearchSession, "simplify", lambda *_: None)
    plain = [search(task, patience=1) for task in tasks]
    for simplified, other in zip(simple, plain, strict=True):
        assert simplified.cost.step_ms <= other.cost.step_ms * 1.001 * (1 + 1e-9)
    assert sum(len(plan.shards) for plan in simple) < sum(len(other.shards) for other in plain)
    assert sum(len(shard.devices) for plan in simple for shard in plan.shards) < sum(
        len(shard.devices) for other in plain for shard in other.shards
    )


def test_a_bound_that_proves_nothing_yet_is_none(monkeypatch):
    """With hardly any time the first prices can prove less than nothing."""
    for proof in ("tighten", "refined"):
        monkeypatch.setattr(f"shardwright.search.engine.session.Prepared.{proof}", lambda *_, **__: -1.0)
    assert search(task_of(6, 2)).bound_ms is None


def test_a_tiny_table_is_not_replicated_when_it_alone_would_need_the_call():
    """However much it saves, its replicas pay for a call on every device."""
    tiny = sw.Table("tiny", rows=2, dim=8, pooling=1.0)
    big = [sw.Table(f"t{i}", rows=1_000_000, dim=32, pooling=10.0) for i in range(8)]
    task = sw.Task([tiny, *big], sw.Topology(devices_per_host=4), 1024)
    plan = search(task, with_pricing(bias=np.full(2, 0.5)))
    assert all(len(shard.devices) == 1 for shard in plan.by_table["tiny"])


def test_an_interrupt_within_a_case_leaves_all_ways():
    topology = sw.Topology(2, 2, intra_latency_ms=0.1, inter_latency_ms=0.2)
    task = sw.Task([sw.Table(f"t{i}", rows=20_000, dim=16, pooling=5.0) for i in range(4)], topology, 1024)
    relaxation = Relaxation(make_catalog(task, MODEL))
    legal, waits = relaxation.legal.copy(), relaxation.least_waits(np.ones(3))
    for case in range(len(relaxation.sets.cases)):
        with pytest.raises(KeyboardInterrupt), relaxation.only(Branch(case, ((0, 0),))):
            raise KeyboardInterrupt
        assert (relaxation.legal == legal).all()
        assert relaxation.other_legal.all()
        assert relaxation.least_waits(np.ones(3)) == waits


class ScriptedSession:
    """A search session whose kicks price 100,000 changes each, and whose plan gets shorter as told, by changes priced."""

    def __init__(self, gains, deadline):
        self.gains, self.deadline, self.late, self.priced, self.proofs = gains, deadline, False, 1_000_000, []
        self.prepared = SimpleNamespace(bound_ms=1.0, tighten=lambda ms: None, refined=self.refined)

    @property
    def best_ms(self):
        return 100.0 * (1 - sum(gain for priced, gain in self.gains.items() if priced <= self.priced))

    def refined(self, step_ms, late):
        self.proofs.append(self.priced)

    def kick(self, seed, lanes):
        before = self.best_ms
        self.priced += 100_000
        assert self.priced < 100_000_000, "it does not end"
        return self.best_ms < before


def ends_at(gains, deadline=None, **options):
    session = ScriptedSession(gains, deadline)
    Certified(**options)._kicks(session, 0)
    return session.priced, session.proofs


def test_kicks_end_after_a_million_changes_without_a_better_plan():
    assert ends_at({}) == (2_000_000, [])
    assert ends_at({2_000_000: 0.01, 5_000_000: 0.1}) == (3_000_000, [])


def test_with_a_time_limit_kicks_go_on_until_the_last_half_of_all_work_gained_little():
    assert ends_at({4_000_000: 0.01}, deadline=1e9) == (2_000_000, [])
    gaining = {2_000_000: 0.01, 3_800_000: 0.01, 7_500_000: 0.01}
    assert ends_at(gaining, deadline=1e9) == (15_000_000, [3_000_000, 4_800_000, 8_500_000])
    assert ends_at(gaining | {3_800_000: 0.0001}, deadline=1e9)[0] == 4_800_000  # too little
    assert ends_at(gaining, deadline=1e9, patience=3)[0] == 1_300_000


def test_the_first_starts_also_place_wide_pieces_together_where_they_cost_more():
    seen = []

    class Watched(SearchSession):
        def start(self, starts):
            seen.append([(how.limit, how.together) for how in starts])
            return super().start(starts)

    for model, expected in (
        (cost_model_for("h100"), [[(0.5, False), (0.5, True)], [(0.5, False), (0.5, True)]]),
        (MODEL, [[(0.5, False), (0.5, False)], [(0.25, False), (np.inf, False)]]),
    ):
        task = task_of(40, 8)
        seen.clear()
        session = Watched(prepare(task, model), ThreadPoolExecutor(1))
        Certified(tolerance=0.0)._starts(session)
        assert seen[:2] == expected
        assert not any(together for pair in seen[2:] for _, together in pair)
