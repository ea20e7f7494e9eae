import pytest

import shardwright as sw
from shardwright.cost import PublishedModel
from shardwright.search import search_statistics
from shardwright.search.statistics import count_changes, timed
from shardwright.testing.tasks import task_of


def test_a_search_counts_its_time_and_changes_by_kind():
    with search_statistics() as statistics:
        sw.plan(task_of(30, 4), cost_model=PublishedModel("h100"), time_limit=5)
    assert {"ways and bound", "starts", "kicks", "proof"} <= set(statistics.seconds)
    assert set(statistics.tried) == {"moves", "swaps", "cuts", "ways", "kicks"}
    assert 0 < statistics.taken["moves"] < statistics.tried["moves"]
    assert all(statistics.taken[kind] <= tried for kind, tried in statistics.tried.items())


def test_searches_inside_a_part_count_as_the_part():
    with search_statistics() as statistics:
        with timed("other strategies"), timed("kicks"):
            count_changes({"moves": (3, 1)})
        count_changes({"moves": (5, 2)})
    assert set(statistics.seconds) == {"other strategies"}
    assert (statistics.tried["moves"], statistics.taken["moves"]) == (5, 2)


def test_a_part_that_fails_has_its_time():
    with search_statistics() as statistics, pytest.raises(ValueError, match="broken"), timed("proof"):
        raise ValueError("broken")
    assert statistics.seconds["proof"] >= 0
    count_changes({"moves": (1, 1)})  # nobody collects
    assert not statistics.tried
