"""Which store the samples of a machine go to."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from shardwright.errors import InvalidInput
from shardwright.measure.homes import alike, home_of, homes_of, name_of
from shardwright.measure.store import SampleStore
from tests.unit.measure.rows import row

HERE = {
    "device_kind": "cpu",
    "processor": "p",
    "cores": "1",
    "backend": "b",
    "torch": "t",
    "fbgemm": "f",
    "python": "3",
}
THERE = HERE | {"processor": "Another (R) CPU @ 3 GHz"}
ELSEWHERE = HERE | {"cores": "999"}


def make(folder: Path, hardware: dict[str, str]) -> None:
    with SampleStore(folder, hardware, {}) as store:
        store.append(row(0))


def test_names_tell_hardware_apart_and_nothing_else() -> None:
    assert alike(HERE, HERE | {"python": "4.0"})
    assert name_of(HERE) == name_of(HERE | {"python": "4.0"})
    assert len({name_of(hardware) for hardware in (HERE, THERE, ELSEWHERE)}) == 3
    assert name_of(THERE).startswith(f"{HERE['device_kind']}-another-r-cpu-3-ghz-")
    assert name_of(HERE | {"processor": "../../x/\n" + "y" * 500}).count("/") == 0
    assert len(name_of(HERE | {"processor": "y" * 500})) < 60


def test_one_kind_of_hardware_has_the_folder_itself(tmp_path: Path) -> None:
    assert homes_of(tmp_path, [THERE], HERE) == [tmp_path]
    assert homes_of(tmp_path, [THERE, THERE], None) == [tmp_path, tmp_path]
    assert home_of(tmp_path, HERE) == tmp_path


def test_of_several_the_driver_has_the_folder_itself(tmp_path: Path) -> None:
    own = tmp_path / name_of(THERE)
    assert homes_of(tmp_path, [THERE, HERE], HERE) == [own, tmp_path]
    assert homes_of(tmp_path, [THERE, ELSEWHERE], HERE) == [own, tmp_path / name_of(ELSEWHERE)]
    assert homes_of(tmp_path, [THERE, ELSEWHERE], None) == [own, tmp_path / name_of(ELSEWHERE)]


def test_samples_stay_where_they_are(tmp_path: Path) -> None:
    make(tmp_path, THERE)
    assert homes_of(tmp_path, [THERE, HERE], HERE) == [tmp_path, tmp_path / name_of(HERE)]
    assert homes_of(tmp_path, [HERE], HERE) == [tmp_path / name_of(HERE)]
    assert home_of(tmp_path, HERE) == tmp_path  # which will refuse: alone, a machine makes no second store by itself
    make(tmp_path / name_of(HERE), HERE)
    assert home_of(tmp_path, HERE) == tmp_path / name_of(HERE)
    assert home_of(tmp_path, THERE) == tmp_path
    assert home_of(tmp_path, HERE, allow_other_hardware=True) == tmp_path


def test_a_machine_that_has_its_own_store_never_gets_the_folder_itself(tmp_path: Path) -> None:
    own = tmp_path / name_of(THERE)
    make(own, THERE)
    assert homes_of(tmp_path, [THERE], HERE) == [own]
    assert homes_of(tmp_path, [THERE], THERE) == [own]
    assert home_of(tmp_path, THERE) == own
    assert home_of(tmp_path, HERE) == tmp_path


def test_an_identity_that_is_none_is_said(tmp_path: Path) -> None:
    (tmp_path / "identity.json").write_text(json.dumps({"format": 1}))
    with pytest.raises(InvalidInput, match="must hold format, hardware and request"):
        homes_of(tmp_path, [HERE], HERE)
