from dataclasses import replace

import numpy as np

from shardwright.cost.features import PARTS
from shardwright.cost.model import WIDE, WIDE_SHAPE
from shardwright.modelling.accuracy import predict
from shardwright.modelling.gpu_parts import fitted_parts, part_sums
from tests.wide import wide_model

CACHE = 1e6


def priced(weights, samples):
    """`(n, 2)` ms that a model with these weights adds to one without parts."""
    models = [wide_model(0.0) for _ in range(2)]
    for model, each in zip(models, (np.zeros(WIDE_SHAPE), weights), strict=True):
        model.weights.update({WIDE: each.astype(np.float32), "caches": np.full(2, CACHE, dtype=np.float32)})
    return predict(models[1], samples) - predict(models[0], samples)


def test_a_model_prices_the_sums_of_its_parts(samples):
    weights = np.random.default_rng(0).random(WIDE_SHAPE)
    expected = part_sums(samples, CACHE)[:, :-1] @ weights.reshape(2, -1).T
    np.testing.assert_allclose(priced(weights, samples), expected, rtol=1e-5)


def test_times_that_are_sums_of_parts_are_found_again(samples):
    """Long runs, and lookups beside a table of more than 64 columns; every call takes 0.01 and 0.02 ms more."""
    weights = np.zeros(WIDE_SHAPE)
    weights[1, 0, PARTS.index("pooled_long_runs")] = 3.0
    weights[:, 2, PARTS.index("pooled_lookups")] = 5.0
    times = priced(weights, samples) + part_sums(samples, CACHE)[:, -1:] * [0.01, 0.02]
    fitted = fitted_parts(replace(samples, times=times), CACHE)
    assert (fitted >= 0).all()
    np.testing.assert_allclose(priced(fitted, samples) / times, priced(weights, samples) / times, atol=1e-3)
