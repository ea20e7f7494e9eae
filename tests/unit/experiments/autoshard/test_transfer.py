import pytest

pytest.importorskip("torch", reason="policies are learned with torch")

from dataclasses import replace

from experiments.autoshard.kinds import QUICK
from experiments.autoshard.transfer import Transfer
from experiments.entrants import Limits
from experiments.learned.tasks import Setting

from shardwright.learned.options import PricedAutoShard, PricedDreamShard

TINY = replace(
    QUICK, tables=(5, 7), devices=(2, 4), unseen=(0.0, 1.0), base=Setting(5, 4), training_tasks=3, tasks=2,
    dreamshard=PricedDreamShard(rounds=2, tasks=1, episodes=2),
    autoshard=PricedAutoShard(rounds=2, tasks=1, episodes=2),
)  # fmt: skip


@pytest.fixture
def tiny(tmp_path):
    return Transfer(small=TINY, folder=tmp_path / "policies", limits=Limits(seconds=0.2))


def trained(experiment, strategy):
    return [
        piece
        for piece in experiment.pieces(quick=True)
        if piece.key["strategy"] == strategy and "unseen" in piece.key["trained"]
    ]


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
