import json
import re
from dataclasses import replace

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from shardwright.cost import load_model, save_model
from shardwright.cost.files import bundled_models, learned_elsewhere, provenance, telling_name
from shardwright.cost.model import MONOTONE
from shardwright.errors import InvalidInput
from shardwright.hardware import cpu_model


@pytest.fixture
def model_file(trained, tmp_path):
    path = tmp_path / "model.safetensors"
    save_model(trained.model, path)
    return path


def rewrite(path, tensors=None, **header):
    from safetensors import safe_open

    with safe_open(path, framework="np") as file:
        metadata = file.metadata() | header
    save_file(tensors or load_file(path), path, {k: v for k, v in metadata.items() if v is not None})


@pytest.mark.slow
def test_a_model_survives_a_file(trained, model_file):
    model = load_model(model_file)
    assert model.head == trained.model.head
    assert model.name == trained.model.name == f"cpu/{model.head}"
    assert model.metadata["hardware"] == "test"
    sums = np.random.default_rng(0).normal(size=(5, 34))
    np.testing.assert_array_equal(model.pricing.price(sums), trained.model.pricing.price(sums))


def test_a_telling_name_is_that_of_the_weights(trained, model_file):
    model = trained.model
    assert re.fullmatch(rf"cpu/{model.head}-[0-9a-f]{{8}}", telling_name(model))
    assert telling_name(load_model(model_file)) == telling_name(model)
    nudged = model.weights | {"head.1.bias": np.nextafter(model.weights["head.1.bias"], np.float32(np.inf))}
    assert telling_name(replace(model, weights=nudged)) != telling_name(model)
    assert telling_name(replace(model, metadata={"device": "h200"})).startswith(f"h200/{model.head}-")


@pytest.mark.parametrize(
    ("header", "says"),
    [
        ({"format": "1"}, "format is '1'.*train the model again"),
        ({"format": None}, "format is None"),
        ({"kind": "policy"}, "kind 'policy'"),
        ({"features": json.dumps(["rows"])}, "other features"),
        ({"head": "cubic"}, "head is 'cubic'"),
        ({"head": None}, "does not say which head"),
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
        ({"scale": np.full_like(good["scale"], np.nan)}, "scale holds NaN"),
        ({"caches": np.array([0, 1], np.float32)}, "caches must be greater than 0"),
    ]:
        rewrite(model_file, good | change)
        with pytest.raises(InvalidInput, match=says):
            load_model(model_file)
    rewrite(model_file, {k: v for k, v in good.items() if k != "scale"})
    with pytest.raises(InvalidInput, match="scale is missing"):
        load_model(model_file)


@pytest.mark.parametrize("name", MONOTONE)
def test_a_convex_model_with_a_negative_head_weight_is_refused(trained_convex, tmp_path, name):
    model_file = tmp_path / "convex.safetensors"
    save_model(trained_convex.model, model_file)
    tensors = load_file(model_file)
    tensors[name][0, 0] = -1
    rewrite(model_file, tensors)
    with pytest.raises(InvalidInput, match="must not be negative"):
        load_model(model_file)


def test_a_damaged_file_is_refused_at_every_length(model_file):
    whole = model_file.read_bytes()
    for length in [0, 1, 7, 8, 9, 100, len(whole) // 2, len(whole) - 1]:
        model_file.write_bytes(whole[:length])
        with pytest.raises(InvalidInput, match="model file"):
            load_model(model_file)


def test_ten_gigabytes_claimed_in_a_header_are_refused(model_file):
    header = {"x": {"dtype": "F32", "shape": [2_500_000_000], "data_offsets": [0, 10_000_000_000]}}
    encoded = json.dumps(header).encode()
    model_file.write_bytes(len(encoded).to_bytes(8, "little") + encoded + b"\0" * 16)
    with pytest.raises(InvalidInput, match="not a whole safetensors file"):
        load_model(model_file)
    model_file.write_bytes((10_000_000_000).to_bytes(8, "little") + b"{}")
    with pytest.raises(InvalidInput, match="not a whole safetensors file"):
        load_model(model_file)


def test_no_file_and_a_folder_are_refused(tmp_path):
    for path in (tmp_path / "none.safetensors", tmp_path):
        with pytest.raises(InvalidInput, match="there is no such cost model; name a model|is a folder"):
            load_model(path)


def test_bundled_models_load():
    for device, path in bundled_models().items():
        assert load_model(path).name.startswith(device)


@pytest.mark.parametrize(("processor", "said"), [("Other CPU (cpu family 1)", True), (None, False)])
def test_a_model_of_another_processor_is_named(processor, said):
    hardware = f"device_kind cpu, processor {processor or cpu_model()}, cores 2, backend fbgemm"
    text = learned_elsewhere({"hardware": hardware}, "cpu")
    assert (text is not None) is said
    assert not said or (processor in text and cpu_model() in text and "shardwright calibrate" in text)
    assert learned_elsewhere({"hardware": hardware}, "cuda") is None
    assert learned_elsewhere({}, "cpu") is None


def test_a_model_of_several_processors_names_them_all():
    machines = [f"device_kind cpu, processor {name}, cores 2, backend fbgemm" for name in ("One CPU", cpu_model())]
    assert learned_elsewhere({"hardware": "; ".join(machines)}, "cpu") is None
    assert "was learned on One CPU and " in learned_elsewhere({"hardware": "; ".join(machines)}, "cpu", "Third CPU")
    assert (
        provenance({"hardware": "; ".join(machines), "date": "today"}) == f"learned on One CPU and {cpu_model()}, today"
    )
