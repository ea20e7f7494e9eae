import numpy as np
import pytest

from shardwright.cost import device_ms
from shardwright.errors import MeasurementFailed
from shardwright.measure.device_work import Visit
from shardwright.measure.measurer import OneByOne
from shardwright.modelling import adapting
from shardwright.testing.model import SimpleCostModel


class FakeVisitor(OneByOne):
    """A machine whose kernel times follow a simple formula, with noise; some sets fail, if asked to."""

    def __init__(self, noise=0.01, fails=lambda number: False, interrupt_at=None):
        self.works, self._noise, self._fails, self._interrupt_at = [], noise, fails, interrupt_at
        self._model, self._rng = SimpleCostModel(), np.random.default_rng(0)

    def visit(self, work):
        number = len(self.works)
        self.works.append(work)
        if number == self._interrupt_at:
            raise KeyboardInterrupt
        if self._fails(number):
            raise MeasurementFailed("the kernel failed")
        forward, backward = np.array(device_ms(self._model, work.works)) * np.exp(
            self._noise * self._rng.standard_normal(2)
        )
        return Visit(float(forward), float(backward), 4, 1.0, 1.0, 1e9, {"runs": 0.01})


@pytest.fixture
def brief_training(monkeypatch):
    """Train models in a tenth of the usual updates: for tests of files, messages and choices, not of accuracy."""
    for name in ("_UPDATES", "_FINE_UPDATES"):
        monkeypatch.setattr(adapting, name, getattr(adapting, name) // 10)


@pytest.fixture
def visitor():
    return FakeVisitor()
