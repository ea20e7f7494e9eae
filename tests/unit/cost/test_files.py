import re
from dataclasses import replace

import numpy as np
import pytest

from shardwright.cost import load_model, save_model
from shardwright.cost.files import bundled_models, learned_elsewhere, provenance, telling_name
from shardwright.hardware import cpu_model


@pytest.fixture
def model_file(trained, tmp_path):
    path = tmp_path / "model.safetensors"
    save_model(trained.model, path)
    return path


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
