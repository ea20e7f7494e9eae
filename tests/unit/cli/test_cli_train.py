import re
import shutil
from pathlib import Path

import numpy as np
import pytest

from shardwright.cost import cost_model_for, load_model
from shardwright.cost.neuroshard import NeuroShardModel
from shardwright.hardware import MACHINE
from shardwright.measure.samples import export_parquet, read_parquet
from shardwright.measure.store import NAME, SampleStore
from shardwright.modelling.accuracy import predict
from shardwright.modelling.dataset import samples_of
from tests.unit.cli.stores import HARDWARE, write_store
from tests.unit.modelling.made_collectives import rows


def write_collectives(folder, samples=120, hardware=HARDWARE, **options):
    """Collectives of known latency and bandwidth, in a folder that may hold kernel samples too."""
    with SampleStore(folder, hardware | {"backend": "gloo"}, MACHINE) as store:
        for row in rows(samples, **options):
            store.add_collective("made", row["sample"], row["repeat"], row)


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    folder = tmp_path_factory.mktemp("store") / "samples"
    write_store(folder)
    return folder


@pytest.fixture
def store(written, tmp_path):
    """A store of the test's own."""
    return shutil.copytree(written, tmp_path / "samples")


def test_samples_become_a_model_that_records_its_origin(cli, store, tmp_path):
    target = tmp_path / "model.safetensors"
    outcome = cli("train", store, "-o", target, "--epochs", 2, "--head", "mlp", "--json")
    assert outcome.code == 0
    assert outcome.err == ""
    assert outcome.document["epochs"] == 2
    assert outcome.document["accuracy"]["repeat_error"] == pytest.approx(0.02 / 1.01)
    model = load_model(target)
    assert re.fullmatch(r"cpu/mlp-[0-9a-f]{8}", model.name)
    assert model.head == "mlp"
    assert model.metadata == outcome.document["metadata"]
    expected = {
        "device": "cpu",
        "optimizer": "sgd",
        "batch_sizes": "256, 512",
        "samples": "60",
        "repeat_error": "0.01980",
    }
    assert expected.items() <= model.metadata.items()
    assert "processor Test CPU, cores 2" in model.metadata["hardware"]
    assert float(model.metadata["mean_error"]) == pytest.approx(outcome.document["accuracy"]["mean_error"], abs=1e-5)


def test_the_seed_and_the_epochs_decide(cli, store, tmp_path):
    def trained(seed, epochs):
        target = tmp_path / "model.safetensors"
        assert cli("train", store, "-o", target, "--epochs", epochs, "--seed", seed).code == 0
        return load_model(target).weights["encoder.0.weight"].tobytes()

    assert trained(1, 1) == trained(1, 1) != trained(2, 1)
    assert trained(1, 2) != trained(1, 1)


def test_a_file_of_samples_trains_as_its_store_does(cli, store, tmp_path):
    file = tmp_path / "samples.parquet"
    export_parquet([store], file)
    metadata = [
        cli("train", *given, "-o", tmp_path / "model.safetensors", "--epochs", 3, "--json").document["metadata"]
        for given in ([store], [file], [file, store])  # a set that both hold counts once
    ]
    assert metadata[0]["samples"] == metadata[1]["samples"] == metadata[2]["samples"] == "60"
    assert float(metadata[1]["mean_error"]) == pytest.approx(float(metadata[0]["mean_error"]), rel=0.05)


def test_samples_of_two_machines_are_refused_unless_asked_for(cli, store, tmp_path):
    write_store(store, 62, HARDWARE | {"processor": "Other CPU"})
    arguments = ("train", store, "-o", tmp_path / "model.safetensors", "--epochs", 1)
    outcome = cli(*arguments)
    assert outcome.code == 2
    assert "Other CPU" in outcome.err
    assert "--allow-other-hardware" in outcome.err
    assert cli(*arguments, "--allow-other-hardware").code == 0
    assert cli(*arguments, "--hardware", "other cpu").code == 0


def test_too_few_samples(cli, tmp_path):
    write_store(tmp_path / "few", 10)
    outcome = cli("train", tmp_path / "few", "-o", tmp_path / "model.safetensors")
    assert outcome.code == 2
    assert "10 samples are too few" in outcome.err or "11 samples are too few" in outcome.err
    assert f"{tmp_path / 'few'}: " in outcome.err
    assert not (tmp_path / "model.safetensors").exists()


def test_the_three_networks_of_neuroshard(cli, store, tmp_path):
    """Kernel samples in one folder, collectives of 2 and of 4 devices in two others."""
    for world in (2, 4):
        write_collectives(tmp_path / f"world{world}", world=world)
    target = tmp_path / "model.safetensors"
    folders = (store, tmp_path / "world2", tmp_path / "world4")
    outcome = cli("train", *folders, "-o", target, "--network", "neuroshard", "--epochs", 3, "--json")
    assert outcome.code == 0
    document = outcome.document
    assert document["epochs"] == 3
    assert document["accuracy"]["sets"] == 6
    assert {label: set(errors) for label, errors in document["communication"].items()} == {
        f"{world} devices": {"all_to_all_forward", "all_to_all_backward"} for world in (2, 4)
    }
    model = load_model(target)
    assert isinstance(model, NeuroShardModel)
    assert re.fullmatch(r"cpu/neuroshard-[0-9a-f]{8}", model.name)
    assert model.metadata == document["metadata"]
    assert model.communication.devices == (2, 4)
    assert model.communication.forward_ms([8, 8], [0, 1]).shape == (2,)
    assert float(model.metadata["communication_2_devices_all_to_all_forward_mean_error"]) > 0
    shown = cli("train", *folders, "-o", target, "--network", "neuroshard", "--epochs", 1).out
    line = next(line for line in shown.splitlines() if "all_to_all_forward, 2 devices" in line)
    assert line.count("%") == 3  # mean and median of the network, and the repeats


def test_neuroshard_without_collectives_is_the_compute_network_alone(cli, store, tmp_path, task_file):
    target = tmp_path / "model.safetensors"
    outcome = cli("train", store, "-o", target, "--network", "neuroshard", "--epochs", 1, "--json")
    assert outcome.code == 0
    assert outcome.document["communication"] == {}
    assert load_model(target).communication is None
    planned = cli("plan", task_file, "--model", target, "--strategy", "greedy", "--json")
    assert planned.code == 0
    assert planned.document["cost_model"] == load_model(target).name


def test_collectives_alone_make_no_model(cli, tmp_path):
    write_collectives(tmp_path / "collectives", 12)
    outcome = cli("train", tmp_path / "collectives", "-o", tmp_path / "model.safetensors")
    assert outcome.code == 2
    assert "holds collectives but no kernel samples" in outcome.err


def test_collectives_of_another_machine_are_refused_unless_asked_for(cli, store, tmp_path):
    write_collectives(tmp_path / "other", hardware=HARDWARE | {"processor": "Other CPU"})
    arguments = ("train", store, tmp_path / "other", "-o", tmp_path / "model.safetensors", "--epochs", 1)
    outcome = cli(*arguments)
    assert outcome.code == 2
    assert "Other CPU" in outcome.err
    assert cli(*arguments, "--allow-other-hardware").code == 0


def test_a_store_named_twice_is_refused(cli, store, tmp_path):
    outcome = cli("train", store, store / ".." / store.name, "-o", tmp_path / "model.safetensors")
    assert outcome.code == 2
    assert "is named twice, so that its samples would count twice" in outcome.err


def test_a_store_is_not_written_over(cli, store):
    before = {path.name: path.read_bytes() for path in store.iterdir()}
    assert cli("train", store, "-o", store / NAME).code == 2
    assert {path.name: path.read_bytes() for path in store.iterdir()} == before


@pytest.mark.slow
@pytest.mark.parametrize(("device", "costs"), [("cpu", "*/fbgemm.parquet"), ("h100", "h100/rowwise_adagrad.parquet")])
def test_a_bundled_model_is_what_the_published_costs_make(cli, tmp_path, device, costs):
    """The Makefile's commands; if arithmetic rounds otherwise, predictions must still agree within 0.1%."""
    files = sorted((Path(__file__).parents[3] / "data" / "costs").glob(costs))
    made = tmp_path / f"{device}.safetensors"
    assert cli("train", *files, "--allow-other-hardware", "-o", made).code == 0
    bundled, again = cost_model_for(device), load_model(made)
    assert bundled.metadata.keys() == again.metadata.keys()
    assert all(
        bundled.metadata[name] == again.metadata[name] for name in ("hardware", "samples", "batch_sizes", "mean_error")
    )
    for file in files:
        samples = samples_of(read_parquet(file)[1])
        np.testing.assert_allclose(predict(bundled, samples), predict(again, samples), rtol=1e-3)
