from itertools import product

import numpy as np
import pytest
from experiments.learned.tasks import Setting, compute_bound, draw_task, whole

from shardwright.cost import cost_model_for
from shardwright.errors import InvalidInput
from shardwright.learned.arrays import PlacementArrays
from shardwright.learned.worlds import SimulatedWorld, compute_ms
from shardwright.task import Constraints, Table, TableConstraint, Task, Topology
from shardwright.testing.model import SimpleCostModel


class Signed(SimpleCostModel):
    """Latents may be negative."""

    def encode_arrays(self, works):
        return super().encode_arrays(works) * np.array([1.0, -0.4, 1.0])


@pytest.mark.parametrize("setting", [Setting(6, 2), Setting(5, 3)])
@pytest.mark.parametrize("number", range(3))
def test_it_holds_for_every_placement(setting, number):
    task = draw_task(setting, number)
    arrays = PlacementArrays.of(task)
    every = [(arrays, np.array(one)) for one in product(range(setting.devices), repeat=setting.tables)]
    for model in (cost_model_for("cpu"), SimpleCostModel(), Signed()):
        best = min(compute_ms(phases).max() for phases in SimulatedWorld(model).costs(every))
        assert 0 < compute_bound(task, model) <= best * (1 + 1e-9)


TWO = Topology(devices_per_host=2, memory="1 GB")


@pytest.mark.parametrize(("last", "placement"), [(4.0, [0, 1, 0, 1]), (400.0, [0, 0, 0, 1])])
def test_it_is_reached_by_equal_tables_and_by_one_that_dominates(last, placement):
    tables = [Table(f"t{i}", 1000, 16, 4.0) for i in range(3)] + [Table("last", 1000, 16, last)]
    task, model = whole(Task(tables, TWO, 256)), SimpleCostModel()
    phases = SimulatedWorld(model).costs([(PlacementArrays.of(task), np.array(placement))])[0]
    assert compute_bound(task, model) == pytest.approx(compute_ms(phases).max())


class Helpful(SimpleCostModel):
    """Outputs take negative time: a table that is hardly looked up makes its device cheaper."""

    def encode_arrays(self, works):
        return super().encode_arrays(works) * np.array([1.0, 1.0, -1.0])


def test_the_bound_holds_if_tables_make_a_device_cheaper():
    tables = [Table("dear", 1000, 16, 4.0), *(Table(f"light{i}", 1000, 16, 0.05) for i in range(3))]
    task, model = whole(Task(tables, TWO, 256)), Helpful()
    arrays = PlacementArrays.of(task)
    every = [(arrays, np.array(one)) for one in product(range(2), repeat=4)]
    slowest = {
        tuple(placement): compute_ms(phases).max()
        for (_, placement), phases in zip(every, SimulatedWorld(model).costs(every), strict=True)
    }
    assert slowest[0, 0, 0, 0] < slowest[0, 1, 1, 1], "the dear table alone is no bound"
    assert 0 < compute_bound(task, model) <= min(slowest.values()) * (1 + 1e-9)


def test_tables_that_are_cut_are_refused():
    task = Task(
        [Table("cut", 1000, 16, 4.0)], TWO, 256, constraints=Constraints({"cut": TableConstraint(("row_wise",))})
    )
    with pytest.raises(InvalidInput, match="tables that stay whole"):
        compute_bound(task, SimpleCostModel())
