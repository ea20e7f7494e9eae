from pathlib import Path

import pytest

from shardwright.measure.stock import CollectSummary, StoreSummary
from shardwright.workload.generators import table_pool


@pytest.fixture
def fake_collect(monkeypatch):
    """Records its calls, and reports 21 measurements in 10 s."""
    calls = {}

    def collect(folder, **options):
        calls.update(options, folder=folder)
        options["progress"](21, 21)
        return CollectSummary(Path(folder), 20, 21, 10.0, float("nan"), float("nan"), 0.25)

    monkeypatch.setattr("shardwright.measure.collect.collect", collect)
    return calls


def test_the_options_reach_the_collector(cli, tmp_path, fake_collect):
    options = [
        "-n", "20", "--batch-size", "64", "--batch-size", "128", "--optimizer", "sgd", "--seed", "5", "--space",
        "wide", "--seconds", "60",
    ]  # fmt: skip
    options += ["--backend", "embedding_bag", "--pool", "dlrm-2022", "--sequence-share", "0.5"]
    outcome = cli("collect", "-o", tmp_path / "samples", *options, "--memory", "64 MB")
    assert outcome.code == 0
    assert "20 samples in" in outcome.out
    assert "2.1 a second" in outcome.out
    assert f"shardwright train {tmp_path / 'samples'}" in outcome.out
    del fake_collect["progress"]
    assert fake_collect == {
        "folder": tmp_path / "samples",
        "samples": 20,
        "space": "wide",
        "seconds": 60.0,
        "batch_sizes": [64, 128],
        "optimizer": "sgd",
        "seed": 5,
        "arena_bytes": 64_000_000,
        "backend": "embedding_bag",
        "pool": table_pool("dlrm-2022"),
        "sequence_share": 0.5,
        "device": "cpu",
    }


@pytest.fixture
def checks(monkeypatch):
    """The checks of the machine that were asked for, and what they find wrong."""
    asked, wrong = [], []

    def check_machine(folder, device, backend, *, say):
        asked.append((folder, device, backend))
        say("copy of 16 MiB: 4,000 GB/s")
        return wrong

    monkeypatch.setattr("shardwright.measure.checks.check_machine", check_machine)
    return asked, wrong


@pytest.mark.parametrize(
    ("options", "device", "backend"),
    [
        (("--device", "cuda"), "cuda", None),
        (("--backend", "my_kernels:Mine"), "cpu", "my_kernels:Mine"),  # one's own is checked on every device
        (("--device", "cuda", "--backend", "my_kernels:Mine"), "cuda", "my_kernels:Mine"),
    ],
)
def test_a_machine_is_checked_before_anything_is_collected(
    cli, tmp_path, fake_collect, checks, options, device, backend
):
    asked, wrong = checks
    outcome = cli("collect", "-o", tmp_path / "samples", *options, "--json")
    assert outcome.document["samples"] == 20
    assert "4,000 GB/s" in outcome.err
    assert asked == [(tmp_path / "samples", device, backend)]
    fake_collect.clear()
    wrong.append("FBGEMM 1.6.0 is built for torch 2.11")
    outcome = cli("collect", "-o", tmp_path / "samples", *options)
    assert outcome.code == 1
    assert "is built for torch 2.11 (all of it is in" in outcome.err
    assert not fake_collect


@pytest.mark.parametrize("options", [("--device", "cpu"), ("--backend", "embedding_bag")])
def test_known_kernels_of_a_cpu_need_no_check(cli, tmp_path, fake_collect, checks, options):
    assert cli("collect", "-o", tmp_path / "samples", *options).code == 0
    assert checks == ([], [])


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
    def load(path, **_):
        raise KeyboardInterrupt

    monkeypatch.setattr("shardwright.task.files.load_task", load)
    outcome = cli("plan", "task.yaml")
    assert outcome.code == 130
    assert outcome.err == "error: interrupted\n"


@pytest.fixture
def fake_collectives(monkeypatch):
    """Records its calls, and reports 21 measured collectives in 10 s."""
    calls = {}

    def collect(collection, **options):
        calls.update(options, collection=collection)
        options["progress"](21, 21)
        return StoreSummary(collection.folder, 20, 21, 10.0, 0.25, float("nan"))

    monkeypatch.setattr("shardwright.measure.collectives.collect.collect_collectives", collect)
    return calls


def test_the_options_reach_the_collector_of_collectives(cli, tmp_path, fake_collectives):
    options = ["-n", 20, "--world", 4, "--seed", 5, "--batch-size", 64, "--timeout", 7, "--runs", 3]
    options += ["--pool", "dlrm-2022"]
    outcome = cli("collect", "--collectives", "-o", tmp_path / "samples", *options)
    assert outcome.code == 0
    assert "20 all-to-alls in" in outcome.out
    assert "; 21 measurements in 10 s" in outcome.out
    collection = fake_collectives["collection"]
    assert (collection.folder, collection.samples) == (tmp_path / "samples", 20)
    assert (collection.device, collection.policy.runs) == ("cpu", 3)
    space = collection.space
    assert (space.world, space.seed, space.batch_sizes) == (4, 5, (64,))
    assert space.pool == table_pool("dlrm-2022")
    assert fake_collectives["timeout_s"] == 7


def test_collectives_have_defaults_of_their_own(cli, tmp_path, fake_collectives):
    document = cli("collect", "--collectives", "-o", tmp_path / "samples", "--json").document
    assert (document["samples"], document["repeat_mean"]) == (20, None)
    collection = fake_collectives["collection"]
    assert (collection.samples, collection.space.world, collection.policy.runs) == (2000, 2, 10)
    assert fake_collectives["timeout_s"] == 60
