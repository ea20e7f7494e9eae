import json

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

from shardwright.cost import load_model, resolve_cost_model, save_model
from shardwright.cost.neuroshard import NeuroShardModel
from shardwright.cost.neuroshard.model import SHAPES
from shardwright.errors import InvalidInput
from tests.unit.cost.neuroshard.test_neuroshard_model import filled, networks_for


@pytest.fixture
def model():
    return NeuroShardModel(filled(SHAPES), networks_for(2, 4, batch_size=512), {"device": "cpu", "hardware": "test"})


@pytest.fixture
def model_file(model, tmp_path):
    path = tmp_path / "model.safetensors"
    save_model(model, path)
    return path


def rewrite(path, tensors=None, **header):
    with safe_open(path, framework="np") as file:
        metadata = file.metadata() | header
    save_file(tensors or load_file(path), path, {k: v for k, v in metadata.items() if v is not None})


def test_the_three_networks_survive_a_file(model, model_file):
    found = resolve_cost_model(model_file, "cpu")
    assert isinstance(found, NeuroShardModel)
    assert found.name == "cpu/neuroshard"
    assert found.metadata == model.metadata
    assert (found.communication.devices, found.communication.batch_size) == ((2, 4), 512)
    for name, array in (model.weights | model.communication.weights).items():
        np.testing.assert_array_equal((found.weights | found.communication.weights)[name], array)
    dims, delays = np.array([8, 16, 64, 4]), np.array([0.0, 1.0, 3.0, 0.1])
    np.testing.assert_array_equal(
        found.communication.forward_ms(dims, delays), model.communication.forward_ms(dims, delays)
    )


def test_a_model_without_communication_survives_a_file(tmp_path):
    path = tmp_path / "model.safetensors"
    save_model(NeuroShardModel(filled(SHAPES)), path)
    assert load_model(path).communication is None


@pytest.mark.parametrize(
    ("header", "says"),
    [
        ({"format": "1"}, "format is '1'.*train the model again"),
        ({"format": None}, "format is None"),
        ({"kind": "policy"}, "kind 'policy'"),
        ({"kind": "compute"}, "other features"),
        ({"features": json.dumps(["rows"])}, "other features"),
        ({"devices": "2,4,8"}, "communication.8.forward.mean is missing"),
        ({"devices": "2,2"}, "different numbers"),
        ({"devices": "0"}, "whole numbers from 1"),
        ({"devices": "99999999999999999999"}, "whole numbers from 1"),
        ({"devices": "²"}, "whole numbers from 1"),
        ({"devices": ",".join(map(str, range(1, 100)))}, "at most 64"),
        ({"communication_batch_size": None}, "communication_batch_size is ''"),
        ({"communication_batch_size": "-5"}, "communication_batch_size is '-5'"),
    ],
)
def test_another_header_is_refused(model_file, header, says):
    rewrite(model_file, **header)
    with pytest.raises(InvalidInput, match=says) as error:
        load_model(model_file)
    assert str(model_file) in str(error.value)


def test_wrong_shapes_missing_and_bad_values_are_refused(model_file):
    good = load_file(model_file)
    for change, says in [
        ({"head.1.bias": np.zeros(3, np.float32)}, r"head.1.bias has shape \(3,\), must be"),
        (
            {"communication.4.backward.0.weight": np.zeros((128, 5), np.float32)},
            r"backward.0.weight has shape \(128, 5\)",
        ),
        ({"communication.2.forward.mean": np.full(4, np.inf, np.float32)}, "forward.mean holds NaN or infinite"),
        ({"encoder.0.weight": np.zeros((128, 21), np.int8)}, "encoder.0.weight holds numbers of type I8, must be F32"),
    ]:
        rewrite(model_file, good | change)
        with pytest.raises(InvalidInput, match=says):
            load_model(model_file)
    rewrite(model_file, {k: v for k, v in good.items() if k != "encoder.1.bias"})
    with pytest.raises(InvalidInput, match=r"encoder.1.bias is missing"):
        load_model(model_file)


def test_a_number_type_that_numpy_does_not_know_is_refused(model_file):
    content = model_file.read_bytes()
    length = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + length])
    header["head.1.bias"] |= {"dtype": "F8_E4M3", "shape": [4]}
    encoded = json.dumps(header).encode()
    model_file.write_bytes(len(encoded).to_bytes(8, "little") + encoded + content[8 + length :])
    with pytest.raises(InvalidInput, match="type F8_E4M3, must be F32"):
        load_model(model_file)


def test_a_damaged_file_is_refused_at_every_length(model_file):
    whole = model_file.read_bytes()
    for length in [0, 7, 8, 100, len(whole) // 2, len(whole) - 1]:
        model_file.write_bytes(whole[:length])
        with pytest.raises(InvalidInput, match="model file"):
            load_model(model_file)
