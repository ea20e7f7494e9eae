from itertools import islice

import pytest
from experiments.entrants import TORCHREC, torchrec_installed
from experiments.experiment import Piece
from experiments.neuroshard.plans_on_kernels import NOT_MEASURED
from experiments.neuroshard.table import DEVICES, MAX_DIMS, MEASURED, PLANNED, NeuroShardTable
from experiments.summaries import NOTHING

from tests.unit.experiments.rows import outcome, table_with

EXPERIMENT = NeuroShardTable()


def row(strategy, ms, *, devices=4, max_dim=16, task=0, part=PLANNED, **others):
    setting = {"part": part, "devices": devices, "max_dim": max_dim, "task": task, "by": strategy}
    return outcome(strategy, ms, **others) | setting


@pytest.mark.parametrize("quick", [True, False])
def test_pieces_are_unique_and_go_task_by_task(quick):
    pieces = EXPERIMENT.pieces(quick)
    assert len({tuple(piece.key.items()) for piece in pieces}) == len(pieces)
    numbers = [piece.key["task"] for piece in pieces]
    assert numbers == sorted(numbers)
    assert all(piece.alone == (piece.key["part"] == MEASURED) for piece in pieces)
    assert all("model" in piece.version for piece in pieces)


def test_all_settings_and_strategies_have_a_hundred_tasks():
    planned = [piece for piece in EXPERIMENT.pieces(False) if piece.key["part"] == PLANNED]
    settings = {(piece.key["devices"], piece.key["max_dim"]) for piece in planned}
    assert settings == {(devices, max_dim) for devices in DEVICES for max_dim in MAX_DIMS}
    for name in EXPERIMENT.strategies:
        count = sum(piece.key["by"] == name for piece in planned)
        assert count == 100 * len(settings) if name != TORCHREC else (0 < count < 1200) == torchrec_installed()
    assert len(EXPERIMENT.pieces(True)) < len(planned) / 50


def test_one_task_is_measured_quickly_and_another_of_every_setting_in_full():
    pytest.importorskip("torch", reason="kernels are measured with torch")
    quick, full = (
        [piece for piece in EXPERIMENT.pieces(quick) if piece.key["part"] == MEASURED] for quick in (True, False)
    )
    assert len(quick) == 1
    assert len({(piece.key["devices"], piece.key["max_dim"]) for piece in full}) == len(full) == 12
    assert len({piece.key["task"] for piece in full}) == 12, "tasks of one number have the same count of tables"
    assert not [piece for piece in NeuroShardTable(measure=False).pieces(False) if piece.alone]


def test_a_task_is_planned():
    key = {"part": PLANNED, "devices": 4, "max_dim": 16, "task": 3, "by": "size_lookup"}
    (found,) = EXPERIMENT.run(Piece(key))
    (other,) = EXPERIMENT.run(Piece(key | {"by": "lookup"}))
    assert (found["strategy"], other["strategy"], found["tables"]) == ("size_lookup", "lookup", other["tables"])
    assert 10 <= found["tables"] < 60
    assert 0 < found["embedding_cost_ms"] <= found["step_ms"]


def test_plans_of_a_task_are_measured(monkeypatch):
    asked = {}

    def measured(task, entrants, *, seed, rounds):
        asked.update(names=[one.name for one in entrants], devices=task.topology.devices, seed=seed)
        return []

    monkeypatch.setattr("experiments.neuroshard.plans_on_kernels.measured_rows", measured)
    EXPERIMENT.run(Piece({"part": MEASURED, "devices": 8, "max_dim": 16, "task": 2, "by": "all"}, alone=True))
    assert asked["names"] == [name for name in EXPERIMENT.strategies if name != TORCHREC or torchrec_installed()]
    assert (asked["devices"], asked["seed"]) == (8, 2)


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


def test_search_times_of_several_processes_say_so():
    page = EXPERIMENT.page([row("random", 8.0) | {"jobs": 2}], False)
    assert any("2 processes ran side by side" in table.caption for table in page.tables)


def test_the_picture_shows_costs_relative_to_random():
    rows = [
        row("random", 8.0),
        row("certified", 2.0),
        row("random", 4.0, max_dim=32),
        row("certified", 3.0, max_dim=32),
    ]
    rows += [row("random", 2.0, task=1), row("certified", 2.0, task=1)]
    (axis,) = EXPERIMENT.page(rows, False).figures[""].axes
    lines = {line.get_label(): [tuple(point) for point in line.get_xydata()] for line in axis.get_lines()}
    assert lines == {"random": [(16, 1.0), (32, 1.0)], "certified": [(16, 0.4), (32, 0.75)]}


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


def test_a_part_of_the_rows_and_none_make_a_page(tmp_path):
    from experiments.pages import save

    everything = [
        row(name, 3.0, devices=devices, part=part, measured_ms=2.0)
        for devices in DEVICES
        for name in EXPERIMENT.strategies
        for part in (PLANNED, MEASURED)
    ]
    for count in (0, 1, 3, len(everything)):
        page = EXPERIMENT.page(list(islice(everything, count)), True)
        save(page.figures[""], tmp_path / "picture.svg")
