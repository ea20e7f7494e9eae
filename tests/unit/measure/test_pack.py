from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from shardwright.errors import InvalidInput
from shardwright.measure.failures import Failures, read_failures
from shardwright.measure.pack import main, pack
from shardwright.measure.store import SampleStore, read_identity, read_samples
from tests.unit.measure.rows import row

HARDWARE = {"device_kind": "cuda", "processor": "p", "cores": "1", "backend": "b", "torch": "t", "fbgemm": "f"}


def store(folder: Path, rows: Sequence[dict[str, Any]], seed: int = 0, **hardware: str) -> Path:
    with SampleStore(folder, HARDWARE | hardware, {"seed": seed}) as opened:
        for one in rows:
            opened.append(one)
    return folder


def test_samples_of_several_stores_are_numbered_anew(tmp_path: Path) -> None:
    visits = [row(4, device_kind="cuda", sentinel=2.0), row(4, device_kind="cuda", forward_ms=9.0, measured_at=1)]
    first = store(tmp_path / "a", [row(0), row(3), row(3, 1), *visits])
    second = store(tmp_path / "b", [row(0, optimizer="rowwise_adagrad"), row(2)], seed=1)
    assert pack([first, second], tmp_path / "packed") == 6
    packed, whole = read_samples(tmp_path / "packed"), read_samples(first)
    assert packed["sample"].to_pylist() == [0, 3, 3, 4, 5, 7]
    assert packed.slice(0, 4).drop_columns("sample").equals(whole.drop_columns("sample"))
    assert packed["forward_ms"].to_pylist()[3] == 9.0  # the quietest visit
    identity = read_identity(tmp_path / "packed")
    assert identity["hardware"] == HARDWARE
    assert identity["request"] == {"packed": [{"seed": 0}, {"seed": 1}]}
    assert len(list((tmp_path / "packed").glob("part-*.parquet"))) == 1


def test_one_optimizer_can_be_picked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    mixed = store(tmp_path / "a", [row(0), row(1, optimizer="rowwise_adagrad"), row(2)])
    assert main([str(mixed), "-o", str(tmp_path / "sgd"), "--optimizer", "sgd"]) == 0
    assert "2 measurements" in capsys.readouterr().out
    assert read_samples(tmp_path / "sgd")["sample"].to_pylist() == [0, 2]
    assert main([str(mixed), "-o", str(tmp_path / "none"), "--optimizer", "adam"]) == 2
    assert "no sample was measured with optimizer 'adam'" in capsys.readouterr().err
    assert not (tmp_path / "none").exists()


def test_the_checks_come_along(tmp_path: Path) -> None:
    source = store(tmp_path / "a", [row(0)])
    (source / "checks.json").write_text('{"passed": true}')
    pack([source], tmp_path / "packed")
    assert (tmp_path / "packed" / "checks.json").read_text() == '{"passed": true}'


def test_what_cannot_be_packed_is_refused(tmp_path: Path) -> None:
    first = store(tmp_path / "a", [row(0)])
    other = store(tmp_path / "b", [row(0)], seed=1, processor="q")
    with pytest.raises(InvalidInput, match="other hardware"):
        pack([first, other], tmp_path / "packed")
    with pytest.raises(InvalidInput, match="collected, not packed"):
        pack([first], other, replace=True)
    assert read_identity(other)["request"] == {"seed": 1}
    pack([first], tmp_path / "packed")
    with pytest.raises(InvalidInput, match="holds a sample store already"):
        pack([first], tmp_path / "packed")
    with pytest.raises(InvalidInput, match="is no sample store"):
        pack([tmp_path / "nothing"], tmp_path / "new")


def test_stores_of_one_seed_are_refused(tmp_path: Path) -> None:
    # Numbered as different samples, the same sets would be in training and in test.
    first, grown = (store(tmp_path / name, [row(0), row(1)]) for name in ("a", "b"))
    other = store(tmp_path / "c", [row(0)], seed=1)
    with pytest.raises(InvalidInput, match=r"b: collected with seed 0, as is .*a; .*another --seed"):
        pack([first, grown], tmp_path / "packed")
    pack([first, other], tmp_path / "packed")
    with pytest.raises(InvalidInput, match=r"seed 0, as is .*packed"):  # a packed store knows what it is made of
        pack([tmp_path / "packed", grown], tmp_path / "again")
    assert not (tmp_path / "again").exists()


def test_failures_come_along_under_their_new_numbers(tmp_path: Path) -> None:
    first, second = store(tmp_path / "a", [row(0), row(1)]), store(tmp_path / "b", [row(1)], seed=1)
    for folder, sample in ((first, 4), (second, 0)):
        Failures(folder).add((sample, 0), RuntimeError(f"sample {sample} of {folder.name}"))
    pack([first, second], tmp_path / "packed")
    assert read_failures(tmp_path / "packed") == {(4, 0): "sample 4 of a", (5, 0): "sample 0 of b"}
    assert read_samples(tmp_path / "packed")["sample"].to_pylist() == [0, 1, 6]


def test_a_packed_store_is_replaced_on_demand(tmp_path: Path) -> None:
    packed, request = tmp_path / "packed", {"seed": 0}
    with SampleStore(tmp_path / "a", HARDWARE, request) as opened:
        opened.append(row(0))
        assert main([str(tmp_path / "a"), "-o", str(packed), "--replace"]) == 0  # while it is collected
        opened.append(row(1))
        assert main([str(tmp_path / "a"), "-o", str(packed), "--replace"]) == 0
    assert read_samples(packed)["sample"].to_pylist() == [0, 1]
    Failures(tmp_path / "a").add((2, 0), RuntimeError("no"))
    (tmp_path / "a" / "checks.json").write_text(json.dumps({"passed": True}))
    pack([tmp_path / "a"], packed, replace=True)
    names = sorted(path.name for path in packed.iterdir())
    assert names == ["checks.json", "failures.jsonl", "identity.json", "part-00000.parquet"]
