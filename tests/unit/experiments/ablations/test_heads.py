from dataclasses import replace

import pytest
from experiments.ablations.heads import HeadBench

from shardwright.workload import random_task
from tests.unit.modelling.conftest import make_samples

pytest.importorskip("torch", reason="models are trained with torch")


@pytest.fixture(scope="module")
def samples():
    return make_samples(120, noise=0.02)


@pytest.fixture
def bench(tmp_path, monkeypatch, samples):
    """A bench whose samples are there."""
    monkeypatch.setattr(HeadBench, "_samples", lambda self: samples)
    return HeadBench(tmp_path, 120, 2.0)


@pytest.fixture
def task():
    drawn = random_task(0, tables=5, devices=2, max_dim=16, device="cpu", batch_size=64, scale=1e-3)
    return replace(drawn, batch_size=64)


@pytest.mark.slow
def test_training_keeps_its_model(bench, tmp_path):
    row = bench.train("convex", 1)
    assert (row["head"], row["seed"], row["sets"]) == ("convex", 1, 12)
    assert 0 < row["median_error"] <= row["mean_error"] * 2
    (path,) = tmp_path.glob("*.safetensors")
    written = path.stat().st_mtime_ns
    assert bench._model("convex", 1).head == "convex"
    assert path.stat().st_mtime_ns == written, "a model that is there is not trained again"


@pytest.mark.slow
def test_more_samples_make_another_model(bench, monkeypatch, samples):
    bench.train("mlp", 0)
    fewer = samples.select(samples.sample < 100)
    monkeypatch.setattr(HeadBench, "_samples", lambda self: fewer)
    assert not bench._model_file("mlp", 0, fewer).exists()
    assert bench._model("mlp", 0).head == "mlp"
    assert len(list(bench.folder.glob("mlp-0-*"))) == 2


@pytest.mark.slow
def test_plans_of_both_heads_are_measured(bench, task):
    pytest.importorskip("fbgemm_gpu", reason="real kernels need FBGEMM")
    rows = bench.measure(task, [0], rounds=1)
    assert [(row["head"], row["strategy"]) for row in rows] == [
        (head, name) for head in ("convex", "mlp", "bundled") for name in ("greedy", "neuroshard", "certified")
    ]
    assert all(row["measured_ms"] > 0 and row["predicted_ms"] > 0 for row in rows)
    bounds = {(row["head"], row["strategy"]): row["bound_ms"] for row in rows}
    assert bounds["convex", "certified"] > 0
    assert bounds["mlp", "certified"] is None, "no convex head, no proof"


@pytest.mark.slow
def test_samples_are_collected_for_the_batches_of_the_tasks(tmp_path):
    pytest.importorskip("fbgemm_gpu", reason="real kernels need FBGEMM")
    from shardwright.measure.samples import read_samples

    bench = HeadBench(tmp_path, 1, 1.0)
    bench._collect(1, None)
    rows = read_samples(tmp_path / "samples-1").to_pylist()
    assert len({row["sample"] for row in rows}) == 1
    assert {row["batch_size"] for row in rows} == {1024}
