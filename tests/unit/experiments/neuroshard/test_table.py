import pytest
from experiments.experiment import Piece
from experiments.neuroshard.plans_on_kernels import NOT_MEASURED
from experiments.neuroshard.table import MEASURED, PLANNED, NeuroShardTable
from experiments.summaries import NOTHING

from tests.unit.experiments.rows import outcome, table_with

EXPERIMENT = NeuroShardTable()


def row(strategy, ms, *, devices=4, max_dim=16, task=0, part=PLANNED, **others):
    setting = {"part": part, "devices": devices, "max_dim": max_dim, "task": task, "by": strategy}
    return outcome(strategy, ms, **others) | setting


@pytest.mark.parametrize("quick", [True, False])
def test_pieces_go_task_by_task(quick):
    pieces = EXPERIMENT.pieces(quick)
    numbers = [piece.key["task"] for piece in pieces]
    assert numbers == sorted(numbers)
    assert all(piece.alone == (piece.key["part"] == MEASURED) for piece in pieces)
    assert all("model" in piece.version for piece in pieces)


def test_a_task_is_planned():
    key = {"part": PLANNED, "devices": 4, "max_dim": 16, "task": 3, "by": "size_lookup"}
    (outcome,) = EXPERIMENT.run(Piece(key))
    (other,) = EXPERIMENT.run(Piece(key | {"by": "lookup"}))
    assert (outcome["strategy"], other["strategy"], outcome["tables"]) == ("size_lookup", "lookup", other["tables"])
    assert 10 <= outcome["tables"] < 60
    assert 0 < outcome["embedding_cost_ms"] <= outcome["step_ms"]


def test_the_page_by_hand():
    rows = [
        row("random", 8.0), row("size", 4.0), row("certified", 2.0, bound=2.0), row("torchrec", 3.0, seconds=7.0),
        row("random", 4.0, task=1), row("size", 2.0, task=1), row("certified", 2.0, task=1, bound=2.0),
        row("random", 9.0, devices=8), row("size", None, devices=8, failure="no room found"), row("certified", 3.0, devices=8),
    ]  # fmt: skip
    page = EXPERIMENT.page(rows, False)
    four, eight = table_with(page, "Mean embedding cost")
    assert four == {
        "devices": "4",
        "max dim": "16",
        "tasks": "2",
        "random": "6.00",
        "size": "3.00",
        "certified": "2.00",
    }
    assert (eight["tasks"], eight["random"], eight["size"], eight["certified"]) == ("1", "9.00", NOTHING, "3.00")
    placed = table_with(page, "Share of the tasks that were placed")
    assert [line["size"] for line in placed] == ["100%", "0%"]
    first = table_with(page, "TorchRec's planner: ")[0]
    assert (first["asked for"], first["compared"], first["/ random"], first["/ certified"], first["/ best sorted"]) == (
        "1", "1", "0.375", "1.500", "0.750",
    )  # fmt: skip
    (failed,) = table_with(page, "Tasks that were not placed")
    assert (failed["strategy"], failed["no room found"]) == ("size", "1")
    assert "processes ran" not in "".join(table.caption for table in page.tables)
    assert "3 tasks are here" in page.text[0]
    assert "1 tasks" in page.text[2]


def test_measured_tasks_have_a_table_of_their_own():
    rows = [row(name, 5.0, part=MEASURED, measured_ms=ms) for name, ms in (("random", 5.0), ("certified", 4.0))]
    lines = table_with(EXPERIMENT.page(rows, False), "Measured on the kernels of")
    assert [(line["strategy"], line["measured ratio"]) for line in lines] == [
        ("random", "1.000"),
        ("certified", "0.800"),
    ]
    elsewhere = row("random", 6.0, part=MEASURED, measured_ms=6.0, hardware="CPU Y, 4 cores, Python 3.12")
    (of_other,) = table_with(EXPERIMENT.page([*rows, elsewhere], False), "on the kernels of CPU Y, 1 tasks")
    assert (of_other["measured"], of_other["tasks"]) == ("6.00", "1")
    failed = row("", None, part=MEASURED, failure=NOT_MEASURED)
    assert table_with(EXPERIMENT.page([failed], False), "could not be measured") == [{"why": "because"}]
