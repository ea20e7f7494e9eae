"""`rnn` keeps the rules of every strategy, and is refused if it cannot work."""

import numpy as np
import pytest

from shardwright.errors import InfeasibleTask, MissingDependency
from shardwright.learned.rnn import Rnn, RnnOptions
from shardwright.search.baselines import Random
from shardwright.task import Constraints, TableConstraint
from shardwright.testing import check_strategy
from shardwright.testing.model import SimpleCostModel
from shardwright.testing.tasks import task_of

from .worlds import LoadWorld, equal_tables, pooling_of

SHORT = RnnOptions(updates=6, episodes=4, hidden=8)


@pytest.mark.slow
def test_conformance():
    check_strategy(Rnn(SHORT))


@pytest.mark.slow
def test_better_than_random_by_the_cost_model():
    from shardwright.cost.score import score

    task, model = task_of(20, 4), SimpleCostModel()
    own = Rnn(RnnOptions(updates=60, episodes=16, hidden=16)).search(task, model, seed=0, deadline=None)
    others = [Random().search(task, model, seed=seed, deadline=None) for seed in range(20)]
    assert own.strategy == "rnn"
    assert score(task, own.shards, model).step_ms < min(score(task, other.shards, model).step_ms for other in others)


def test_a_world_of_its_own_decides():
    task, world = equal_tables(6, 2), LoadWorld()
    plan = Rnn(SHORT, world=world).search(task, SimpleCostModel(), seed=0, deadline=None)
    from shardwright.learned.arrays import PlacementArrays

    loads = pooling_of(PlacementArrays.of(task))
    devices = [shard.devices[0] for shard in plan.shards]
    assert np.bincount(devices, loads).max() == min(np.bincount(plan, loads, 2).max() for plan in world.asked)


def test_tables_that_must_be_cut_over_all_devices_need_no_training():
    names = [f"table_{i}" for i in range(3)]
    everywhere = Constraints({name: TableConstraint(("data_parallel",)) for name in names})
    task = task_of(3, 2, constraints=everywhere)
    assert all(len(shard.devices) == 2 for shard in Rnn().search(task, SimpleCostModel(), seed=0, deadline=None).shards)
    tight = task_of(3, 2, memory="1 MB", constraints=everywhere)
    with pytest.raises(InfeasibleTask):
        Rnn().search(tight, SimpleCostModel(), seed=0, deadline=None)


def test_tasks_and_installations_it_cannot_serve(monkeypatch):
    tiered = Constraints({"table_0": TableConstraint(("tiered",))})
    assert "allows only tiered" in Rnn().supports(task_of(3, 2, constraints=tiered))
    monkeypatch.setattr("shardwright.learned.rnn.find_spec", lambda name: None)
    with pytest.raises(MissingDependency, match=r"shardwright\[learn\]"):
        Rnn().search(task_of(3, 2), SimpleCostModel(), seed=0, deadline=None)
