import numpy as np
import pytest

from shardwright.cost import cost_model_for, score
from shardwright.report import bottlenecks, entry_of, marginals
from shardwright.sharding import PHASES, Plan, Shard
from shardwright.task import Table, Task, Topology
from tests.unit.report.plans import mixed_plan


def times_of(task, shards, model):
    return np.array([[getattr(device, phase) for phase in PHASES] for device in score(task, shards, model).devices])


@pytest.mark.parametrize("device", ["cpu", "h100"])
def test_leaving_a_table_out_is_scoring_the_plan_without_it(device):
    plan, model = mixed_plan(device), cost_model_for(device)
    found = marginals(plan, model)
    whole = times_of(plan.task, plan.shards, model)
    assert found.times == pytest.approx(whole)
    cells = {(table, rank): ms for (table, rank), ms in zip(found.cells.tolist(), found.cell_ms, strict=True)}
    for index, table in enumerate(plan.task.tables):
        rest = times_of(plan.task, [shard for shard in plan.shards if shard.table != table.name], model)
        holders = {rank for shard in plan.by_table[table.name] for rank in shard.devices}
        assert {rank for place, rank in cells if place == index} == holders
        for rank in holders:
            assert cells[index, rank] == pytest.approx(whole[rank] - rest[rank], abs=1e-12)
        slowest = whole.argmax(axis=0)
        assert found.slowest_ms[index] == pytest.approx((whole - rest)[slowest, range(4)], abs=1e-12)
        assert found.phase_ms[index] == pytest.approx(whole.max(axis=0) - rest.max(axis=0), abs=1e-12)


def test_a_device_with_one_table_is_free_without_it():
    tables = (Table("a", 1000, 16, 3.0), Table("b", 10, 8))
    task = Task(tables, Topology(1, 2, "h100", "64 MB"), batch_size=64)
    plan, model = Plan(task, (Shard.whole(tables[0], 0), Shard.whole(tables[1], 1))), cost_model_for("h100")
    found = marginals(plan, model)
    assert found.cell_ms[:, [0, 3]] == pytest.approx(found.times[:, [0, 3]])
    assert found.times[:, 0].min() > 0


def test_the_bottleneck_of_a_phase_and_the_tables_that_make_it():
    entry = entry_of(mixed_plan(), "mixed")
    for index, one in enumerate(bottlenecks(entry, most=2)):
        times = [getattr(device, PHASES[index]) for device in entry.cost.devices]
        assert (one.phase, one.ms, times[one.rank]) == (PHASES[index], max(times), max(times))
        assert one.mean_ms == pytest.approx(np.mean(times))
        saved = entry.marginals.slowest_ms[:, index]
        assert [culprit.device_ms for culprit in one.tables] == sorted(saved[saved > 0], reverse=True)[:2]
        assert one.alone_ms == pytest.approx(saved.sum())
        assert all(culprit.phase_ms <= culprit.device_ms + 1e-12 for culprit in one.tables)


def test_the_slowest_device_is_the_plans_own():
    """Where the plan was priced by another model, the device that it names is explained, not the one this model would name."""
    plan = mixed_plan()
    reversed_cost = type(plan.cost)(
        tuple(
            type(device)(device.rank, 4 - device.rank, 1.0, 1.0, 4 - device.rank, device.memory_bytes)
            for device in plan.cost.devices
        )
    )
    other = Plan(plan.task, plan.shards, cost=reversed_cost)
    assert marginals(other, cost_model_for("cpu")).slowest.tolist() == [0, 0, 0, 0]
