from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from shardwright.errors import MeasurementFailed
from shardwright.measure.checks import __main__ as module
from shardwright.measure.checks import environment as environment_module
from shardwright.measure.checks.bandwidth import CopyTime, ceiling, copy_times
from shardwright.measure.checks.correctness import Check
from shardwright.measure.checks.environment import environment, problems

FACTS = {"backend": "fbgemm", "fbgemm": "1.6.0", "torch": "2.11.0+cu130"}


@pytest.fixture
def checked(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """What is asked of the kernels, in place of running them; each is right but those with an odd seed."""
    asked: list[dict[str, Any]] = []

    def check_kernels(device: str, backend: str, *, seed: int) -> list[Check]:

        asked.append({"device": device, "backend": backend, "seed": seed})
        return [Check("sgd, fp32", 1e-3 if seed % 2 else 1e-7, 1e-7, 0.0, True, 1e-4, 1e-4)]

    monkeypatch.setattr("shardwright.measure.checks.correctness.check_kernels", check_kernels)
    monkeypatch.setattr("shardwright.measure.checks.bandwidth.copy_times", lambda device: [CopyTime(10**6, 0.5)])
    return asked


def test_what_this_machine_has_fits_together() -> None:
    facts = environment("cpu", "embedding_bag")
    assert facts["device_kind"] == "cpu"
    assert facts["torch"] == torch.__version__
    assert problems(facts) == []


def test_a_gpu_that_is_not_there_is_said() -> None:
    if torch.cuda.is_available():
        pytest.skip("this machine has a CUDA device")
    with pytest.raises(MeasurementFailed, match="'cuda' is not available here"):
        environment("cuda", "fbgemm")


@pytest.mark.parametrize(
    ("torch_version", "fits"), [("2.11.0+cu130", True), ("2.13.0", False), ("2.1.0", False), ("2.11.1", True)]
)
def test_versions_must_match(monkeypatch: pytest.MonkeyPatch, torch_version: str, fits: bool) -> None:
    monkeypatch.setattr(environment_module, "load_backend", lambda name: None)
    found = problems({**FACTS, "torch": torch_version})
    assert (found == []) == fits
    assert fits or "FBGEMM 1.6.0 is built for torch 2.11" in found[0]


def test_a_library_that_cannot_be_loaded_is_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    def load(name: str) -> None:
        raise OSError("libcudart.so.13: cannot open shared object file")

    monkeypatch.setattr(environment_module, "load_backend", load)
    assert "libcudart.so.13" in problems(FACTS)[0]


def test_the_driver_is_unknown_where_nobody_says_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert environment_module._driver() == "unknown"
    (tmp_path / "nvidia-smi").write_text("#!/bin/sh\necho 580.159.04\n")
    (tmp_path / "nvidia-smi").chmod(0o755)
    assert environment_module._driver() == "580.159.04"


def test_copies_count_bytes_read_and_written() -> None:
    assert CopyTime(10**9, 500.0).bytes_per_s == 4e9
    assert ceiling([CopyTime(10**6, 1.0), CopyTime(10**9, 500.0)]) == 4e9
    times = copy_times("cpu", (2**16, 2**60))  # the second does not fit
    assert [one.size_bytes for one in times] == [2**16]
    assert times[0].ms > 0


def test_the_outcome_is_written_and_not_found_out_twice(
    checked: list[dict[str, Any]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["-o", str(tmp_path), "--backend", "embedding_bag", "--seed", "4"]
    assert module.main(arguments) == 0
    outcome = json.loads((tmp_path / "checks.json").read_text())
    assert outcome["passed"]
    assert outcome["ceiling_bytes_per_s"] == 4e9
    assert outcome["environment"]["torch"] == torch.__version__
    assert module.main(arguments) == 0
    assert checked == [{"device": "cpu", "backend": "embedding_bag", "seed": 4}]
    assert "checked before" in capsys.readouterr().out


def test_wrong_kernels_fail_the_check_and_are_checked_again(
    checked: list[dict[str, Any]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["-o", str(tmp_path), "--backend", "embedding_bag", "--seed"]
    assert module.main([*arguments, "3"]) == 1
    said = capsys.readouterr().out
    assert "WRONG sgd, fp32" in said
    assert "problem: kernels compute something else than the reference: sgd, fp32" in said
    assert module.main([*arguments, "4"]) == 0
    assert len(checked) == 2
