import pytest
from experiments.neuroshard.comparisons import (
    CASE,
    bounds_of,
    compared,
    gaps,
    strategy_table,
    with_cases,
)
from experiments.outcomes import NO_ROOM

from tests.unit.experiments.rows import outcome

NAMES = ("random", "size", "dim", "certified")


@pytest.fixture
def rows():
    """Two settings: two tasks on 4 devices, the second not placed by `size`, and one on 8."""
    made = [
        outcome("random", 8.0, devices=4, task=0, oversize=1), outcome("size", 4.0, devices=4, task=0, cut=1, oversize=1),
        outcome("certified", 2.0, devices=4, task=0, bound=2.0, oversize=1), outcome("random", 6.0, devices=4, task=1),
        outcome("size", None, devices=4, task=1, failure=NO_ROOM, seconds=1.5), outcome("certified", 3.0, devices=4, task=1, bound=3.0),
        outcome("random", 10.0, devices=8, task=0), outcome("size", 5.0, devices=8, task=0), outcome("certified", 1.0, devices=8, task=0),
    ]  # fmt: skip
    return with_cases(made, ("devices",))


def cells(table):
    return [dict(zip(table.heads, map(str, row), strict=True)) for row in table.rows]


def test_only_cases_that_all_placed_are_compared(rows):
    costs = compared(rows, "embedding_cost_ms", NAMES)
    assert costs == {
        "random": {"4/0": 8.0, "8/0": 10.0},
        "size": {"4/0": 4.0, "8/0": 5.0},
        "certified": {"4/0": 2.0, "8/0": 1.0},
    }
    assert compared(rows, "embedding_cost_ms", ("random", "certified"))["random"] == {
        "4/0": 8.0,
        "4/1": 6.0,
        "8/0": 10.0,
    }


def test_gaps_are_to_the_largest_bound(rows):
    rows += [
        outcome(name, 2.5, bound=bound) | {CASE: "4/0"} for name, bound in (("dreamshard+", 2.1), ("dreamshard", 1.9))
    ]
    assert bounds_of(rows) == {"4/0": 2.1, "4/1": 3.0}
    strategy_gaps = gaps(rows, NAMES)
    assert strategy_gaps["certified"] == pytest.approx([2.2 / 2.1 - 1])
    assert strategy_gaps["random"] == pytest.approx([8.8 / 2.1 - 1])


def test_one_row_a_strategy(rows):
    table = strategy_table(rows, NAMES)
    by_name = {row["strategy"]: row for row in cells(table)}
    assert list(by_name) == ["random", "size", "certified"]
    assert "of the 2 tasks" in table.caption
    assert by_name["certified"]["cost / random"].startswith("0.175 (0.100 to 0.250)")  # the mean of 2 / 8 and 1 / 10
    assert by_name["certified"]["cost / best sorted"].startswith("0.350")  # of 2 / 4 and 1 / 5
    assert (by_name["size"]["tried"], by_name["size"]["placed"]) == ("3", "67% (33%)")
