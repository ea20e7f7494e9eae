from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from shardwright.errors import MeasurementFailed
from shardwright.measure.collectives.rank import new_name


class Keys(dict[str, bytes]):
    """The store of torch.distributed, as far as it is used."""

    def set(self, key: str, value: str) -> None:
        self[key] = value.encode()

    def check(self, keys: list[str]) -> bool:
        return all(key in self for key in keys)


def meet(store: Keys, world: int) -> set[str]:
    with ThreadPoolExecutor(world) as ranks:
        return set(ranks.map(lambda rank: new_name(store, rank, world, 20.0), range(world)))


def test_all_ranks_get_one_name_and_each_time_another() -> None:
    store, names = Keys(), list[str]()
    for _ in range(3):  # what earlier starts left stays in the store
        found = meet(store, 4)
        assert len(found) == 1
        names += found
    assert len(set(names)) == 3


def test_what_a_rank_asked_before_it_died_does_no_harm() -> None:
    store = Keys()
    with pytest.raises(MeasurementFailed, match=r"rank 2 waited 0 s for rank 0 of 3"):
        new_name(store, 2, 3, 0.0)
    assert len(meet(store, 3)) == 1


def test_a_rank_that_does_not_come_is_named() -> None:
    store = Keys()
    with pytest.raises(MeasurementFailed, match=r"rank 0 waited 0.1 s for rank 1 of 3; start all ranks"):
        new_name(store, 0, 3, 0.1)
