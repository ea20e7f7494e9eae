from dataclasses import dataclass, field, replace

import numpy as np
import pytest

from shardwright.cost import communication_ms
from shardwright.errors import ShardwrightError
from shardwright.learned.arrays import PlacementArrays
from shardwright.learned.worlds import MeasuredWorld, SimulatedWorld, compute_ms, step_ms
from shardwright.measure.measuring import MeasuredPlan
from shardwright.testing.model import SimpleCostModel
from shardwright.testing.tasks import task_of

PHASES = np.array([[1.0, 5.0, 0.5, 2.0], [4.0, 3.0, 0.25, 8.0]])


def test_the_costs_of_phases():
    assert step_ms(PHASES) == 4 + 5 + 0.5 + 8
    assert compute_ms(PHASES).tolist() == [3.0, 12.0]


def test_tasks_are_encoded_once_and_forgotten_with_the_task():
    @dataclass(frozen=True)
    class Counting(SimpleCostModel):
        calls: list = field(default_factory=list)

        def encode_arrays(self, works):
            self.calls.append(len(works.dim))
            return super().encode_arrays(works)

    model = Counting()
    world = SimulatedWorld(model)
    first, second = (PlacementArrays.of(task_of(count, 2)) for count in (4, 5))
    world.costs([(first, np.zeros(4, int)), (second, np.zeros(5, int)), (first, np.ones(4, int))])
    world.costs([(second, np.ones(5, int))])
    assert model.calls == [4, 5]
    del first
    assert len(world._known) == 1


def test_nan_of_the_cost_model_is_an_error_that_names_it():
    class Broken(SimpleCostModel):
        @property
        def pricing(self):
            return replace(super().pricing, bias=np.array([np.nan, 0.0]))

    arrays = PlacementArrays.of(task_of(3, 2))
    with pytest.raises(ShardwrightError, match="cost model testing/simple predicted NaN"):
        SimulatedWorld(Broken()).costs([(arrays, np.array([0, 1, 0]))])


def test_unplaced_units_are_refused():
    arrays = PlacementArrays.of(task_of(3, 2))
    with pytest.raises(ValueError, match="negative"):
        SimulatedWorld(SimpleCostModel()).costs([(arrays, np.array([0, -1, 0]))])


def test_the_measured_world_measures_all_plans_together(monkeypatch):
    calls = []

    def measure_plans(plans, *, rounds, seed, device, fleet):
        assert fleet is None
        calls.append((len(plans), rounds, seed, device))
        ranks = np.arange(plans[0].task.topology.devices)
        return [MeasuredPlan(plan, n + ranks, 2.0 * (n + ranks), rounds) for n, plan in enumerate(plans)]

    monkeypatch.setattr("shardwright.measure.measuring.measure_plans", measure_plans)
    arrays = PlacementArrays.of(task_of(4, 2))
    placed = [(arrays, np.array([0, 1, 0, 1])), (arrays, np.array([1, 1, 1, 0]))]
    costs = MeasuredWorld(rounds=3, seed=5).costs(placed)
    assert calls == [(2, 3, 5, "cpu")]
    for number, ((_, assignment), phases) in enumerate(zip(placed, costs, strict=True)):
        forward, backward = communication_ms(arrays.task, arrays.plan(assignment, "", 0).shards)
        ranks = number + np.arange(2)
        np.testing.assert_array_equal(phases, np.stack([ranks, forward, backward, 2.0 * ranks], axis=1))


def test_worlds_name_the_source_of_costs():
    assert SimulatedWorld(SimpleCostModel(), (SimpleCostModel(),)).name == "simulated: testing/simple, testing/simple"
    name = MeasuredWorld().name
    assert name.startswith("measured: device_kind cpu, processor ")
    assert "backend" in name
