from __future__ import annotations

from pathlib import Path

import pytest

from shardwright.errors import InvalidInput
from shardwright.measure.collectives.collect import new_collection
from shardwright.measure.collectives.torchrun import Attempts, PlaceInGroup, collect_in_group, place_of_this_process

VARIABLES = {
    "RANK": "5",
    "WORLD_SIZE": "8",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "4",
    "MASTER_ADDR": "host0",
    "MASTER_PORT": "29500",
}


def test_the_place_is_what_torchrun_says() -> None:
    place = place_of_this_process(VARIABLES)
    assert place == PlaceInGroup(5, 8, 1, 4)
    assert place.hosts == 2


@pytest.mark.parametrize("missing", VARIABLES)
def test_without_all_variables_there_is_no_group(missing: str) -> None:
    assert place_of_this_process({name: value for name, value in VARIABLES.items() if name != missing}) is None


def test_uneven_hosts_are_refused() -> None:
    with pytest.raises(InvalidInput, match="WORLD_SIZE is 8, LOCAL_WORLD_SIZE 3: every host must have as many ranks"):
        place_of_this_process({**VARIABLES, "LOCAL_WORLD_SIZE": "3"})


def test_another_world_than_the_groups_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="world is 4, the group has 8 ranks; leave it out under torchrun"):
        collect_in_group(new_collection(tmp_path, samples=5, world=4), PlaceInGroup(5, 8, 1, 4))


def test_a_sample_that_ends_the_group_is_known_afterwards(tmp_path: Path) -> None:
    attempts = Attempts(tmp_path)
    assert attempts.failed(3) == 0
    attempts.begin(3)
    again = Attempts(tmp_path)  # after the group ended
    assert (again.failed(3), again.failed(4)) == (1, 0)
    again.begin(3)
    assert Attempts(tmp_path).failed(3) == 2


def test_a_sample_that_is_over_is_not_held_against_it(tmp_path: Path) -> None:
    attempts = Attempts(tmp_path)
    attempts.begin(3)
    attempts.end()
    assert Attempts(tmp_path).failed(3) == 0
    attempts.begin(4)
    assert Attempts(tmp_path).failed(4) == 1


def test_several_samples_that_end_the_group_are_all_known(tmp_path: Path) -> None:
    for sample in (3, 3, 4):
        Attempts(tmp_path).begin(sample)
    attempts = Attempts(tmp_path)
    attempts.begin(5)
    attempts.end()
    again = Attempts(tmp_path)
    assert [again.failed(sample) for sample in (3, 4, 5)] == [2, 1, 0]
    again.forget()
    assert not list(tmp_path.iterdir())
    assert Attempts(tmp_path).failed(3) == 0


@pytest.mark.parametrize("text", ["", "{", "[]", '{"x": 1}', '{"0": null}', "{}"])
def test_a_damaged_note_is_no_note(tmp_path: Path, text: str) -> None:
    (tmp_path / "collectives-attempts.json").write_text(text)
    assert Attempts(tmp_path).failed(0) == 0
