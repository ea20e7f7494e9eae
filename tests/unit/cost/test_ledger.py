"""Sums of blocks in the fused calls of devices."""

import numpy as np
import pytest

from shardwright.cost.ledger import EncodedBlocks
from shardwright.errors import ShardwrightError
from shardwright.sharding.shard import Shard
from shardwright.sharding.work import shard_work
from shardwright.testing.model import SimpleCostModel
from shardwright.testing.tasks import task_of

TASK = task_of(6, 2)
WORKS = [shard_work(TASK, Shard.whole(table, 0)) for table in TASK.tables]
MODEL = SimpleCostModel()


def test_a_call_is_priced_by_the_sum_of_its_blocks():
    encoded = EncodedBlocks.of(MODEL, WORKS)
    ledger = encoded.ledger(3)
    ledger.add(np.array([0, 0, 1, 1, 1]), np.array([0, 1, 2, 3, 2]))
    sums = np.zeros_like(ledger.sums)
    for holder, block in ((0, 0), (0, 1), (1, 2), (1, 3), (1, 2)):
        sums[holder, encoded.call[block]] += encoded.latents[block]
    np.testing.assert_allclose(ledger.sums, sums)
    expected = np.where(ledger.present[..., None], MODEL.pricing.price(sums), 0.0).sum(axis=1)
    np.testing.assert_allclose(ledger.times(), expected)
    assert (ledger.times()[2] == 0).all()


def test_a_copy_changes_on_its_own():
    ledger = EncodedBlocks.of(MODEL, WORKS).ledger(1)
    other = ledger.copy()
    other.add(np.array([0]), np.array([0]))
    assert not ledger.present.any()
    assert other.times()[0].sum() > ledger.times()[0].sum() == 0


def test_nothing_takes_no_time():
    assert EncodedBlocks.of(MODEL, []).ledger(2).times().tolist() == [[0, 0], [0, 0]]


def test_nan_is_refused_with_the_models_name():
    class Broken(SimpleCostModel):
        def encode_arrays(self, works):
            return super().encode_arrays(works) * np.nan

    ledger = EncodedBlocks.of(Broken("broken"), WORKS).ledger(1)
    ledger.add(np.array([0]), np.array([0]))
    with pytest.raises(ShardwrightError, match="broken"):
        ledger.times()
