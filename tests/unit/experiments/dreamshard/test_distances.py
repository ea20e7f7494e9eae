import numpy as np
import pytest
from experiments.dreamshard.distances import Costs, closed, closed_interval

MS = {"size": (10.0, 8.0), "lookup": (6.0, 10.0), "dreamshard": (5.0, 6.0), "certified": (4.0, 6.0)}
ROWS = [
    {
        "strategy": name,
        "task": task,
        "step_ms": ms,
        "bound_ms": ms - 1.0 if name == "certified" else None,
        "embedding_cost_ms": ms,
    }
    for name, both in MS.items()
    for task, ms in enumerate(both)
]


def test_share_of_the_distance_that_is_closed():
    costs = Costs(ROWS, "step_ms")
    assert costs.best_heuristic == "lookup"
    assert closed(*costs.from_best_heuristic("dreamshard")) == pytest.approx(0.625)  # (16 − 11) / (16 − 8)
    assert closed(*costs.from_best_heuristic("dreamshard", each=True)) == pytest.approx(0.5)  # (14 − 11) / (14 − 8)
    assert costs.above_bound("certified") == pytest.approx([1 / 3, 1 / 5])


def test_tasks_that_someone_did_not_place_are_left_out():
    rows = [row | ({"step_ms": None} if (row["strategy"], row["task"]) == ("size", 1) else {}) for row in ROWS]
    costs = Costs(rows, "step_ms")
    assert costs.common(["size", "lookup"]) == [0]
    assert closed(*costs.from_best_heuristic("dreamshard")) == pytest.approx(1 / 3)  # (6 − 5) / (6 − 3)


@pytest.mark.parametrize("missing", ["certified", "heuristics", "all"])
def test_missing_rows_give_no_sentence(missing):
    left = {"certified": ("size", "lookup", "dreamshard"), "heuristics": ("dreamshard", "certified"), "all": ()}[
        missing
    ]
    costs = Costs([row for row in ROWS if row["strategy"] in left], "step_ms")
    gained, possible = costs.from_best_heuristic("dreamshard")
    assert gained.size == possible.size == 0
    assert np.isnan(closed(gained, possible))
    assert np.isnan(closed_interval(gained, possible)).all()


def test_the_interval_holds_the_share():
    gained, possible = np.arange(20.0), np.full(20, 20.0)
    low, high = closed_interval(gained, possible)
    assert 0.3 < low < closed(gained, possible) < high < 0.65
    assert closed_interval(np.ones(5), np.full(5, 2.0)) == (0.5, 0.5)
