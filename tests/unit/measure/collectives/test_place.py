from __future__ import annotations

import pytest

from shardwright.errors import InvalidInput
from shardwright.measure.collectives.group import place_of_this_process
from shardwright.measure.collectives.rank import PlaceInGroup

VARIABLES = {
    "RANK": "5",
    "WORLD_SIZE": "8",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "4",
    "MASTER_ADDR": "host0",
    "MASTER_PORT": "29500",
}


@pytest.fixture(autouse=True)
def torchrun(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in VARIABLES.items():
        monkeypatch.setenv(name, value)


def test_the_place_is_what_torchrun_says() -> None:
    place = place_of_this_process()
    assert place == PlaceInGroup(5, 8, 1, 4)
    assert place.hosts == 2


@pytest.mark.parametrize("missing", VARIABLES)
def test_without_all_variables_there_is_no_group(monkeypatch: pytest.MonkeyPatch, missing: str) -> None:
    monkeypatch.delenv(missing)
    assert place_of_this_process() is None


@pytest.mark.parametrize(("name", "value"), [("LOCAL_WORLD_SIZE", "3"), ("LOCAL_RANK", "0")])
def test_uneven_hosts_are_refused(monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(InvalidInput, match=f"{name} {value}"):
        place_of_this_process()


def test_a_rank_that_is_no_number_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "first")
    with pytest.raises(InvalidInput, match="RANK is 'first', must be a whole number"):
        place_of_this_process()
