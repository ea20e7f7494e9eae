from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import poisson

from shardwright.task.access import REUSE_EDGES
from shardwright.task.poisson import poisson_at_most, poisson_exactly

MEANS = np.concatenate([[0.0, 1e-300], np.geomspace(1e-12, 1e9, 4000)])
EDGES = REUSE_EDGES[:-1].astype(np.int64)


def test_probabilities_at_the_edges_of_the_reuse_bins() -> None:
    found = poisson_at_most(EDGES, MEANS)
    assert found.shape == (MEANS.size, EDGES.size)
    np.testing.assert_allclose(found, poisson.cdf(EDGES[None, :], MEANS[:, None]), rtol=0, atol=1e-9)


def test_close_to_an_edge_too() -> None:
    for edge in EDGES[1:]:
        means = edge * (1 + np.linspace(-0.2, 0.2, 101))
        expected = poisson.cdf(edge, means)
        np.testing.assert_allclose(poisson_at_most([edge], means)[:, 0], expected, rtol=0, atol=1e-9)


@given(st.integers(0, 40_000), st.floats(1e-6, 1e6))
def test_any_count_and_mean(count: int, mean: float) -> None:
    found = float(poisson_at_most([count], [mean])[0, 0])
    assert 0 <= found <= 1
    assert abs(found - poisson.cdf(count, mean)) < 1e-9


@given(st.integers(0, 40_000), st.floats(1e-6, 1e6))
def test_a_single_probability(count: int, mean: float) -> None:
    assert abs(float(poisson_exactly(count, [mean])[0]) - poisson.pmf(count, mean)) < 1e-9


def test_nothing_is_expected_of_a_mean_of_zero() -> None:
    assert poisson_at_most(EDGES, [0.0]).tolist() == [[1.0] * EDGES.size]
    assert poisson_exactly(0, [0.0]).tolist() == [1.0]
    assert poisson_exactly(8, [0.0]).tolist() == [0.0]
