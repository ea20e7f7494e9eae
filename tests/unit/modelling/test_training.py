from dataclasses import replace

import numpy as np
import pytest
import torch

from shardwright.cost.features import WorkArrays, cached, features, parts, scales, wider
from shardwright.cost.model import WIDE
from shardwright.cost.score import device_ms
from shardwright.modelling.accuracy import predict, repeat_noise
from shardwright.modelling.dataset import Samples, join
from shardwright.modelling.training import ComputeNetwork, TrainingOptions, fitted, train
from shardwright.sharding import Shard, shard_work
from shardwright.testing.tasks import task_of
from tests.unit.cli.models import linear_model
from tests.unit.modelling.conftest import make_samples
from tests.wide import wide_model


def test_training_learns_times_it_has_not_seen(trained):
    assert trained.accuracy.mean_error < 0.12
    assert trained.accuracy.spearman > 0.97
    assert trained.accuracy.sets > 20
    assert set(trained.accuracy.by_tables) <= {"1-3", "4-7", "8-11", "12-15"}


@pytest.mark.parametrize("wide", [False, True])
def test_numpy_agrees_with_torch(trained, samples, wide):
    """To 1e-5 relative, evaluated in double precision on both sides."""
    model = wide_model() if wide else trained.model
    network = ComputeNetwork.of(model).double()
    with torch.no_grad():
        w = model.weights
        seen = np.clip(features(samples.works), w["feature_low"], w["feature_high"])
        x = torch.tensor((seen - w["feature_mean"]) / w["feature_std"])
        estimate = torch.tensor(scales(samples.works) @ model.weights["scale"].astype(np.float64))
        bytes_seen = torch.tensor(cached(samples.works, w["caches"].astype(np.float64)))
        call, owner = samples.calls
        sizes = torch.tensor(parts(samples.works, float(w["caches"][0])))
        is_wider = torch.tensor(wider(samples.works), dtype=torch.float64)
        expected = network(x, estimate, bytes_seen, sizes, is_wider, torch.tensor(call), torch.tensor(owner)).numpy()
    np.testing.assert_allclose(predict(model, samples), expected, rtol=1e-5)


def test_the_cost_of_a_calls_widest_table_is_learned(samples):
    """A network that knows widths comes closer to such times; the price of widths is never negative."""
    many = replace(samples, works=replace(samples.works, lookups=1e4 * samples.works.lookups))  # as on a GPU
    paid = replace(many, times=many.times + predict(wide_model(0.5), many) - predict(wide_model(0.0), many))
    own, widest = (train(paid, TrainingOptions(epochs=60, width=width)) for width in ("own", "widest"))
    assert widest.accuracy.mean_error < 0.8 * own.accuracy.mean_error
    assert WIDE not in own.model.weights
    assert (widest.model.weights[WIDE] >= 0).all()
    assert (widest.model.weights[WIDE] > 0).any()


def test_fine_tuning_adds_widths_to_a_model_without_them(trained_convex, samples):
    options = TrainingOptions(epochs=2, width="widest")
    assert WIDE in fitted(samples, options, start=trained_convex.model).weights
    assert WIDE not in fitted(samples, replace(options, width="own"), start=trained_convex.model).weights


def test_a_set_is_the_sum_of_its_calls():
    """Half of the tables are fp16, so a set of several runs as two calls, whatever the order of its shards."""
    task = task_of(6, 1)
    works = [
        replace(shard_work(task, Shard.whole(t, 0)), dtype=("fp32", "fp16")[i % 2]) for i, t in enumerate(task.tables)
    ]
    order = [0, 1, 2, 3, 4, 5, 3, 1]
    samples = Samples(
        np.arange(2), np.zeros(2, int), np.array([0, 6, 8]), WorkArrays.of([works[i] for i in order]), np.ones((2, 2))
    )
    assert samples.calls[1].tolist() == [0, 0, 1]
    model = linear_model()
    model.weights["head.1.bias"][:] = 5.0
    expected = [device_ms(model, works), device_ms(model, [works[3], works[1]])]
    np.testing.assert_allclose(predict(model, samples), expected)
    each = predict(model, samples.select(np.array([False, True]))) - 5.0
    assert (each < 5.0).all()


def test_cache_overflow_is_learned_from_the_bytes_of_a_call(samples):
    """Times that rise once the distinct rows of a call outgrow a cache: the model comes closer when it knows the size of the cache."""
    model = train(samples, TrainingOptions(epochs=2), caches=(1 << 20, 8 << 20)).model
    assert model.weights["caches"].tolist() == [1 << 20, 8 << 20]
    seen = cached(samples.works, model.weights["caches"].astype(np.float64))
    np.testing.assert_allclose(model.encode_arrays(samples.works)[:, -2:], seen)
    np.testing.assert_allclose(seen[:, 0], 8 * seen[:, 1])
    assert (model.weights["head.0.weight"][:, -2:] != 0).any()


def test_features_beyond_the_training_sets_count_as_the_nearest_among_them(trained, samples):
    works = samples.works
    taller = replace(works, rows=works.rows * 1e6)
    factor, far = (model_factor(trained.model, columns) for columns in (works, taller))
    tallest = replace(works, rows=works.rows * 1e12)
    np.testing.assert_allclose(far, model_factor(trained.model, tallest), rtol=1e-9)
    assert not np.allclose(factor, far)


def model_factor(model, works):
    return model.encode_arrays(works)[:, :-2] / (scales(works) @ model.weights["scale"].astype(np.float64))[:, None]


def test_a_convex_model_is_convex_in_the_sums(trained_convex):
    rng = np.random.default_rng(0)
    one, other = (rng.normal(0, 5, (2000, 34)) for _ in range(2))
    share = rng.random((2000, 1))
    price = trained_convex.model.pricing.price
    middle = price(share * one + (1 - share) * other)
    assert (middle <= share * price(one) + (1 - share) * price(other) + 1e-9).all()


def test_training_stops_early_when_validation_no_longer_improves(samples):
    seen = []
    result = train(
        samples, TrainingOptions(epochs=60, patience=2, learning_rate=0.1), progress=lambda e, _: seen.append(e)
    )
    assert result.epochs == len(seen) < 60


def test_repeat_noise_is_what_was_put_in(samples):
    """Two factors exp(0.02 z) on each of two parts: the sums differ by about 0.02 × √2 × √(2/π) at most."""
    assert 0.008 < repeat_noise(samples) < 0.03
    assert repeat_noise(samples.select(samples.repeat == 0)) is None


def test_joined_stores_keep_their_sets_apart(samples):
    other = make_samples(60, seed=5)
    both = join([samples, other])
    assert len(both) == len(samples) + len(other)
    assert len(np.unique(both.sample)) == 460
    np.testing.assert_array_equal(both.shard_counts[-len(other) :], other.shard_counts)
    tail = both.select(np.arange(len(both)) >= len(samples))
    np.testing.assert_array_equal(tail.times, other.times)
    np.testing.assert_array_equal(tail.works.reuse_rows, other.works.reuse_rows)
    assert len(both.repeat_pairs()[0]) == len(samples.repeat_pairs()[0]) + len(other.repeat_pairs()[0])
