from experiments.experiment import Piece
from experiments.flexshard.sequence_models import CLUSTERS, EVERY, MODELS, ONE_TABLE, SWEEP
from experiments.flexshard.traffic import FlexShardTraffic

EXPERIMENT = FlexShardTraffic()


def table_with(page, text):
    return next(table for table in page.tables if text in table.caption)


def test_any_beginning_of_the_pieces_has_all_parts():
    for quick in (True, False):
        pieces = EXPERIMENT.pieces(quick)
        assert {tuple(piece.key) for piece in pieces} == {tuple(pieces[0].key)}
        first = pieces[: len(pieces) // 4]
        assert {piece.key["part"] for piece in first} == {ONE_TABLE, MODELS, CLUSTERS, SWEEP}
        assert {piece.key["strategy"] for piece in first} == {"row_wise", "table_row_wise", "two_tiers", "flexshard"}
    assert len(EXPERIMENT.pieces(True)) < len(EXPERIMENT.pieces(False)) / 4
    assert {piece.key["hosts"] for piece in EXPERIMENT.pieces(False)} == {1, 2, 4, 8, 16, 32, 64}


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
        rows += [{**piece.key, **row} for row in EXPERIMENT.run(piece)]
    (line,) = table_with(EXPERIMENT.page(rows, False), "200 lookups a sample").rows
    assert line[:3] == ["1.1", "-86% · 6.7×", "-85.7% · 6.99×"]
