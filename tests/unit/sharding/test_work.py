import itertools
from dataclasses import replace

import numpy as np
import pytest

from shardwright.sharding import Shard, shard_work
from shardwright.sharding.work import call_of
from shardwright.task import AccessProfile, Table, Task, Topology

TABLE = Table("t", 1000, 16, 5.0, access=AccessProfile.zipf(1000, 1.1), dtype="fp16")
TASK = Task([TABLE], Topology(hosts=2, devices_per_host=2), batch_size=100)


def test_a_whole_table() -> None:
    work = shard_work(TASK, Shard.whole(TABLE, 1))
    assert (work.rows, work.dim, work.samples, work.lookups) == (1000, 16, 100, 500)
    assert work.pooling == 5
    assert work.pooled
    assert work.access == TABLE.access
    assert work.weight_bytes == 32_000


def test_a_row_block_by_id_gets_its_part_of_rows_hot_and_cold() -> None:
    work = shard_work(TASK, Shard("t", (900, 1000), (0, 16), (0,)))
    assert work.lookups == pytest.approx(50)
    assert work.access == TABLE.access.thinned(100)
    assert work.pooling == pytest.approx(0.5)


def test_a_row_block_by_hotness_gets_the_lookups_of_its_rows() -> None:
    hot = shard_work(TASK, Shard("t", (0, 100), (0, 16), (0,), "hotness"))
    cold = shard_work(TASK, Shard("t", (100, 1000), (0, 16), (0,), "hotness"))
    assert hot.lookups == pytest.approx(500 * TABLE.access.share_of(0, 100))
    assert hot.lookups > cold.lookups > 0
    assert hot.access == TABLE.access.block(0, 100)


def test_replicas_share_the_samples() -> None:
    work = shard_work(TASK, Shard.whole(TABLE, 0, 1, 2))
    assert work.samples == 34  # 100 / 3, rounded up
    assert work.lookups == pytest.approx(500 / 3)
    assert work.rows == 1000


def test_each_feature_has_bags_of_its_own() -> None:
    shared = Table("t", 1000, 16, [1.0, 3.0])
    task = Task([shared], TASK.topology, batch_size=100)
    work = shard_work(task, Shard("t", (0, 500), (0, 16), (0, 1)))
    assert (work.samples, work.bags, work.outputs, work.lookups) == (50, 100, 100, 100)
    assert (work.feature_shares, work.pooling) == ((0.25, 0.75), 2)
    assert call_of(work).samples == 50  # as those of tables with one feature
    sequences = Task([replace(shared, pooled=False)], TASK.topology, batch_size=100)
    assert shard_work(sequences, Shard.whole(shared, 0)).outputs == 400


@pytest.mark.parametrize("order", ["id", "hotness"])
def test_lookups_of_row_blocks_sum_to_the_whole(order: str) -> None:
    cuts = [0, 1, 17, 500, 1000]
    works = [
        shard_work(TASK, Shard("t", (start, stop), (0, 16), (0,), order))  # type: ignore[arg-type]
        for start, stop in itertools.pairwise(cuts)
    ]
    whole = shard_work(TASK, Shard.whole(TABLE, 0))
    assert sum(work.lookups for work in works) == pytest.approx(whole.lookups)
    assert sum(work.rows for work in works) == whole.rows
    seen = np.sum([work.access.reuse(work.lookups)[0] for work in works], axis=0)
    assert seen == pytest.approx(whole.access.reuse(whole.lookups)[0], rel=1e-6)


def test_row_blocks_by_id_count_as_the_busiest_of_their_size() -> None:
    """A step waits for the device that holds it; hot blocks of several tables meet there."""
    ordered = replace(TABLE, id_shares=[0.6, 0.2, 0.1, 0.1])
    task = replace(TASK, tables=[ordered])
    first, last = (shard_work(task, Shard("t", rows, (0, 16), (0,))) for rows in ((0, 250), (750, 1000)))
    assert first == last
    assert first.lookups == pytest.approx(0.6 * 500)
    assert first.access == TABLE.access.thinned(250)
    assert first.row_share == 0.25
    assert shard_work(task, Shard.whole(ordered, 0)) == shard_work(TASK, Shard.whole(TABLE, 0))
    hot = Shard("t", (0, 100), (0, 16), (0,), "hotness")
    assert shard_work(task, hot) == shard_work(TASK, hot)
