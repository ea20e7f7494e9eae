import pytest

pytest.importorskip("torch", reason="policies are learned with torch")

from dataclasses import replace

from experiments.autoshard.kinds import QUICK
from experiments.autoshard.transfer import Transfer
from experiments.entrants import SORTED, Limits
from experiments.learned.tasks import Setting

from shardwright.learned.options import AutoShardOptions, DreamShardOptions

TINY = replace(
    QUICK,
    tables=(5, 7),
    devices=(2, 4),
    unseen=(0.0, 1.0),
    base=Setting(5, 4),
    training_tasks=3,
    tasks=2,
    dreamshard=DreamShardOptions(iterations=1, cost_updates=2, policy_updates=1, collected=4, explored=8, variants=0),
    autoshard=AutoShardOptions(steps=60, unroll=20, batch=1, lag=2, cost_updates=1, scattered=2, variations=0),
)


@pytest.fixture
def tiny(tmp_path):
    return Transfer(small=TINY, folder=tmp_path / "policies", limits=Limits(seconds=0.2))


def rows_of(experiment, pieces):
    return [{**piece.key, **row} for piece in pieces for row in experiment.run(piece)]


def trained(experiment, strategy):
    return [
        piece
        for piece in experiment.pieces(quick=True)
        if piece.key["strategy"] == strategy and "unseen" in piece.key["trained"]
    ]


def test_pieces_are_unique_and_begin_with_what_needs_no_training():
    pieces = Transfer().pieces(quick=False)
    assert len({tuple(piece.key.values()) for piece in pieces}) == len(pieces) == 6 + 2 + 2 * 14
    assert [piece.key["strategy"] for piece in pieces[:6]] == ["random", *SORTED, "certified"]
    policies = [piece.key for piece in pieces[8:]]
    assert [key["strategy"] for key in policies] == ["dreamshard", "autoshard"] * 14
    assert len(Transfer().pieces(quick=True)) < 25
    assert len(Transfer(seeds=2).pieces(quick=False)) == 8 + 2 * 2 * 14


def test_versions_change_with_training_and_testing():
    def versions(scale):
        return {tuple(piece.key.values())[:3]: piece.version for piece in Transfer(small=scale).pieces(quick=True)}

    one = versions(TINY)
    longer = versions(replace(TINY, autoshard=replace(TINY.autoshard, steps=80)))
    assert {strategy for strategy, *rest in one if one[strategy, *rest] != longer[strategy, *rest]} == {"autoshard"}
    assert one["autoshard", "bundled", 0] == longer["autoshard", "bundled", 0]
    assert not set(versions(replace(TINY, tasks=3)).values()) & set(one.values())


@pytest.mark.parametrize("strategy", ["dreamshard", "autoshard"])
def test_a_policy_is_trained_once_and_tested_on_every_kind(tiny, strategy):
    piece = trained(tiny, strategy)[0]
    first = tiny.run(piece)
    (path,) = tiny.folder.glob("*.safetensors")
    assert path.name.startswith(f"{strategy}-5x4-unseen0-seed0-")
    assert not list(tiny.folder.glob("*.checkpoint"))
    made = path.stat().st_mtime_ns
    second = tiny.run(piece)
    bundled = next(
        one for one in tiny.pieces(quick=True) if (one.key["strategy"], one.key["trained"]) == (strategy, "bundled")
    )
    assert [row["step_ms"] for row in tiny.run(bundled)] != [row["step_ms"] for row in first], (
        "it places by its own policy"
    )
    assert path.stat().st_mtime_ns == made
    assert [row["step_ms"] for row in second] == [row["step_ms"] for row in first]
    assert [(row["tested"], row["task"]) for row in first] == [
        (kind.name, task) for kind in TINY.tested for task in range(2)
    ]
    assert all(row["training_s"] > 0 and row["policy"] == first[0]["policy"] for row in first)


def test_kinds_are_trained_on_their_own_tasks(tiny):
    for piece in trained(tiny, "dreamshard"):
        tiny.run(piece)
    assert len({path.read_bytes() for path in tiny.folder.glob("*.safetensors")}) == len(TINY.trained) == 4


@pytest.mark.slow
def test_the_page(tiny):
    pytest.importorskip("matplotlib", reason="pages have pictures")
    pieces = [*tiny.pieces(quick=True)[:8], *trained(tiny, "dreamshard")]
    rows = rows_of(tiny, pieces)
    assert len({tuple(row) for row in rows}) == 1, "all rows have the same columns"
    found = tiny.page(rows, quick=True)
    tables = {one.caption: one for one in found.tables}
    matrix = next(one for caption, one in tables.items() if caption.startswith("dreamshard, numbers of tables"))
    cells = {row[0]: row[1:] for row in matrix.rows}
    assert cells["5 tables"][0] == cells["7 tables"][1] == "+0.0%"
    assert all("%" in cell for name in ("*random*", "*certified*", "*bundled policy*") for cell in cells[name])
    empty = next(one for caption, one in tables.items() if caption.startswith("autoshard, numbers of tables"))
    assert {row[0]: row[1:] for row in empty.rows}["5 tables"] == ("–", "–")
    assert [row[:2] for row in tables["Training, one thread, simulated costs."].rows] == [
        ("dreamshard", 4),
        ("autoshard", 0),
    ]
    assert any("hardly trained" in each for each in found.text)


def test_a_page_of_nothing():
    pytest.importorskip("matplotlib", reason="pages have pictures")
    found = Transfer().page([], quick=False)
    assert not any("nan" in str(cell) for one in found.tables for row in one.rows for cell in row)
    assert not any("hardly trained" in each for each in found.text)
