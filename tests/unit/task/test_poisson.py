import numpy as np
import pytest
from scipy.special import pdtr
from scipy.stats import poisson

from shardwright.task.poisson import poisson_at_most, poisson_exactly

MEANS = np.concatenate([[0.0], np.geomspace(1e-9, 1e6, 200), 2.0 ** np.arange(16), 32768 + np.arange(-900, 900, 45.0)])


@pytest.mark.parametrize("count", [0, 1, 2, 4, 15, 16, 17, 32, 100, 1024, 16384, 32768])
def test_at_most_agrees_with_scipy(count: int) -> None:
    assert poisson_at_most([count], MEANS)[:, 0] == pytest.approx(pdtr(count, MEANS), abs=1e-11)


def test_exactly_agrees_with_scipy() -> None:
    for count in (0, 1, 7, 64, 32768):
        assert poisson_exactly(count, MEANS) == pytest.approx(poisson.pmf(count, MEANS), rel=1e-8, abs=1e-14)


def test_one_column_a_count() -> None:
    probabilities = poisson_at_most([0, 5, 50], [0.5, 20.0])
    assert probabilities.shape == (2, 3)
    assert (np.diff(probabilities, axis=1) >= 0).all()
