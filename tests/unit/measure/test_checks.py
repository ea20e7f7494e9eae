from __future__ import annotations

import json
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

from shardwright.errors import MeasurementFailed
from shardwright.measure import checks as module
from shardwright.measure.checks import CopyTime, ceiling, copy_times, environment, of_memory, problems, require_checked
from shardwright.measure.kernel_checks import Check

FACTS = {"backend": "fbgemm", "fbgemm": "1.6.0", "torch": "2.11.0+cu130"}
COPIES = [CopyTime(10**6, 0.01), CopyTime(2 * 10**6, 1.0)]


@pytest.fixture
def checked(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """Records the checks of kernels instead of running them; checks with an odd seed fail."""
    asked: list[dict[str, Any]] = []

    def check_kernels(device: str, backend: str, *, seed: int) -> list[Check]:
        asked.append({"device": device, "backend": backend, "seed": seed})
        return [Check("sgd, fp32", 1e-3 if seed % 2 else 1e-7, 1e-7, 0.0, True, 1e-4, 1e-4)]

    monkeypatch.setattr("shardwright.measure.kernel_checks.check_kernels", check_kernels)
    monkeypatch.setattr("shardwright.measure.checks.copy_times", lambda device: COPIES)
    return asked


def test_this_machine_has_no_problems() -> None:
    facts = environment("cpu", "embedding_bag")
    assert facts["device_kind"] == "cpu"
    assert facts["torch"] == version("torch")  # which may lack the build that torch.__version__ names
    assert problems(facts) == []


@pytest.mark.parametrize(
    ("torch_version", "fits"), [("2.11.0+cu130", True), ("2.13.0", False), ("2.1.0", False), ("2.11.1", True)]
)
def test_versions_must_match(monkeypatch: pytest.MonkeyPatch, torch_version: str, fits: bool) -> None:
    monkeypatch.setattr(module, "load_backend", lambda name: None)
    complaints = problems({**FACTS, "torch": torch_version})
    assert (complaints == []) == fits
    assert fits or "FBGEMM 1.6.0 is built for torch 2.11" in complaints[0]


def test_a_library_that_cannot_be_loaded_is_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    def load(name: str) -> None:
        raise OSError("libcudart.so.13: cannot open shared object file")

    monkeypatch.setattr(module, "load_backend", load)
    assert "libcudart.so.13" in problems(FACTS)[0]


def test_the_driver_is_unknown_without_a_source(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert module._driver() == "unknown"
    (tmp_path / "nvidia-smi").write_text("#!/bin/sh\necho 580.159.04\n")
    (tmp_path / "nvidia-smi").chmod(0o755)
    assert module._driver() == "580.159.04"


def test_copies_count_bytes_read_and_written() -> None:
    assert CopyTime(10**9, 500.0).bytes_per_s == 4e9
    times = copy_times("cpu", (2**16, 2**60))  # the second does not fit
    assert [copy.size_bytes for copy in times] == [2**16]
    assert times[0].ms > 0


def test_copies_of_a_cache_are_no_ceiling() -> None:
    cached, small, large = CopyTime(2**24, 1e-3), CopyTime(2**30, 1.0), CopyTime(2**32, 5.0)
    assert ceiling([cached, small, large], "cuda") == small.bytes_per_s
    assert of_memory([cached, small, large], "cuda") == [small, large]
    assert ceiling([cached, CopyTime(2**26, 1.0)], "cpu") == CopyTime(2**26, 1.0).bytes_per_s  # no larger one fits
    with pytest.raises(MeasurementFailed, match="not even a copy of 4194304 bytes fits"):
        ceiling([], "cpu")


def test_the_outcome_is_written_and_not_found_out_twice(
    checked: list[dict[str, Any]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["-o", str(tmp_path), "--backend", "embedding_bag", "--seed", "4"]
    assert module.main(arguments) == 0
    outcome = json.loads((tmp_path / "checks.json").read_text())
    assert outcome["passed"]
    assert outcome["ceiling_bytes_per_s"] == 4e9
    assert [copy["of_memory"] for copy in outcome["copies"]] == [False, True]
    assert outcome["environment"]["torch"] == version("torch")
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
    assert "problem: results differ from the reference: sgd, fp32" in said
    assert module.main([*arguments, "4"]) == 0
    assert len(checked) == 2


OWN = "shardwright.measure.embedding_bag:EmbeddingBagBackend"


def test_a_backend_is_checked_again_when_its_source_has_changed(
    checked: list[dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for digest, times in (("one", 1), ("one", 1), ("two", 2)):
        monkeypatch.setattr(module, "source_digest", lambda name, digest=digest: digest)
        assert module.main(["-o", str(tmp_path), "--backend", OWN, "--seed", "4"]) == 0
        assert len(checked) == times


def test_a_backend_that_is_none_is_bad_input(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert module.main(["-o", str(tmp_path / "new"), "--backend", "nowhere_to_be_found:Mine"]) == 2
    assert "there is no module 'nowhere_to_be_found'" in capsys.readouterr().err
    assert not (tmp_path / "new").exists()


NAN = float("nan")
RIGHT = Check("right", 1e-7, 1e-7, 0.0, True, 1e-4, 1e-4)
REFUSED = Check("refused", NAN, NAN, NAN, False, 1e-4, 1e-4, refused="no fp16 here")
FAULTY = Check("faulty", NAN, NAN, NAN, False, 1e-4, 1e-4, fault="IndexError: row 7 of 5")


@pytest.mark.usefixtures("checked")
@pytest.mark.parametrize(
    ("checks", "code", "says"),
    [
        ([RIGHT, REFUSED, REFUSED], 0, ["2 calls are refused: no fp16 here", "ok    right"]),
        ([REFUSED, REFUSED], 1, ["refuses every call", "no fp16 here"]),
        ([RIGHT, FAULTY], 1, ["WRONG faulty", "problem: ", "faulty (IndexError: row 7 of 5)"]),
    ],
)
def test_calls_may_be_refused_but_not_all_and_none_may_be_faulty(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    checks: list[Check],
    code: int,
    says: list[str],
) -> None:
    monkeypatch.setattr("shardwright.measure.kernel_checks.check_kernels", lambda *given, **named: checks)
    assert module.main(["-o", str(tmp_path), "--backend", OWN]) == code
    said = capsys.readouterr().out
    assert all(part in said for part in says)
    kernels = json.loads((tmp_path / "checks.json").read_text(), parse_constant=pytest.fail)["kernels"]
    assert [check["forward"] for check in kernels] == [1e-7 if check is RIGHT else None for check in checks]
    if code:
        with pytest.raises(MeasurementFailed, match=rf"{says[-1].split(' (')[0]}.*checks\.json"):
            require_checked(tmp_path, "cpu", OWN)
