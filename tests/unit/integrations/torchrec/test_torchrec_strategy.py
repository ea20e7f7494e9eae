"""TorchRec's own planner as a strategy: in this process, and in the separate process that the registry's strategy starts."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest

pytest.importorskip("torchrec", reason="needs TorchRec")

import shardwright as sw
from shardwright.errors import InfeasibleTask
from shardwright.integrations.torchrec import rival as torchrec
from shardwright.integrations.torchrec.rival import TorchRec, expressible_types, why_not_expressible
from shardwright.integrations.torchrec.strategy import torchrec_plan
from shardwright.search.registry import rival_names, strategy_named, strategy_names
from shardwright.task import Constraints, Table, TableConstraint, Task, Topology
from shardwright.testing import check_strategy
from shardwright.testing.model import SimpleCostModel
from shardwright.testing.tasks import conformance_tasks, task_of

pytestmark = pytest.mark.torchrec


@dataclass(frozen=True)
class InThisProcess(TorchRec):
    """The same planner without a process for each plan."""

    def search(self, task, cost_model, *, seed, deadline):
        return torchrec_plan(task, statistics=self.statistics, seed=seed)


@pytest.mark.parametrize("statistics", [True, False])
def test_it_conforms(statistics):
    check_strategy(InThisProcess(statistics))


@pytest.mark.slow
def test_the_process_gives_the_same_plan():
    task = task_of(12, 4)
    plan = sw.plan(task, strategy="torchrec", cost_model=SimpleCostModel(), seed=4)
    assert plan.shards == torchrec_plan(task).shards
    assert (plan.strategy, plan.seed, plan.cost_model) == ("torchrec", 4, SimpleCostModel().name)
    assert plan.cost.step_ms > 0


def test_pooling_factors_change_what_torchrec_does():
    """Two tables of equal size, one with a hundred times the lookups of all others: with these factors, TorchRec keeps it alone."""
    tables = [Table("hot", 10_000, 64, 200.0), *(Table(f"cold_{i}", 10_000, 64, 2.0) for i in range(3))]
    task = Task(tables, Topology(devices_per_host=2, memory="1 GB"), 256)
    told, untold = torchrec_plan(task), torchrec_plan(task, statistics=False)
    assert len(told.by_device[told.by_table["hot"][0].devices[0]]) == 1
    assert len(untold.by_device[untold.by_table["hot"][0].devices[0]]) == 2


def test_it_is_a_rival_known_by_name_and_not_listed():
    task = task_of(4, 2)
    assert strategy_named("torchrec") == TorchRec()
    assert "torchrec" not in strategy_names(task)
    assert rival_names(task) == ("torchrec",)
    assert rival_names(conformance_tasks()["constraints of every kind"]) == ()


def test_a_planner_that_does_not_answer_in_time_is_ended(monkeypatch):
    """The program would sleep for an hour."""
    monkeypatch.setattr(torchrec, "_START_S", 0.1)
    monkeypatch.setattr(torchrec, "PROGRAM", "tests.unit.integrations.torchrec.silent")
    with pytest.raises(InfeasibleTask, match="was ended; allow more time"):
        sw.plan(task_of(4, 2), strategy="torchrec", cost_model=SimpleCostModel(), time_limit=1.0)


def test_a_failing_planner_gives_the_reason(monkeypatch):
    monkeypatch.setattr(torchrec, "PROGRAM", "shardwright.no_such_program")
    with pytest.raises(InfeasibleTask, match="exited with 1.*no_such_program"):
        sw.plan(task_of(4, 2), strategy="torchrec", cost_model=SimpleCostModel())


def test_a_task_without_room_is_refused_with_torchrecs_reason():
    task = task_of(12, 2, memory="1 MB")
    with pytest.raises(InfeasibleTask, match="TorchRec"):
        torchrec_plan(task)


def task_with(limits, pooled=True, device="cpu", **constraints):
    table = Table("t", 100, 16, pooled=pooled)
    given = Constraints({"t": limits} if limits else {}, **constraints)
    return Task([table, Table("u", 100, 16)], Topology(devices_per_host=4, device=device), 64, constraints=given)


@pytest.mark.parametrize(
    ("task", "says"),
    [
        (task_with(TableConstraint(devices=(1,))), "'t' is pinned"),
        (task_with(None, colocate=(("t", "u"),)), "colocate"),
        (task_with(None, apart=(("t", "u"),)), "colocate"),
        (task_with(TableConstraint(sharding_types=("tiered",))), "'t' allows tiered"),
        (task_with(TableConstraint(sharding_types=("row_wise",))), "offers none of these for a pooled table on cpu"),
        (task_with(TableConstraint(("row_wise",), max_shards=2), device="h100"), "in at most 2 shards"),
        (task_with(TableConstraint(sharding_types=("grid",)), pooled=False, device="h100"), "for a sequence table"),
        (Task([Table("a.b", 10, 4)], Topology(), 8), "'a.b' has a dot"),
    ],
)
def test_constraints_without_a_torchrec_equivalent_are_refused(task, says):
    assert says in why_not_expressible(task)
    with pytest.raises(InfeasibleTask, match="cannot plan this task"):
        sw.plan(task, strategy="torchrec", cost_model=SimpleCostModel(), runs_on=None)


def test_constraints_that_it_has_words_for_are_kept():
    limits = {"t": TableConstraint(("column_wise",), max_shards=2), "u": TableConstraint(("data_parallel",))}
    tables = [Table("t", 1000, 64, 8.0), Table("u", 100, 16)]
    task = Task(tables, Topology(devices_per_host=4, device="h100", memory="1 GB"), 64, constraints=Constraints(limits))
    plan = torchrec_plan(task)
    assert [shard.dim for shard in plan.by_table["t"]] == [32, 32]
    assert plan.by_table["u"][0].devices == (0, 1, 2, 3)
    rows = replace(task, constraints=Constraints({"t": TableConstraint(("row_wise",))}))
    assert torchrec_plan(rows).sharding_type("t") == "row_wise"


def test_types_that_make_too_many_shards_are_not_offered():
    table, eight = Table("t", 100, 16), Topology(devices_per_host=8, device="h100")
    assert "row_wise" in expressible_types(table, TableConstraint(), eight)
    assert expressible_types(table, TableConstraint(max_shards=4), eight) == [
        "data_parallel",
        "table_wise",
        "column_wise",
    ]


@pytest.mark.slow
def test_dynamic_programming_proposes_in_place_of_torchrecs_defaults():
    task = task_of(6, 4)
    plan = strategy_named("tzrec").search(task, SimpleCostModel(), seed=0, deadline=None)
    plan.check()
    assert plan.strategy == "tzrec"
    assert torchrec_plan(task, proposer="dynamic_programming").shards == plan.shards
