import pytest

from shardwright.cli.devices import device_type, measured_device
from shardwright.cli.model_notes import unlike
from shardwright.testing.tasks import task_of


@pytest.mark.parametrize(
    ("processor", "device"),
    [
        ("NVIDIA GeForce RTX 2080 Ti", "rtx2080ti"),
        ("NVIDIA A100-SXM4-40GB", "a100"),
        ("NVIDIA H100 80GB HBM3", "h100"),
        ("NVIDIA H200", "h200"),
        ("NVIDIA L4", "nvidial4"),
    ],
)
def test_gpus_have_the_names_of_the_presets(processor, device):
    assert device_type({"device_kind": "cuda", "processor": processor}) == device


def test_every_cpu_is_a_cpu():
    assert device_type({"device_kind": "cpu", "processor": "NVIDIA H200"}) == "cpu"


def test_the_device_that_is_measured(monkeypatch):
    monkeypatch.setattr("shardwright.measure.hardware.gpu_model", lambda: "NVIDIA H200")
    assert measured_device("cpu") == "cpu"
    assert measured_device("cuda") == "h200"


@pytest.mark.parametrize(
    ("metadata", "says"),
    [
        ({}, []),
        ({"device": "cpu", "optimizer": "sgd, rowwise_adagrad", "batch_sizes": "128, 200"}, []),
        ({"batch_sizes": "512"}, []),
        ({"batch_sizes": "513"}, ["batch sizes 513, the task has 256"]),
        ({"batch_sizes": "1, 127"}, ["batch sizes 1, 127, the task has 256"]),
        ({"device": "h200"}, ["trained on h200, the task is for cpu"]),
        ({"optimizer": "adam"}, ["trained with adam, the task uses rowwise_adagrad"]),
    ],
)
def test_in_what_a_task_is_unlike_the_samples_of_a_model(metadata, says):
    found = list(unlike(metadata, task_of(2, 2)))
    assert len(found) == len(says)
    assert all(text in note for text, note in zip(says, found, strict=True))
