from pathlib import Path

import pytest

from shardwright.measure.collect import CollectSummary
from shardwright.workload.pools import table_pool


@pytest.fixture
def fake_collect(monkeypatch):
    """Records how it is called, and says it measured 21 times in 10 s."""
    calls = {}

    def collect(folder, **options):
        calls.update(options, folder=folder)
        options["progress"](21, 21)
        return CollectSummary(Path(folder), 20, 21, 10.0, 0.25, float("nan"), float("nan"))

    monkeypatch.setattr("shardwright.measure.collect.collect", collect)
    return calls


def test_the_options_reach_the_collector(cli, tmp_path, fake_collect):
    options = [
        "-n",
        20,
        "--batch-size",
        64,
        "--batch-size",
        128,
        "--optimizer",
        "sgd",
        "--seed",
        5,
        "--memory",
        "64 MB",
    ]
    options += ["--backend", "embedding_bag", "--pool", "dlrm-2022", "--sequence-share", 0.5, "--allow-other-hardware"]
    outcome = cli("collect", "-o", tmp_path / "samples", *options)
    assert outcome.code == 0
    assert "20 samples in" in outcome.out
    assert "2.1 a second" in outcome.out
    assert f"shardwright train {tmp_path / 'samples'}" in outcome.out
    del fake_collect["progress"]
    assert fake_collect == {
        "folder": tmp_path / "samples",
        "samples": 20,
        "batch_sizes": [64, 128],
        "optimizer": "sgd",
        "seed": 5,
        "arena_bytes": 64_000_000,
        "backend": "embedding_bag",
        "pool": table_pool("dlrm-2022"),
        "sequence_share": 0.5,
        "device": "cpu",
        "allow_other_hardware": True,
    }


def test_noise_that_is_not_known_is_null_in_json(cli, tmp_path, fake_collect):
    document = cli("collect", "-o", tmp_path / "samples", "--json").document
    assert document["samples"] == 20
    assert document["repeat_mean"] is None
    assert document["folder"] == str(tmp_path / "samples")


def test_ctrl_c_says_how_to_go_on(cli, tmp_path, monkeypatch):
    def collect(folder, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr("shardwright.measure.collect.collect", collect)
    outcome = cli("collect", "-o", tmp_path / "samples", "--json")
    assert outcome.code == 130
    assert outcome.document["error"]["type"] == "Interrupted"
    assert "run the same command again to go on" in outcome.err
    assert outcome.err.count("\n") == 1


def test_ctrl_c_elsewhere_is_one_line(cli, monkeypatch):
    def load(path):
        raise KeyboardInterrupt

    monkeypatch.setattr("shardwright.task.Task.load", load)
    outcome = cli("plan", "task.yaml")
    assert outcome.code == 130
    assert outcome.err == "error: interrupted\n"


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ([], "Missing option '--output'"),
        (["-o", "samples", "--samples", "0"], "samples is 0"),
        (["-o", "samples", "--device", "tpu"], "device is 'tpu'"),
        (["-o", "samples", "--optimizer", "lion"], "optimizer is 'lion'"),
        (["-o", "samples", "--pool", "mine"], "unknown pool 'mine'"),
        (["-o", "samples", "--memory", "4 XB"], "--memory: unknown unit 'XB'"),
        (["-o", "samples", "--batch-size", "0"], "batch_sizes"),
        (["-o", "/dev/null/samples"], "/dev/null is no folder"),
    ],
)
def test_bad_options(cli, tmp_path, monkeypatch, options, says):
    monkeypatch.chdir(tmp_path)
    outcome = cli("collect", *options)
    assert outcome.code == 2
    assert says in outcome.err
    assert not (tmp_path / "samples").exists()
