"""The shipped search returns the plan of the oracle, keeps every rule, and ends when it has to."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace

import numpy as np
import pytest

from shardwright.cost import cost_model_for, score
from shardwright.errors import InfeasibleTask, InvalidInput, ShardwrightError
from shardwright.search.neuroshard import NeuroShard
from shardwright.task import Constraints, Table, TableConstraint, Task, Topology
from shardwright.testing import check_strategy
from shardwright.testing.model import SimpleCostModel
from shardwright.testing.tasks import conformance_tasks, impossible_task, task_of
from tests.oracles.neuroshard import Oracle
from tests.unit.search.neuroshard.tasks import FakeNeuroShardModel, constrained, equal_tables, random_task

MODELS = {"simple": SimpleCostModel(), "bundled": cost_model_for("cpu"), "networks": FakeNeuroShardModel()}
SMALL = {"tables_tried": 4, "beam_width": 2, "most_splits": 4}


def shards_of(task: Task, model, **options) -> list:
    plan = NeuroShard(**options).search(task, model, seed=0, deadline=None)
    plan.check()
    return sorted(map(repr, plan.shards))


def assert_as_the_oracle(task: Task, model, **options) -> None:
    expected = Oracle(task, model, **options).search()
    if expected is None:
        with pytest.raises(InfeasibleTask):
            NeuroShard(**options).search(task, model, seed=0, deadline=None)
    else:
        assert shards_of(task, model, **options) == sorted(map(repr, expected))


@pytest.mark.parametrize("model", MODELS.values(), ids=MODELS)
@pytest.mark.parametrize("devices", [4, 8])
@pytest.mark.parametrize("seed", range(3))
def test_same_plan_as_the_oracle(seed, devices, model):
    assert_as_the_oracle(random_task(seed, 14, devices), model, **SMALL)


@pytest.mark.parametrize("model", MODELS.values(), ids=MODELS)
@pytest.mark.parametrize("room", [1.02, 1.1, 1.4])
def test_same_plan_as_the_oracle_in_tight_memory(room, model):
    assert_as_the_oracle(random_task(7, 12, 4, room=room), model, **SMALL)


@pytest.mark.parametrize("model", MODELS.values(), ids=MODELS)
@pytest.mark.parametrize("seed", range(4))
def test_same_plan_as_the_oracle_under_constraints(seed, model):
    task = constrained(random_task(seed, 13, 2, hosts=2), seed)
    assert_as_the_oracle(task, model, **SMALL)


@pytest.mark.parametrize("what", conformance_tasks())
def test_same_plan_as_the_oracle_on_the_conformance_tasks(what):
    assert_as_the_oracle(conformance_tasks()[what], SimpleCostModel(), **SMALL)


@pytest.mark.parametrize("model", MODELS.values(), ids=MODELS)
def test_same_plan_as_the_oracle_where_everything_ties(model):
    assert_as_the_oracle(equal_tables(9, 4), model, **SMALL)


@pytest.mark.parametrize("seed", range(2))
def test_same_plan_as_the_oracle_with_the_papers_settings(seed):
    assert_as_the_oracle(random_task(seed, 12, 4), MODELS["bundled"])


@pytest.mark.parametrize("model", MODELS.values(), ids=MODELS)
def test_conformance(model):
    check_strategy(NeuroShard(), model)


@pytest.mark.parametrize("model", MODELS.values(), ids=MODELS)
def test_same_plan_on_one_and_two_threads(model):
    task = random_task(3, 30, 4)
    assert shards_of(task, model, threads=1) == shards_of(task, model, threads=2) == shards_of(task, model, threads=5)


def test_splitting_pays_where_one_table_dominates():
    """One table costs as much as all others: two devices halve the step only if it is cut."""
    heavy = Table("heavy", rows=1000, dim=64, pooling=60.0)
    light = [Table(f"light_{i}", rows=1000, dim=16, pooling=20.0) for i in range(4)]
    task = Task([heavy, *light], Topology(devices_per_host=2), batch_size=4096)
    whole = NeuroShard(most_splits=0).search(task, SimpleCostModel(), seed=0, deadline=None)
    cut = NeuroShard().search(task, SimpleCostModel(), seed=0, deadline=None)
    assert {shard.dim for shard in whole.by_table["heavy"]} == {64}
    assert len(cut.by_table["heavy"]) > 1
    assert score(task, cut.shards, SimpleCostModel()).step_ms < score(task, whole.shards, SimpleCostModel()).step_ms


def test_memory_that_only_halves_fit():
    """Three tables of one size on two devices that hold one and a half each: whole they fit nowhere, halved they do."""
    task = replace(impossible_task(), constraints=Constraints())
    memory = task.topology.memory_bytes[0] + 100_000  # ids and offsets of the further piece
    roomier = replace(task, topology=replace(task.topology, memory=memory))
    plan = NeuroShard().search(roomier, SimpleCostModel(), seed=0, deadline=None)
    plan.check()
    assert len(plan.shards) == 4


def test_a_task_that_no_bound_of_the_grid_places_is_tried_without_one():
    """One wide table on two devices: its dim is twice the mean, beyond every bound up to 1.5."""
    task = Task([Table("only", rows=100, dim=12)], Topology(devices_per_host=2), batch_size=16)
    assert len(NeuroShard().search(task, SimpleCostModel(), seed=0, deadline=None).shards) == 1


def test_nothing_to_place():
    """Where the constraints settle every block there is nothing to search."""
    limits = {f"t{i}": TableConstraint(sharding_types=("row_wise",)) for i in range(3)}
    task = replace(equal_tables(3, 4), constraints=Constraints(limits))
    assert len(NeuroShard().search(task, SimpleCostModel(), seed=0, deadline=None).shards) == 12


def test_infeasible_names_a_table_and_a_remedy():
    with pytest.raises(
        InfeasibleTask, match=r"no device is left for table 'table_2', which needs .* allow column_wise"
    ):
        NeuroShard().search(impossible_task(), SimpleCostModel(), seed=0, deadline=None)


def test_a_deadline_in_the_past_still_gives_a_plan():
    task = task_of(12, 4)
    plan = NeuroShard().search(task, SimpleCostModel(), seed=0, deadline=time.monotonic() - 1)
    plan.check()
    assert sorted(map(repr, plan.shards)) == shards_of(task, SimpleCostModel(), most_splits=0)


@dataclass(frozen=True)
class BrokenEncoder(SimpleCostModel):
    def encode(self, works):
        codes = super().encode(works)
        codes[-1] = np.nan
        return codes


@dataclass(frozen=True)
class BrokenHead(SimpleCostModel):
    @property
    def pricing(self):
        return replace(super().pricing, bias=np.array([0.0, np.nan]))


@dataclass(frozen=True)
class NegativeHead(SimpleCostModel):
    @property
    def pricing(self):
        return replace(super().pricing, linear=-super().pricing.linear)


@pytest.mark.parametrize("model", [BrokenEncoder(), BrokenHead()], ids=["encoder", "head"])
def test_predictions_of_nan_are_refused(model):
    with pytest.raises(ShardwrightError, match="testing/simple predicted NaN"):
        NeuroShard().search(task_of(5, 2), model, seed=0, deadline=None)


def test_negative_predictions_count_as_nothing():
    """All devices look free: the plan is poor, legal, and the oracle's."""
    assert_as_the_oracle(random_task(1, 10, 4), NegativeHead(), **SMALL)


@pytest.mark.parametrize(
    ("option", "value"),
    [("tables_tried", 0), ("beam_width", 0), ("most_splits", -1), ("grid", 0), ("threads", 0), ("widest_bound", 0.9)],
)
def test_options_that_break_a_rule(option, value):
    with pytest.raises(InvalidInput, match=f"neuroshard: {option} is {value}, must be"):
        NeuroShard(**{option: value})
