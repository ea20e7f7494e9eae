import numpy as np
import pytest
import torch

from shardwright.cost import resolve_cost_model, save_model
from shardwright.cost.features import WorkArrays
from shardwright.cost.neuroshard import CommunicationNetworks, NeuroShardModel
from shardwright.cost.neuroshard.model import (
    SHAPES,
    SIZES,
    TABLE_FEATURES,
    communication_shapes,
    evaluate,
    megabytes,
    table_features,
)
from shardwright.cost.score import score
from shardwright.errors import InvalidInput
from shardwright.modelling.fitting import Stack
from shardwright.modelling.neuroshard_training import SetNetwork
from shardwright.sharding import Shard, shard_work
from shardwright.testing.tasks import task_of


def filled(shapes, seed=0):
    rng = np.random.default_rng(seed)
    values = {name: rng.normal(0, 0.3, shape).astype(np.float32) for name, shape in shapes.items()}
    return {name: np.abs(value) + 0.1 if name.endswith("std") else value for name, value in values.items()}


def networks_for(*devices, batch_size=1024):
    weights = {}
    for count in devices:
        weights |= filled(communication_shapes(count), count)
        for name in ("forward", "backward"):
            weights[f"communication.{count}.{name}.4.bias"] += 5  # times well above 0
    return CommunicationNetworks(weights, devices, batch_size)


def copied(network, weights, prefix=""):
    with torch.no_grad():
        for name, parameter in network.named_parameters():
            parameter.copy_(torch.tensor(weights[prefix + name]))
    return network.double()


@pytest.fixture
def works():
    task = task_of(20, 1)
    return [shard_work(task, Shard.whole(table, 0)) for table in task.tables]


def test_a_table_is_described_by_21_numbers(works):
    x = table_features(WorkArrays.of(works))
    assert x.shape == (len(works), len(TABLE_FEATURES)) == (20, 21)
    work = works[3]
    np.testing.assert_allclose(
        np.exp(x[3, :4]), [work.rows, work.dim, work.pooling, work.weight_bytes], rtol=1e-2, atol=1e-2
    )
    np.testing.assert_allclose(x[:, 4:].sum(axis=1), 1, rtol=1e-6)


def test_numpy_agrees_with_torch_on_compute_times(works):
    model = NeuroShardModel(filled(SHAPES))
    network = copied(SetNetwork(), model.weights)
    x = (table_features(WorkArrays.of(works)) - model.weights["feature_mean"]) / model.weights["feature_std"]
    inside = torch.tensor(np.arange(20) < 13, dtype=torch.float64)
    with torch.no_grad():
        expected = float(network(torch.tensor(x)[None], inside[None])[0, 0])
    times = model.pricing.price(model.encode(works[:13]).sum(axis=0))
    assert times[0] == pytest.approx(max(expected, 0), rel=1e-5)
    assert times[1] == 0


def test_numpy_agrees_with_torch_on_communication_times():
    networks = networks_for(4)
    rng = np.random.default_rng(1)
    dims, delays = rng.integers(1, 300, (50, 4)) * 4, rng.uniform(0, 5, (50, 4))
    late = delays - delays.min(axis=1, keepdims=True)
    for name, raw, times in (
        ("forward", np.hstack([megabytes(dims, 1024), late]), networks.forward_ms(dims, delays)),
        ("backward", megabytes(dims, 1024), networks.backward_ms(dims)),
    ):
        prefix = f"communication.4.{name}."
        network = copied(Stack((raw.shape[1], *SIZES, 4)), networks.weights, prefix)
        x = (raw - networks.weights[f"{prefix}mean"]) / networks.weights[f"{prefix}std"]
        with torch.no_grad():
            expected = network(torch.tensor(x)).numpy()
        assert (expected > 0).any()
        np.testing.assert_allclose(times, np.maximum(expected, 0), rtol=1e-5)


def test_leading_dimensions_are_kept_and_single_samples_agree():
    networks = networks_for(2, 4)
    rng = np.random.default_rng(2)
    dims, delays = rng.uniform(0, 500, (3, 5, 4)), rng.uniform(0, 2, (3, 5, 4))
    times = networks.forward_ms(dims, delays)
    assert times.shape == (3, 5, 4)
    np.testing.assert_allclose(networks.forward_ms(dims[1, 2], delays[1, 2]), times[1, 2])
    np.testing.assert_allclose(networks.forward_ms(dims, delays[0, 0])[0, 0], times[0, 0])
    assert networks.backward_ms([[8, 16]]).shape == (1, 2)


def test_only_differences_of_delays_count():
    networks = networks_for(4)
    dims, delays = np.array([64, 128, 32, 4]), np.array([0.0, 1.0, 2.0, 0.5])
    np.testing.assert_allclose(networks.forward_ms(dims, delays + 7), networks.forward_ms(dims, delays))


def test_start_delays_are_differences_of_kernels_and_backward_communication():
    seen = {}

    class Networks(CommunicationNetworks):
        def forward_ms(self, dims, delays, batch_size):
            seen["delays"] = delays
            return np.full_like(dims, 0.25)

        def backward_ms(self, dims, batch_size):
            return dims / batch_size

    times = np.array([[[1.0, 2.0], [0.5, 1.0], [4.0, 0.0]]])
    networks = networks_for(3)
    costs = Networks(networks.weights, (3,), 1).embedding_costs(times, np.array([[10, 20, 30]]), 10)
    np.testing.assert_allclose(seen["delays"], [[0.5, 0.0, 3.5]])
    np.testing.assert_allclose(costs, [[4.25, 3.75, 7.25]])


def test_twice_the_batch_is_twice_the_dims():
    networks = networks_for(4)
    dims, delays = np.array([64, 128, 32, 4]), np.array([0.0, 1.0, 2.0, 0.5])
    np.testing.assert_allclose(networks.forward_ms(dims, delays, 2048), networks.forward_ms(2 * dims, delays))
    np.testing.assert_allclose(networks.backward_ms(dims, 1024), networks.backward_ms(dims))
    assert (networks.backward_ms(dims, 2048) != networks.backward_ms(dims)).any()


def test_the_plain_layers_say_the_same():
    """Layers for raw inputs give the networks' times."""
    networks = networks_for(4)
    layers = networks.layers(4, 512)
    dims, delays = np.array([64.0, 128, 32, 4]), np.array([0.0, 1.0, 2.0, 0.5])
    forward = evaluate(layers.forward, np.concatenate([dims, delays]))
    np.testing.assert_allclose(np.maximum(forward, 0), networks.forward_ms(dims, delays, 512))
    np.testing.assert_allclose(np.maximum(evaluate(layers.backward, dims), 0), networks.backward_ms(dims, 512))
    assert [weight.shape for weight, _ in layers.forward] == [(128, 8), (64, 128), (32, 64), (16, 32), (4, 16)]
    assert networks.layers(4, 512) is layers


def test_times_are_never_negative():
    networks = networks_for(2)
    for name in ("forward", "backward"):
        networks.weights[f"communication.2.{name}.4.bias"][:] = -1e6
    assert (networks.forward_ms([8, 8], [0, 0]) == 0).all()
    assert (networks.backward_ms([8, 8]) == 0).all()


@pytest.mark.parametrize("devices", [1, 3, 8])
def test_another_number_of_devices_is_refused_with_a_remedy(devices):
    networks = networks_for(2, 4)
    with pytest.raises(InvalidInput, match=f"trained for 2 and 4 devices, the task has {devices}; measure") as error:
        networks.forward_ms(np.ones(devices), np.zeros(devices))
    assert "--collectives" in str(error.value)
    with pytest.raises(InvalidInput, match="the task has"):
        networks.backward_ms(np.ones(devices))


def test_every_strategy_can_price_plans_with_it(works):
    """Forward carries forward + backward: the step and the embedding cost have each time once."""
    task = task_of(6, 2)
    model = NeuroShardModel(filled(SHAPES), metadata={"device": "cpu"})
    assert model.name == "cpu/neuroshard"
    assert model.encode([]).shape == (0, 32)
    assert (model.encode(works) >= 0).all()
    cost = score(task, [Shard.whole(table, index % 2) for index, table in enumerate(task.tables)], model)
    assert all(device.backward_ms == 0 for device in cost.devices)


def test_communication_networks_without_devices_or_with_bad_arrays_are_refused():
    weights = filled(communication_shapes(2))
    for changed, devices, batch_size, says in [
        (weights, (), 1024, "at least one number of devices"),
        (weights, (2,), 0, "batch size of at least 1"),
        (weights, (2, 4), 1024, "communication.4.forward.mean is missing"),
        (weights | {"communication.2.forward.std": np.zeros(4, np.float32)}, (2,), 1024, "std must be greater"),
    ]:
        with pytest.raises(InvalidInput, match=says):
            CommunicationNetworks(changed, devices, batch_size)


@pytest.fixture
def model():
    return NeuroShardModel(filled(SHAPES), networks_for(2, 4, batch_size=512), {"device": "cpu", "hardware": "test"})


@pytest.fixture
def model_file(model, tmp_path):
    path = tmp_path / "model.safetensors"
    save_model(model, path)
    return path


def test_the_three_networks_survive_a_file(model, model_file):
    loaded = resolve_cost_model(model_file, task_of(2, 1))
    assert isinstance(loaded, NeuroShardModel)
    assert loaded.name == "cpu/neuroshard"
    assert loaded.metadata == model.metadata
    assert (loaded.communication.devices, loaded.communication.batch_size) == ((2, 4), 512)
    for name, array in (model.weights | model.communication.weights).items():
        np.testing.assert_array_equal((loaded.weights | loaded.communication.weights)[name], array)
    dims, delays = np.array([8, 16, 64, 4]), np.array([0.0, 1.0, 3.0, 0.1])
    np.testing.assert_array_equal(
        loaded.communication.forward_ms(dims, delays), model.communication.forward_ms(dims, delays)
    )
