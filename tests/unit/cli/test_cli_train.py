import numpy as np
import pytest

from shardwright.cost import load_model
from shardwright.measure.store import SampleStore
from shardwright.measure.wire import describe_work
from shardwright.sharding import Shard, shard_work
from shardwright.testing.model import SimpleCostModel
from shardwright.testing.tasks import task_of

HARDWARE = {
    "device_kind": "cpu",
    "processor": "Test CPU",
    "cores": "2",
    "backend": "fbgemm",
    "torch": "2",
    "fbgemm": "1",
}


def write_store(folder, samples=60, hardware=HARDWARE):
    """A store of samples whose times are those of the simple cost model; every tenth is there twice."""
    rng = np.random.default_rng(0)
    task = task_of(30, 1)
    model = SimpleCostModel()
    with SampleStore(folder, hardware, {"seed": 0}, allow_other_hardware=True) as store:
        for sample in range(samples):
            works = [shard_work(task, Shard.whole(task.tables[i], 0)) for i in rng.integers(0, 30, rng.integers(1, 9))]
            forward, backward = model.pricing.price(model.encode(works).sum(axis=0))
            row = {
                "sample": sample,
                "batch_size": 256 * (1 + sample % 2),
                "optimizer": "sgd",
                "device_kind": "cpu",
                "runs": 8,
            }
            row |= {"sentinel": 1.0, "measured_at": 0, "shards": [describe_work(work) for work in works]}
            for repeat in range(1 + (sample % 10 == 0)):
                slower = 1 + 0.02 * repeat
                store.append(row | {"repeat": repeat, "forward_ms": forward * slower, "backward_ms": backward * slower})


@pytest.fixture
def store(tmp_path):
    write_store(tmp_path / "samples")
    return tmp_path / "samples"


def test_samples_become_a_model_that_says_where_it_comes_from(cli, store, tmp_path):
    target = tmp_path / "model.safetensors"
    outcome = cli("train", store, "-o", target, "--epochs", 2, "--head", "mlp", "--json")
    assert outcome.code == 0
    assert outcome.err == ""
    assert outcome.document["epochs"] == 2
    assert outcome.document["accuracy"]["repeat_error"] == pytest.approx(0.02 / 1.01)
    model = load_model(target)
    assert (model.name, model.head) == ("cpu/mlp", "mlp")
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


def test_the_errors_stand_beside_the_repeat_noise(cli, store, tmp_path):
    outcome = cli("train", store, "-o", tmp_path / "model.safetensors", "--epochs", 1)
    assert outcome.code == 0
    for text in ("forward + backward, mean", "rank correlation", "1-3 tables", "4-7 tables"):
        assert text in outcome.out
    assert next(line for line in outcome.out.splitlines() if "repeated" in line).split()[-1] == "2.0%"


def test_the_seed_and_the_epochs_decide(cli, store, tmp_path):
    def trained(seed, epochs):
        target = tmp_path / "model.safetensors"
        assert cli("train", store, "-o", target, "--epochs", epochs, "--seed", seed).code == 0
        return load_model(target).weights["encoder.0.weight"].tobytes()

    assert trained(1, 1) == trained(1, 1) != trained(2, 1)
    assert trained(1, 2) != trained(1, 1)


def test_a_damaged_part_is_skipped_with_a_warning(cli, store, tmp_path):
    write_store(store, 61)  # the one more goes into a second part
    (store / "part-00000.parquet").rename(store / "part-00002.parquet")
    (store / "part-00000.parquet").write_bytes(b"PAR1 torn")
    outcome = cli("train", store, "-o", tmp_path / "model.safetensors", "--epochs", 1)
    assert outcome.code == 0
    assert outcome.err.startswith(f"warning: {store / 'part-00000.parquet'}: skipped")
    assert outcome.err.count("\n") == 1


def test_samples_of_two_machines_are_refused_unless_asked_for(cli, store, tmp_path):
    write_store(store, 62, HARDWARE | {"processor": "Other CPU"})
    arguments = ("train", store, "-o", tmp_path / "model.safetensors", "--epochs", 1)
    outcome = cli(*arguments)
    assert outcome.code == 2
    assert "Other CPU" in outcome.err
    assert "--allow-other-hardware" in outcome.err
    assert cli(*arguments, "--allow-other-hardware").code == 0


def test_too_few_samples(cli, tmp_path):
    write_store(tmp_path / "few", 10)
    outcome = cli("train", tmp_path / "few", "-o", tmp_path / "model.safetensors")
    assert outcome.code == 2
    assert "10 samples are too few" in outcome.err or "11 samples are too few" in outcome.err
    assert not (tmp_path / "model.safetensors").exists()


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["-o", "model.safetensors"], "is no sample store"),
        (["-o", "model.safetensors", "--head", "round"], "Invalid value for '--head'"),
        (["-o", "model.safetensors", "--epochs", "0"], "Invalid value for '--epochs'"),
        (["-o", "no/folder/model.safetensors"], "its folder does not exist"),
        ([], "Missing option '--output'"),
    ],
)
def test_bad_options(cli, tmp_path, monkeypatch, options, says):
    monkeypatch.chdir(tmp_path)
    outcome = cli("train", "samples", *options)
    assert outcome.code == 2
    assert says in outcome.err
