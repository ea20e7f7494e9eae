import experiments.measured
import pytest
from experiments.experiment import Piece
from experiments.measured import DREAM, PRODUCTION, STRATEGIES, TABLE, PapersMeasured, sampled_ranks

import shardwright as sw
from shardwright.workload import random_task
from tests.unit.experiments.rows import outcome, table_with

EXPERIMENT = PapersMeasured()


def measured(part, task, strategy, predicted, ms, **others):
    key = {"part": part, "devices": 4, "size": 32, "task": task}
    return (
        key
        | outcome(strategy, predicted / 0.8, measured_ms=ms)
        | {"model": "cpu/own", "controls": 1.25, "version": "2 rounds"}
        | others
    )


def test_forty_tasks_of_each_paper_and_a_production_task_are_measured_alone():
    pytest.importorskip("torch", reason="kernels are measured with torch")
    pieces = EXPERIMENT.pieces(quick=False)
    counts = {part: sum(piece.key["part"] == part for piece in pieces) for part in (TABLE, DREAM, PRODUCTION)}
    assert min(counts[TABLE], counts[DREAM]) >= 40
    assert counts[PRODUCTION] >= 1
    assert all(piece.alone for piece in pieces)
    assert [piece.key["part"] for piece in EXPERIMENT.pieces(quick=True)] == [TABLE, DREAM]


def test_a_task_is_planned_by_the_model_of_the_machine(monkeypatch):
    seen = []

    def rows(task, entrants, *, seed, rounds, model):
        seen.append((len(task.tables), [one.name for one in entrants], model.name))
        return [outcome("greedy", 5.0, measured_ms=4.0)]

    monkeypatch.setattr(experiments.measured, "measured_rows", rows)
    key = {"part": TABLE, "devices": 4, "size": 32, "task": 0}
    (row,) = EXPERIMENT.run(Piece(key, "v"))
    ((tables, names, model),) = seen
    assert (tuple(names), row["model"]) == (STRATEGIES, model)
    assert 10 <= tables < 60


def test_ratios_are_to_another_strategy_on_the_same_task():
    rows = [
        measured(TABLE, 0, "random", 4.0, 5.0), measured(TABLE, 0, "greedy", 2.0, 2.0), measured(TABLE, 0, "certified", 2.0, 1.0),
        measured(TABLE, 1, "random", 4.0, 4.0), measured(TABLE, 1, "greedy", 1.0, 2.0), measured(TABLE, 1, "certified", 1.0, 2.0),
    ]  # fmt: skip
    page = EXPERIMENT.page(rows, quick=False)
    by_name = {row["strategy"]: row for row in table_with(page, f"`{TABLE}`")}
    assert by_name["greedy"]["/ random"].startswith("0.450")  # of 2 / 5 and 2 / 4
    assert by_name["certified"]["/ greedy"].startswith("0.750")
    assert by_name["certified"]["measured / predicted"] == "1.250"  # of 1 / 2 and 2 / 1
    assert by_name["certified"]["beyond the controls"] == "1.000"  # the controls took 1.25 times as long
    assert any("2 tasks on CPU X" in text and "cpu/own" in text for text in page.text)


def test_what_could_not_be_measured_is_said():
    failed = measured(DREAM, 0, "", 1.0, None, why="this machine has 1 MB free")
    page = EXPERIMENT.page([measured(TABLE, 0, "random", 4.0, 5.0), failed], quick=False)
    assert "this machine has 1 MB free" in page.text


def test_of_a_large_plan_the_slowest_devices_and_others_are_measured():
    task = random_task(1, tables=60, devices=32, device="cpu", memory="8 GB", batch_size=1024)
    plan = sw.plan(task, strategy="random")
    ranks = sampled_ranks(plan, seed=0)
    by_time = sorted(range(32), key=lambda rank: -plan.cost.devices[rank].compute_ms)
    assert len(ranks) == len(set(ranks)) == 16
    assert set(by_time[:4]) <= set(ranks)
