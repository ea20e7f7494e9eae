from experiments.measured import TABLE, PapersMeasured

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
