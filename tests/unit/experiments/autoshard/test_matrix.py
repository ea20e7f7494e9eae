import numpy as np
import pytest
from experiments.autoshard.kinds import Scale
from experiments.autoshard.matrix import Costs, loss, matrix
from experiments.learned.tasks import Setting

SCALE = Scale(tables=(5, 7), devices=(4,), unseen=(0.0, 1.0), base=Setting(5, 4), training_tasks=1, tasks=2)
TABLES = SCALE.parts[0]


def row(strategy, trained, tested, task, ms, *, seed=0, bound=None):
    return {
        "strategy": strategy, "trained": trained, "seed": seed, "tested": tested, "task": task, "step_ms": ms,
        "compute_ms": None if ms is None else ms / 2, "bound_ms": bound, "compute_bound_ms": None if bound is None else bound / 2,
        "training_s": None, "policy": None,
    }  # fmt: skip


def rows_of(strategy, trained, by_task, tested="7x4-unseen1", **options):
    return [row(strategy, trained, tested, task, ms, **options) for task, ms in enumerate(by_task)]


ROWS = [
    *rows_of("dreamshard", "5x4-unseen0", (12.0, 9.0)),
    *rows_of("dreamshard", "7x4-unseen0", (10.0, 8.0)),
    *rows_of("dreamshard", "bundled", (9.0, 9.0)),
    *rows_of("size", "nothing", (20.0, 7.0)),
    *rows_of("lookup", "nothing", (11.0, 8.8)),
    *rows_of("random", "nothing", (36.0, None)),
    *rows_of("certified", "nothing", (9.0, 7.2), bound=6.0),
]


def test_losses_are_of_the_tasks_that_both_placed():
    excess = loss({(0, 0): 2.0, (0, 1): 3.0, (0, 2): 9.0}, {(0, 0): 2.0, (0, 1): 2.0})
    assert (excess.share, excess.tasks) == (pytest.approx(0.25), 2)
    assert excess.low == pytest.approx(0.0)
    assert excess.high == pytest.approx(0.5)
    nothing = loss({(0, 0): 1.0}, {(0, 1): 1.0})
    assert np.isnan(nothing.share)
    assert nothing.tasks == 0


def test_a_matrix():
    losses = matrix(Costs(ROWS, "dreamshard"), TABLES)
    assert losses.shares[0, 1] == pytest.approx(21 / 18 - 1)
    assert losses.shares[1, 1] == 0.0
    assert np.isnan(losses.shares[:, 0]).all(), "nothing was tested on five tables"
    assert losses.target[1] == 9.0
    assert np.isnan(losses.target[0])
    assert losses.heuristic[1].share == pytest.approx(19.8 / 18 - 1), "lookup is best on average, size on one task"
    assert losses.bundled[1].share == pytest.approx(0.0)
    assert (losses.random[1].share, losses.random[1].tasks) == (pytest.approx(36 / 10 - 1), 1)
    assert losses.certified[1].share == pytest.approx(16.2 / 18 - 1)
    assert losses.above_bound[1].share == pytest.approx(18 / 12 - 1)
    ((label, column, off, heuristic),) = losses.off_target
    assert (label, column) == ("5 tables", "7 tables")
    assert off.share > heuristic.share > 0


def test_autoshards_cost_is_that_of_kernels():
    rows = [row | {"strategy": "autoshard"} if row["strategy"] == "dreamshard" else row for row in ROWS]
    losses = matrix(Costs(rows, "autoshard"), TABLES)
    assert losses.target[1] == 4.5
    assert losses.above_bound[1].share == pytest.approx(0.5)
    assert np.isnan(matrix(Costs(rows, "dreamshard"), TABLES).target[1])
