import pytest
from experiments.experiment import Piece
from experiments.flexshard.sequence_models import CLUSTERS, EVERY, MODELS, ONE_TABLE, PER_HOST, SWEEP
from experiments.flexshard.traffic import FlexShardTraffic
from experiments.pages import save

EXPERIMENT = FlexShardTraffic()
FIGURES = {"bound_ms": None, "plans_bound_ms": None, "hot_rows": 0, "warm_rows": 0, "search_s": 0.5}


def row(strategy, between, ms, *, exchange=EVERY, memory=1.25, part=MODELS, accesses="Zipf 1.1-1.3", seed=0, **others):
    setting = {"part": part, "accesses": accesses, "tables": 20, "hosts": 8, "gbits": 400, "seed": seed, "batch": 4096}
    return {
        **setting, "exchange": exchange, "memory": memory, "strategy": strategy,
        "bytes_between": between, "communication_ms": ms, **FIGURES, **others,
    }  # fmt: skip


def table_with(page, text):
    return next(table for table in page.tables if text in table.caption)


def test_pieces_are_unique_and_any_beginning_has_all_parts():
    for quick in (True, False):
        pieces = EXPERIMENT.pieces(quick)
        keys = {tuple(piece.key.items()) for piece in pieces}
        assert len(keys) == len(pieces)
        assert {tuple(piece.key) for piece in pieces} == {tuple(pieces[0].key)}
        first = pieces[: len(pieces) // 4]
        assert {piece.key["part"] for piece in first} == {ONE_TABLE, MODELS, CLUSTERS, SWEEP}
        assert {piece.key["strategy"] for piece in first} == {"row_wise", "table_row_wise", "recshard", "flexshard"}
    assert len(EXPERIMENT.pieces(True)) < len(EXPERIMENT.pieces(False)) / 4
    assert {piece.key["hosts"] for piece in EXPERIMENT.pieces(False)} == {1, 2, 4, 8, 16, 32, 64}


def test_every_setting_has_the_plan_that_others_are_held_against():
    bases, settings = set(), set()
    for piece in EXPERIMENT.pieces(False):
        *setting, exchange, memory, strategy = piece.key.values()
        settings.add(tuple(setting))
        if (exchange, memory, strategy) == (EVERY, 1.0, "row_wise"):
            bases.add(tuple(setting))
    assert bases == settings


def test_pieces_run():
    wanted = {
        "part": CLUSTERS,
        "accesses": "Zipf 1.1-1.3",
        "tables": 1,
        "hosts": 2,
        "gbits": 100,
        "seed": 0,
        "batch": 4096,
    }
    (plain,) = EXPERIMENT.run(Piece({**wanted, "exchange": EVERY, "memory": 1.0, "strategy": "row_wise"}))
    (tiers,) = EXPERIMENT.run(Piece({**wanted, "exchange": EVERY, "memory": 1.25, "strategy": "flexshard"}))
    assert tiers["communication_ms"] < plain["communication_ms"] / 2
    assert tiers["bytes_between"] < plain["bytes_between"] / 2
    assert tiers["bound_ms"] <= tiers["communication_ms"] * (1 + 1e-9)
    assert tiers.keys() == plain.keys()


def test_the_table_of_the_estimate_by_hand():
    wanted = {
        "part": ONE_TABLE,
        "accesses": "Zipf 1.1",
        "tables": 1,
        "hosts": 8,
        "gbits": 100,
        "seed": 0,
        "batch": 4096,
    }
    rows = []
    for memory, strategy in ((1.0, "row_wise"), (1.25, "flexshard")):
        piece = Piece({**wanted, "exchange": EVERY, "memory": memory, "strategy": strategy})
        rows += [{**piece.key, **found} for found in EXPERIMENT.run(piece)]
    (line,) = table_with(EXPERIMENT.page(rows, False), "200 lookups a sample").rows
    assert line[:3] == ["1.1", "-86% · 6.7×", "-85.7% · 6.99×"]


def test_claims_are_medians_over_the_models():
    rows = []
    for seed, (tiers, two) in enumerate([(100.0, 200.0), (50.0, 200.0), (300.0, 400.0)]):
        rows += [
            row("row_wise", 1000.0, 50.0, memory=1.0, seed=seed),
            row("flexshard", tiers, tiers / 20, seed=seed),
            row("recshard", two, two / 10, seed=seed),
        ]
    page = EXPERIMENT.page(rows, False)
    (line,) = table_with(page, "The paper").rows
    assert line[:4] == ["Zipf 1.1-1.3", EVERY, "1.25×", 3]
    assert line[4:] == [
        "90.0% (70.0% to 95.0%)", "10.00× (3.33 to 20.00)", "50.0% (25.0% to 75.0%)", "4.00× (2.67 to 8.00)",
    ]  # fmt: skip
    said = " ".join(page.text)
    assert "takes 90.0% of `row_wise`'s traffic off the links between hosts (more than 85%)" in said
    assert "10.0 times as fast (more than 6); against `recshard` it is 50.0% and 4.00 times" in said
    assert "main finding" not in said  # no plan is de-duplicated by host
    placed = {line[1]: line[2] for line in table_with(page, "proven bounds").rows}
    assert placed == {"row_wise": "3 of 3", "flexshard": "3 of 3", "recshard": "3 of 3"}


def test_figures_below_the_claims_are_said_to_be_below():
    rows = [row("row_wise", 1000.0, 50.0, memory=1.0), row("flexshard", 200.0, 10.0)]
    said = " ".join(EXPERIMENT.page(rows, False).text)
    assert "80.0% of `row_wise`'s traffic off the links between hosts (less than 85%)" in said
    assert "5.0 times as fast (less than 6)." in said


def test_the_main_finding_has_its_figures():
    rows = [
        row("row_wise", 1000.0, 50.0, memory=1.0),
        row("row_wise", 100.0, 5.0, memory=1.0, exchange=PER_HOST),
        row("flexshard", 98.0, 4.9, exchange=PER_HOST),
    ]
    said = " ".join(EXPERIMENT.page(rows, False).text)
    assert "`row_wise` then sends 90.0% less in 1× the memory and is 10.0 times as fast" in said
    assert "`flexshard` with 1.25× sends 90.2% less and is 10.2 times as fast, +2.04% on top" in said


def test_what_does_not_fit_is_said_so():
    rows = [row("row_wise", 1000.0, 50.0, memory=1.0), row("flexshard", None, None)]
    page = EXPERIMENT.page(rows, False)
    cells = {line[3]: line[4] for line in table_with(page, "Models:").rows}
    assert cells == {"row_wise": "+0.0% · 1.00×", "flexshard": "does not fit"}
    assert not [table for table in page.tables if "The paper" in table.caption]


def test_clusters_by_number_of_hosts():
    rows = [
        row("row_wise", 1000.0, 50.0, memory=1.0, part=CLUSTERS),
        row("flexshard", 200.0, 10.0, part=CLUSTERS),
        row("row_wise", 0.0, 8.0, memory=1.0, part=CLUSTERS, hosts=1),
    ]
    table = table_with(EXPERIMENT.page(rows, False), "planned for each cluster anew")
    assert list(table.heads[3:]) == ["8 GPUs", "64 GPUs"]
    lines = {line[2]: line[3:] for line in table.rows}
    assert lines["row_wise"] == ["8.0 (1.0×)", "50.0 (1.0×)"]
    assert lines["flexshard"] == ["–", "10.0 (5.0×)"]
    assert lines["recshard"] == ["–", "–"]


@pytest.mark.slow
@pytest.mark.parametrize("count", [0, 1, 5, 40])
def test_any_part_of_the_rows_makes_a_page(count, tmp_path):
    pieces = EXPERIMENT.pieces(True)[:count]
    rows = [{**piece.key, "bytes_between": 10.0, "communication_ms": 2.0, **FIGURES} for piece in pieces]
    page = EXPERIMENT.page(rows, True)
    assert page.text
    assert bool(page.figures) == bool(rows)
    for figure in page.figures.values():
        save(figure, tmp_path / "figure.svg")


def test_the_sweep_says_where_tiers_gain_most():
    swept = [
        row(strategy, 10.0, ms, part=SWEEP, memory=memory, batch=batch, accesses="Zipf 1.2")
        for batch, times in ((16, (5.0, 5.0, 5.0)), (4096, (40.0, 30.0, 20.0)))
        for (strategy, memory), ms in zip(
            (("row_wise", 1.0), ("recshard", 1.25), ("flexshard", 1.25)), times, strict=True
        )
    ]
    page = EXPERIMENT.page(swept, False)
    assert [line[4:] for line in table_with(page, "Where tiers still pay").rows if line[3] != "row_wise"] == [
        ["1.00", "1.50"]
    ]
    (said,) = [part for part in page.text if "Where tiers still pay" in part]
    assert "+50.0% (400 Gbit/s, Zipf 1.2, 4,096 samples)" in said
