import math

from experiments.summaries import (
    NOTHING,
    common_tasks,
    mean_interval,
    ratio_of_means,
    values_by_task,
    with_interval,
)  # fmt: skip

ROWS = [
    {"task": 0, "strategy": "size", "step_ms": 4.0},
    {"task": 0, "strategy": "certified", "step_ms": 2.0},
    {"task": 1, "strategy": "size", "step_ms": None},
    {"task": 1, "strategy": "certified", "step_ms": 5.0},
    {"task": 2, "strategy": "size", "step_ms": 6.0},
    {"task": 2, "strategy": "certified", "step_ms": 3.0},
]


def test_only_tasks_that_all_placed_are_common():
    values = values_by_task(ROWS, "step_ms")
    assert values == {"size": {0: 4.0, 2: 6.0}, "certified": {0: 2.0, 1: 5.0, 2: 3.0}}
    assert common_tasks(values) == [0, 2]
    assert ratio_of_means(values["certified"], values["size"], [0, 2]) == 0.5
    assert ratio_of_means(values["certified"], values["size"], []) is None
    assert common_tasks({}) == []
    assert common_tasks({"size": {}, "dim": {0: 1.0}}) == []


def test_a_strategy_that_placed_nothing_has_no_values():
    assert values_by_task(ROWS[2:3], "step_ms") == {"size": {}}


def test_means_and_intervals():
    mean, low, high = mean_interval([1.0, 2.0, 3.0, 6.0])
    assert mean == 3.0
    assert 1.0 < low < 3.0 < high < 6.0
    assert mean_interval([1.0, 2.0, 3.0, 6.0]) == (mean, low, high)
    assert mean_interval([2.0]) == (2.0, 2.0, 2.0)
    assert all(math.isnan(number) for number in mean_interval([]))
    assert with_interval([2.0, 2.0]) == "2.00 (2.00 to 2.00)"
    assert with_interval([2.0]) == "2.00"
    assert with_interval([]) == NOTHING
