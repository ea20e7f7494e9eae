from __future__ import annotations

import pytest

from shardwright.errors import InvalidInput
from shardwright.measure.collectives.group import PlaceInGroup, place_of_this_process

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
    with pytest.raises(InvalidInput, match="LOCAL_WORLD_SIZE 3, .*: every host must have as many ranks"):
        place_of_this_process({**VARIABLES, "LOCAL_WORLD_SIZE": "3"})
    with pytest.raises(
        InvalidInput, match="RANK 5, LOCAL_RANK 0: every host must have as many ranks, numbered host by host"
    ):
        place_of_this_process({**VARIABLES, "LOCAL_RANK": "0"})
