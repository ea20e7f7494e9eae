import numpy as np
import pytest

from shardwright.errors import InvalidInput
from shardwright.modelling.accuracy import accuracy, predict
from shardwright.modelling.neuroshard_collectives import collectives_of
from shardwright.modelling.neuroshard_training import (
    NeuroShardOptions,
    predict_passes,
    train_communication,
    train_compute,
)
from tests.unit.modelling.conftest import make_samples
from tests.unit.modelling.made_collectives import table

FORWARD, BACKWARD = "all_to_all_forward", "all_to_all_backward"


def all_to_alls(samples, **options):
    return collectives_of([table(samples, **options)])


@pytest.fixture(scope="module")
def measured():
    return make_samples(300, seed=4, noise=0.02)


@pytest.fixture(scope="module")
def trained(measured):
    return train_compute(measured, NeuroShardOptions(epochs=150, batch=64))


@pytest.mark.slow
def test_the_compute_network_learns_a_small_set_by_heart(measured, trained):
    """On its own training sets, 80% of these, it comes close to the noise of 2%."""
    assert accuracy(predict(trained[0], measured), measured, measured).mean_error < 0.08


def test_the_compute_network_learns_times_it_has_not_seen(trained):
    model, errors = trained
    assert errors.sets == 30
    assert errors.mean_error < 0.15
    assert errors.spearman > 0.97
    assert 0.008 < errors.repeat_error < 0.03
    assert errors.mse > 0
    assert errors.forward_error is errors.backward_error is None
    assert model.communication is None


def test_training_brings_the_squared_error_down(measured):
    few, many = (train_compute(measured, NeuroShardOptions(epochs=n, batch=64))[1] for n in (1, 40))
    assert many.mse < 0.3 * few.mse


@pytest.mark.slow
def test_communication_networks_learn_a_small_set_by_heart():
    """Waits and bytes of two numbers of devices; without noise."""
    parts = all_to_alls(100, world=2) + all_to_alls(100, world=4)
    networks = train_communication(parts, NeuroShardOptions(epochs=150, batch=32)).networks
    assert networks.devices == (2, 4)
    for part in parts:
        predicted = predict_passes(networks, part)
        assert (np.abs(predicted["forward"] - part.forward) / part.forward).mean() < 0.1
        assert (np.abs(predicted["backward"] - part.backward) / part.backward).mean() < 0.1


@pytest.mark.slow
def test_communication_errors_are_of_held_out_collectives_and_stand_beside_repeat_noise():
    trained = train_communication(all_to_alls(400, noise=0.03), NeuroShardOptions(epochs=120, batch=64))
    assert set(trained.errors) == {"4 devices"}
    for name in (FORWARD, BACKWARD):
        errors = trained.errors["4 devices"][name]
        assert errors.devices == 4 * 40
        assert 0.02 < errors.mean_error < 0.15
        assert errors.repeat_error == pytest.approx(0.034, abs=0.01)


def test_the_batch_size_most_samples_have_is_the_default():
    (part,) = all_to_alls(60)
    part.batch_size[:] = 1024
    part.batch_size[:5] = 4096
    assert train_communication([part], NeuroShardOptions(epochs=1)).networks.batch_size == 1024


def test_the_same_seed_gives_the_same_networks(measured):
    options = NeuroShardOptions(epochs=2)
    one, other = (train_compute(measured, options)[0].weights for _ in range(2))
    another = train_compute(measured, NeuroShardOptions(epochs=2, seed=1))[0].weights
    for name, array in one.items():
        np.testing.assert_array_equal(array, other[name])
    assert (another["head.0.weight"] != one["head.0.weight"]).any()


@pytest.mark.filterwarnings("ignore:An input array is constant")
def test_the_best_validation_epoch_is_kept(measured):
    """So wild a learning rate makes later epochs worse; the model is that of the best one."""
    seen = []
    options = NeuroShardOptions(epochs=12, learning_rate=0.1, batch=32)
    best = train_compute(measured, options, progress=lambda _, loss: seen.append(loss))[0]
    assert seen == sorted(seen, reverse=True)
    last = next(epoch for epoch, loss in enumerate(seen, start=1) if loss == seen[-1])
    assert last < 12
    until = NeuroShardOptions(epochs=last, learning_rate=0.1, batch=32)
    np.testing.assert_array_equal(train_compute(measured, until)[0].weights["head.0.bias"], best.weights["head.0.bias"])


def test_too_few_samples_and_collectives_are_refused(measured):
    for train, given, says in (
        (train_compute, measured.select(np.arange(len(measured)) < 10), "10 samples are too few"),
        (train_communication, all_to_alls(20, repeated=0), "20 all-to-alls of 4 devices are too few"),
        (train_communication, [], "hold no all_to_all"),
    ):
        with pytest.raises(InvalidInput, match=says):
            train(given, NeuroShardOptions(epochs=1))
