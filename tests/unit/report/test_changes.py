from dataclasses import replace

import numpy as np
import pytest

import shardwright as sw
from shardwright.cost import PublishedModel, cost_model_for, score, scored
from shardwright.report import bottlenecks, entry_of
from shardwright.report.changes import marginals, priced_changes
from shardwright.sharding import PHASES, Plan, Shard
from shardwright.task import Constraints, Table, TableConstraint, Task, Topology
from shardwright.task.quantities import format_bytes
from shardwright.workload import random_task
from tests.unit.report.plans import mixed_plan

MODEL = PublishedModel("h100")


def lopsided(**fields):
    """One heavy table beside another on device 0 of four; three devices have little to do."""
    tables = (Table("heavy", 40_000, 64, 40.0), Table("light", 1000, 16, 2.0), Table("other", 5000, 32, 4.0))
    topology = Topology(1, 4, "h100", "200 MB", "450 GB/s", "50 GB/s")
    task = replace(Task(tables, topology, 65_536), **fields)
    return scored(Plan(task, [Shard.whole(table, rank) for table, rank in zip(tables, (0, 0, 1), strict=True)]), MODEL)


def changes_of(plan, model=MODEL):
    return priced_changes(plan, model, marginals(plan, model))


def with_heavy(plan, *shards):
    return [*shards, *(shard for shard in plan.shards if shard.table != "heavy")]


def test_a_change_saves_what_pricing_the_changed_plan_says():
    plan = lopsided(batch_size=16_384, topology=replace(lopsided().task.topology, memory="2 GB"))
    heavy = plan.task.tables[0]
    rows, columns = (0, heavy.rows), (0, heavy.dim)
    idle = min(range(1, 4), key=lambda rank: (plan.cost.devices[rank].total_ms, rank))
    expected = {
        "replicas of 'heavy' on all devices": [Shard.whole(heavy, 0, 1, 2, 3)],
        "row blocks of 'heavy' on all devices": [
            Shard("heavy", (start, start + 10_000), columns, (rank,))
            for rank, start in enumerate(range(0, 40_000, 10_000))
        ],
        f"'heavy' on device {idle}": [Shard.whole(heavy, idle)],
        f"half the columns of 'heavy' on device {idle}": [
            Shard("heavy", rows, (0, 32), (0,)),
            Shard("heavy", rows, (32, 64), (idle,)),
        ],
    }
    changes = {change.text: change for change in changes_of(plan) if change.kind == "plan"}
    for text, shards in expected.items():
        gain = 1 - score(plan.task, with_heavy(plan, *shards), MODEL).step_ms / plan.cost.step_ms
        assert (text in changes) == (gain > 0)
        if gain > 0:
            assert changes[text].gain == pytest.approx(gain)
            Plan(plan.task, with_heavy(plan, *shards)).check()
    assert len(changes) >= 3


def test_a_move_without_memory_states_the_shortage():
    topology = replace(lopsided().task.topology, memory=["8 GB", "8 GB", "1 MB", "1 MB"])
    plan = lopsided(topology=topology, batch_size=65_536)
    memory_changes = [change for change in changes_of(plan) if change.kind == "memory" and "'heavy'" in change.text]
    changes = {change.text.split(" of ")[0]: change for change in memory_changes}
    heavy = plan.task.tables[0]
    shards = with_heavy(
        plan, Shard("heavy", (0, heavy.rows), (0, 32), (0,)), Shard("heavy", (0, heavy.rows), (32, 64), (2,))
    )
    lacking = int(Plan(plan.task, shards).memory.total[2]) - 1_000_000
    assert changes["half the columns"].text == (
        f"half the columns of 'heavy' on device 2, which needs {format_bytes(lacking)} more on a device,"
    )
    assert changes.keys() >= {"replicas", "row blocks", "half the columns"}
    roomy = replace(topology, memory=["2 GB", "2 GB", 1_000_000 + lacking, "1 MB"])
    Plan(replace(plan.task, topology=roomy), shards).check()


def test_moves_that_a_constraint_forbids_are_marked():
    limits = Constraints({"heavy": TableConstraint(sharding_types=("table_wise",))})
    plan = lopsided(constraints=limits, batch_size=4096)
    kinds = {change.text: change.kind for change in changes_of(plan) if "heavy" in change.text}
    assert kinds.pop(next(text for text in kinds if text.startswith("'heavy' on device"))) == "plan"
    assert kinds
    assert set(kinds.values()) == {"constraint"}
    assert all(text.endswith(", which a constraint forbids,") for text in kinds)


def test_a_larger_batch():
    plan = lopsided(batch_size=512)
    (larger,) = (change for change in changes_of(plan) if change.kind == "batch")
    step = score(replace(plan.task, batch_size=1024), plan.shards, MODEL).step_ms
    assert larger.text == "a batch of 1,024"
    assert larger.gain == pytest.approx(1 - step / 2 / plan.cost.step_ms)


@pytest.mark.parametrize(("batch", "priced"), [(128, False), (256, True), (2048, True), (4096, False)])
def test_no_batch_beyond_what_the_model_learned_from(batch, priced):
    model = cost_model_for("cpu")  # learned from batches of 256 to 4,096
    plan = replace(lopsided(batch_size=batch), cost=None)
    plan = scored(replace(plan, task=replace(plan.task, topology=Topology(1, 4, "cpu", "4 GB"))), model)
    assert any(change.kind == "batch" for change in changes_of(plan, model)) == priced


def test_no_batch_that_does_not_fit():
    memory = int(lopsided().memory.total.max())
    plan = lopsided(topology=replace(lopsided().task.topology, memory=memory))
    assert not [change for change in changes_of(plan) if change.kind == "batch"]


def test_links():
    plan = lopsided(topology=Topology(2, 2, "h100", "2 GB", "450 GB/s", "5 GB/s"))
    gains = {change.text: change.gain for change in changes_of(plan) if change.kind in ("links", "latency")}
    faster = replace(plan.task, topology=replace(plan.task.topology, inter_bandwidth="10 GB/s"))
    gain = 1 - score(faster, plan.shards, MODEL).step_ms / plan.cost.step_ms
    assert gains["twice the bandwidth between hosts"] == pytest.approx(gain)
    instant = replace(plan.task, topology=replace(plan.task.topology, intra_latency_ms=0.0, inter_latency_ms=0.0))
    gain = 1 - score(instant, plan.shards, MODEL).step_ms / plan.cost.step_ms
    assert gains["links without latency"] == pytest.approx(gain)
    assert "twice the bandwidth inside a host" not in gains  # links between hosts take longer


def test_one_device_has_no_other_place():
    plan = lopsided()
    task = replace(plan.task, topology=Topology(1, 1, "h100", "2 GB"), batch_size=512)
    one = scored(Plan(task, [replace(shard, devices=(0,)) for shard in plan.shards]), MODEL)
    assert {change.kind for change in changes_of(one)} <= {"batch"}


@pytest.mark.parametrize("seed", range(3))
def test_no_change_of_the_plan_saves_more_than_the_bound_allows(seed):
    task = random_task(seed, tables=8, devices=4, max_dim=64, memory="4 GB", batch_size=4096, device="h100")
    bound = sw.plan(task, time_limit=0.3, seed=seed).bound_ms
    for strategy in ("random", "greedy", "row_wise"):
        plan = sw.plan(task, strategy=strategy, seed=seed)
        most = max((change.gain for change in changes_of(plan) if change.kind == "plan"), default=0.0)
        assert most <= 1 - bound / plan.cost.step_ms + 1e-9


def times_of(task, shards, model):
    return np.array([[getattr(device, phase) for phase in PHASES] for device in score(task, shards, model).devices])


@pytest.mark.parametrize("device", ["cpu", "h100"])
def test_leaving_a_table_out_is_scoring_the_plan_without_it(device):
    plan, model = mixed_plan(device), cost_model_for(device)
    marginal = marginals(plan, model)
    whole = times_of(plan.task, plan.shards, model)
    assert marginal.times == pytest.approx(whole)
    cells = {(table, rank): ms for (table, rank), ms in zip(marginal.cells.tolist(), marginal.cell_ms, strict=True)}
    for index, table in enumerate(plan.task.tables):
        rest = times_of(plan.task, [shard for shard in plan.shards if shard.table != table.name], model)
        holders = {rank for shard in plan.by_table[table.name] for rank in shard.devices}
        assert {rank for place, rank in cells if place == index} == holders
        for rank in holders:
            assert cells[index, rank] == pytest.approx(whole[rank] - rest[rank], abs=1e-12)
        slowest = whole.argmax(axis=0)
        assert marginal.slowest_ms[index] == pytest.approx((whole - rest)[slowest, range(4)], abs=1e-12)
        assert marginal.phase_ms[index] == pytest.approx(whole.max(axis=0) - rest.max(axis=0), abs=1e-12)


def test_the_bottleneck_of_a_phase_and_the_tables_that_make_it():
    entry = entry_of(mixed_plan(), "mixed")
    for index, bottleneck in enumerate(bottlenecks(entry, most=2)):
        times = [getattr(device, PHASES[index]) for device in entry.cost.devices]
        assert (bottleneck.phase, bottleneck.ms, times[bottleneck.rank]) == (PHASES[index], max(times), max(times))
        assert bottleneck.mean_ms == pytest.approx(np.mean(times))
        saved = entry.marginals.slowest_ms[:, index]
        assert [culprit.device_ms for culprit in bottleneck.tables] == sorted(saved[saved > 0], reverse=True)[:2]
        assert bottleneck.alone_ms == pytest.approx(saved.sum())
        assert all(culprit.phase_ms <= culprit.device_ms + 1e-12 for culprit in bottleneck.tables)


def test_the_slowest_device_is_the_plans_own():
    """If another model priced the plan, the verdict is about the plan's slowest device, not about the one by this model."""
    plan = mixed_plan()
    reversed_cost = type(plan.cost)(
        tuple(
            type(device)(device.rank, 4 - device.rank, 1.0, 1.0, 4 - device.rank, device.memory_bytes)
            for device in plan.cost.devices
        )
    )
    other = Plan(plan.task, plan.shards, cost=reversed_cost)
    assert marginals(other, cost_model_for("cpu")).slowest.tolist() == [0, 0, 0, 0]
