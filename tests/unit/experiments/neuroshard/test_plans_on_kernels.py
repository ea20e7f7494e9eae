import pytest
from experiments.entrants import entrant
from experiments.neuroshard.comparisons import CASE
from experiments.neuroshard.plans_on_kernels import NOT_MEASURED, measured_rows, measured_table, orders

from shardwright.errors import MeasurementFailed
from shardwright.task import Table, Task, Topology
from tests.unit.experiments.rows import outcome

SMALL = Task([Table(f"t{n}", 1000, 16, 4.0) for n in range(5)], Topology(devices_per_host=2, memory="100 MB"), 256)
ENTRANTS = [entrant(name) for name in ("random", "lookup")]


@pytest.mark.slow
def test_plans_are_measured():
    pytest.importorskip("torch", reason="kernels are measured with torch")
    rows = measured_rows(SMALL, ENTRANTS, seed=0, rounds=1)
    assert [row["strategy"] for row in rows] == ["random", "lookup"]
    assert all(row["measured_ms"] > 0 and row["compute_ms"] > 0 and row["failure"] is None for row in rows)


def test_a_machine_that_cannot_measure_reports_it(monkeypatch):
    def too_small(plans, **_):
        raise MeasurementFailed("this machine has 1 MB free")

    monkeypatch.setattr("shardwright.measure.measuring.measure_plans", too_small)
    (row,) = measured_rows(SMALL, ENTRANTS, seed=0, rounds=1)
    assert (row["failure"], row["why"], row["measured_ms"]) == (NOT_MEASURED, "this machine has 1 MB free", None)
    assert row.keys() == outcome("random", 1.0).keys() - {"jobs", "hardware"}


def test_rank_correlations():
    assert orders([[(1, 2), (2, 3), (3, 9)], [(1, 5), (2, 4)], [(1, 1)]]) == pytest.approx([1.0, -1.0])
    assert orders([[(1, 1), (1, 2)]]) == []  # the same prediction for both is no order
    assert orders([]) == []


def test_predictions_beside_measurements_by_hand():
    def measured(case, strategy, predicted, ms):
        return outcome(strategy, predicted / 0.8, measured_ms=ms) | {CASE: case}

    rows = [
        measured("a", "random", 4.0, 5.0), measured("a", "certified", 2.0, 2.0),
        measured("b", "random", 6.0, 5.0), measured("b", "certified", 3.0, 4.0),
    ]  # fmt: skip
    table = measured_table(rows, ("random", "neuroshard", "certified"))
    first, second = (dict(zip(table.heads, row, strict=True)) for row in table.rows)
    assert (first["strategy"], first["tasks"], first["predicted"], first["measured"]) == ("random", 2, "5.00", "5.00")
    assert first["difference"] == "20.0%"  # |4 / 5 − 1| and |6 / 5 − 1|
    assert (second["signed"], second["difference"]) == ("-12.5%", "12.5%")  # 0 and −25%
    assert (second["predicted ratio"], second["measured ratio"]) == ("0.500", "0.600")  # of 2 / 5 and 4 / 5
    assert "kernels of CPU X (cpu family 1, model 2), 2 tasks of 10 to 10 tables" in table.caption
    assert "this machine is CPU X (cpu family 1, model 2)" in table.caption
    assert "1.00 on average" in table.caption
