from dataclasses import replace

import pytest
from experiments.entrants import entrant
from experiments.outcomes import NO_PLAN, NO_ROOM, UNSUPPORTED, planned

from shardwright.task import Constraints, Table, TableConstraint, Task, Topology
from shardwright.testing.model import SimpleCostModel

MODEL = SimpleCostModel()
TWO = Topology(devices_per_host=2, memory="100 MB")
SMALL = Task([Table(f"t{number}", 1000, 16, 4.0) for number in range(5)], TWO, 256)


def whole_and(rows: int) -> Task:
    """Two devices and one table of so many rows of 256 bytes beside the small ones."""
    return Task([*SMALL.tables, Table("large", rows, 64, 1.0)], TWO, 256)


@pytest.mark.parametrize("name", ["random", "size_lookup", "greedy", "neuroshard", "certified"])
def test_a_plan_has_its_costs(name):
    row, plan = planned(SMALL, entrant(name), model=MODEL)
    assert (row["failure"], row["why"], row["tables"], row["oversize"]) == (None, None, 5, 0)
    assert row["step_ms"] == plan.cost.step_ms
    assert 0 < row["compute_ms"] <= row["embedding_cost_ms"] <= row["step_ms"]
    assert 0 <= row["balance"] <= 1
    assert (row["bound_ms"] is not None) == (name == "certified")
    assert plan.strategy == name


def test_the_seed_is_the_searchs():
    costs = {planned(SMALL, entrant("random"), seed=seed, model=MODEL)[0]["step_ms"] for seed in range(8)}
    assert len(costs) > 1


def test_a_table_that_fits_no_device_is_cut():
    row, _ = planned(whole_and(450_000), entrant("size"), model=MODEL)  # 115 MB
    assert (row["failure"], row["oversize"], row["cut"]) == (None, 1, 1)
    assert planned(SMALL, entrant("size"), model=MODEL)[0]["cut"] == 0


def test_a_table_that_finds_no_room():
    large = [Table(f"large{number}", 220_000, 64, 1.0) for number in range(3)]  # 57 MB each
    row, plan = planned(Task(large, TWO, 256), entrant("size"), model=MODEL)
    assert plan is None
    assert (row["failure"], row["oversize"], row["cut"]) == (NO_ROOM, 0, None)
    assert (row["step_ms"], row["balance"], row["bound_ms"]) == (None, None, None)
    assert "large0" in row["why"]  # of equals the last comes first, as in the papers' code
    assert planned(Task(large, TWO, 256), entrant("certified"), model=MODEL)[0]["failure"] is None


def test_a_task_without_any_plan():
    row, _ = planned(whole_and(2_000_000), entrant("certified"), model=MODEL)
    assert row["failure"] == NO_PLAN


def test_a_strategy_that_cannot_plan_such_tasks():
    tiered = {SMALL.tables[0].name: TableConstraint(sharding_types=("tiered",))}
    row, _ = planned(replace(SMALL, constraints=Constraints(tiered)), entrant("dreamshard"))
    assert row["failure"] == UNSUPPORTED
