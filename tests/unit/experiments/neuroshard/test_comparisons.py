import pytest
from experiments.neuroshard.comparisons import (
    CASE,
    best_of,
    bounds_of,
    compared,
    failure_table,
    gap_table,
    gaps,
    mean_table,
    settings_of,
    strategy_table,
    success,
    success_table,
    time_table,
    with_cases,
)
from experiments.outcomes import NO_ROOM, NO_TIME
from experiments.summaries import NOTHING

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
    found = compared(rows, "embedding_cost_ms", NAMES)
    assert found == {
        "random": {"4/0": 8.0, "8/0": 10.0},
        "size": {"4/0": 4.0, "8/0": 5.0},
        "certified": {"4/0": 2.0, "8/0": 1.0},
    }
    assert compared(rows, "embedding_cost_ms", ("random", "certified"))["random"] == {
        "4/0": 8.0,
        "4/1": 6.0,
        "8/0": 10.0,
    }


def test_best_of_several():
    assert best_of({"size": {1: 3.0, 2: 4.0}, "dim": {2: 2.0, 3: 7.0}, "random": {1: 0.1}}) == {1: 3.0, 2: 2.0, 3: 7.0}
    assert best_of({}) == {}


def test_gaps_are_to_the_largest_bound(rows):
    rows += [
        outcome(name, 2.5, bound=bound) | {CASE: "4/0"} for name, bound in (("dreamshard+", 2.1), ("dreamshard", 1.9))
    ]
    assert bounds_of(rows) == {"4/0": 2.1, "4/1": 3.0}
    found = gaps(rows, NAMES)
    assert found["certified"] == pytest.approx([2.2 / 2.1 - 1])
    assert found["random"] == pytest.approx([8.8 / 2.1 - 1])


def test_tables_by_setting(rows):
    settings, heads = settings_of(rows, ("devices",)), ("devices",)
    means = cells(mean_table("", heads, settings, NAMES, "embedding_cost_ms"))
    assert means == [
        {"devices": "4", "tasks": "1", "random": "8.00", "size": "4.00", "dim": NOTHING, "certified": "2.00"},
        {"devices": "8", "tasks": "1", "random": "10.00", "size": "5.00", "dim": NOTHING, "certified": "1.00"},
    ]
    placed = cells(success_table("", heads, settings, NAMES))
    assert (placed[0]["tasks"], placed[0]["with a table too large for a device"]) == ("2", "1")
    assert (placed[0]["size"], placed[0]["dim"], placed[1]["size"]) == ("50% (0%)", NOTHING, "100%")
    assert [row["certified"] for row in cells(gap_table("", heads, settings, NAMES))] == ["10.0%", NOTHING]
    assert [row["size"] for row in cells(time_table("", heads, settings, NAMES))] == ["1", "0.5"]


def test_one_row_a_strategy(rows):
    table = strategy_table(rows, NAMES)
    by_name = {row["strategy"]: row for row in cells(table)}
    assert list(by_name) == ["random", "size", "certified"]
    assert "of the 2 tasks" in table.caption
    assert by_name["certified"]["cost / random"].startswith("0.175 (0.100 to 0.250)")  # the mean of 2 / 8 and 1 / 10
    assert by_name["certified"]["cost / best sorted"].startswith("0.350")  # of 2 / 4 and 1 / 5
    assert (by_name["size"]["tried"], by_name["size"]["placed"]) == ("3", "67% (33%)")


def test_only_strategies_of_whole_tables_are_marked_as_having_cut():
    cut = [outcome("neuroshard", 1.0, cut=2), outcome("neuroshard", 1.0)]
    assert success(cut, "neuroshard") == "100%"
    assert success(cut, "size") == "100% (50%)"


def test_failures_are_counted_by_reason(rows):
    rows.append(outcome("size", None, failure=NO_TIME, devices=8, task=1))
    (row,) = cells(failure_table(rows, NAMES))
    assert (row["strategy"], row[NO_ROOM], row[NO_TIME]) == ("size", "1", "1")
    assert failure_table([row for row in rows if row["failure"] is None], NAMES) is None
