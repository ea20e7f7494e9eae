"""Models on our plans are saved and loaded, under the same and under other plans, and train on: real gloo processes, random models."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torchrec", reason="needs TorchRec")

from shardwright.measure.collectives.group import GroupOptions, RankGroup

pytestmark = [pytest.mark.slow, pytest.mark.torchrec]

PROGRAM = (str(Path(__file__).with_name("torchrec_checkpoint_rank.py")),)
TOLERANCE = 1e-5
CASES = 12
OPTIMIZERS = ("sgd", "adagrad", "rowwise_adagrad")


@pytest.mark.parametrize(("world", "near"), [(4, 4), (4, 2)])
def test_checkpoints_load_under_any_plan_and_train_on(world, near, tmp_path):
    """A rank that fails ends the group, so that the others do not wait for it."""
    replies = []
    with RankGroup(GroupOptions(world, program=PROGRAM, timeout_s=300)) as group:
        for case in range(CASES):
            optimizer = OPTIMIZERS[case % len(OPTIMIZERS)]
            request = {
                "seed": case + 100 * near,
                "near": near,
                "optimizer": optimizer,
                "folder": str(tmp_path / str(case)),
            }
            reply = group.ask(request, f"for {request}")
            assert max(reply["differences"].values()) < TOLERANCE, (request, reply)
            assert reply["differences"]["same plan"] == reply["differences"]["other plan"] == 0, (request, reply)
            replies.append(reply)
    assert sum(reply["cut"] for reply in replies) >= CASES / 4  # of the kind that needs care, there are some
    assert sum(reply["changed"] for reply in replies) >= CASES / 2
    assert any(reply["carried"] for reply in replies)
