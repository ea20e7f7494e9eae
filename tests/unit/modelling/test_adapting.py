from dataclasses import replace

import numpy as np
import pytest

from shardwright.modelling.accuracy import predict
from shardwright.modelling.adapting import error_of, recipes, scaled, validated
from shardwright.modelling.dataset import pair_label
from shardwright.modelling.training import TrainingOptions, fitted
from tests.unit.modelling.conftest import make_samples

CACHES = (1 << 20, 32 << 20)


@pytest.fixture(scope="module")
def few():
    samples = make_samples(60, seed=3)
    return samples.select(samples.repeat == 0)


@pytest.mark.slow
def test_a_scaled_model_keeps_its_ratios_and_finds_the_factor(trained_convex, few):
    start = trained_convex.model
    times = replace(few, times=predict(start, few) * np.array([2.0, 3.0]))
    model = scaled(start, times)
    np.testing.assert_allclose(predict(model, few), times.times, rtol=1e-5)
    assert error_of(model, times) < 1e-5


@pytest.mark.slow
def test_the_recipe_that_predicts_best_what_it_has_not_seen_is_taken(trained_convex, few):
    """On a machine twice as slow as the one a model is of, scaling that model is as good as it gets, and training from 60 sets is not."""
    start = trained_convex.model
    slower = replace(few, times=predict(start, few) * 2)
    chosen = validated(slower, recipes(start, CACHES), folds=3, effort=0.2)
    assert chosen.name in ("scaled", "fine-tuned")
    assert chosen.accuracy.mean_error < 0.02
    assert chosen.accuracy.sets == len(slower)
    assert len(chosen.models) == 3
    alone = validated(slower, recipes(None, CACHES), folds=3, effort=0.2)
    assert alone.name == "from nothing"
    assert alone.accuracy.mean_error > chosen.accuracy.mean_error


def test_sets_of_a_pair_are_held_out_together(few, monkeypatch):
    labels = np.array([pair_label(str(place // 4), place % 4, 1) for place in range(len(few))], dtype=object)
    paired, seen = replace(few, labels=labels), []

    def recipe(samples, seed, effort):
        seen.append({label.split("/")[0] for label in samples.labels})
        return start

    start = fitted(few, TrainingOptions(epochs=1), CACHES)
    validated(paired, {"fake": recipe}, folds=3)
    names = {label.split("/")[0] for label in labels}
    held_out = [names - trained for trained in seen]
    assert sorted(name for fold in held_out for name in fold) == sorted(names)


@pytest.mark.slow
def test_the_extra_cost_of_a_variant_is_learned(few):
    """Two sets alike but for their times: the loss on pairs sees their difference, so it changes the trained model."""
    labels = np.array([pair_label(str(place // 2), place % 2, 1) for place in range(len(few))], dtype=object)
    options = TrainingOptions(epochs=150, batch=16)
    plain, paired = (fitted(replace(few, labels=set_labels), options, CACHES) for set_labels in (few.labels, labels))

    def difference_error(model):
        whole, variant = predict(model, few).sum(axis=1)[:60].reshape(-1, 2).T
        true_whole, true_variant = few.times.sum(axis=1)[:60].reshape(-1, 2).T
        return float((np.abs((variant - whole) - (true_variant - true_whole)) / true_whole).mean())

    assert difference_error(paired) < difference_error(plain)


@pytest.mark.slow
def test_features_range_grows_to_that_of_the_samples(trained_convex, few):
    start = trained_convex.model
    works = replace(few.works, rows=few.works.rows * 1e4)
    model = fitted(replace(few, works=works), TrainingOptions(epochs=1), CACHES, start)
    assert model.weights["feature_high"][0] > start.weights["feature_high"][0]
    np.testing.assert_array_equal(model.weights["feature_mean"], start.weights["feature_mean"])
    assert (model.weights["head.1.weight"] >= 0).all()


def test_half_of_the_sets_take_longer_than_a_chosen_recipe_predicts(few):
    """A recipe that predicts too little is scaled, and so is the model that it makes of all sets."""
    start = fitted(few, TrainingOptions(epochs=1), CACHES)
    chosen = validated(few, {"too little": lambda samples, seed, effort: start}, folds=3)
    np.testing.assert_allclose(np.median(few.times / chosen.predicted, axis=0), 1, rtol=1e-5)
    np.testing.assert_allclose(predict(chosen.recipe(few, 0, 1.0), few), chosen.predicted, rtol=1e-4)
