"""Bytes by hand: rows 10, dim 8, pooling 3, batch 6 on two devices."""

from dataclasses import replace

import pytest

from shardwright.sharding import Shard, memory_account, shard_bytes, shard_work
from shardwright.sharding.memory import gradient_bytes
from shardwright.task import Exchange, Table, Task, Topology


def task_of(optimizer="rowwise_adagrad", **changes) -> Task:
    table = Table(**{"name": "t", "rows": 10, "dim": 8, "pooling": 3.0, **changes})
    return Task([table], Topology(devices_per_host=2), batch_size=6, optimizer=optimizer)


@pytest.mark.parametrize(
    ("optimizer", "state"),
    [("sgd", 0), ("rowwise_adagrad", 10 * 4), ("adagrad", 10 * 8 * 4), ("adam", 10 * 8 * 8)],
)
def test_whole_pooled_table(optimizer, state):
    account = memory_account(task_of(optimizer), [Shard("t", (0, 10), (0, 8), (1,))])
    assert account.weights.tolist() == [0, 10 * 8 * 4]
    assert account.optimizer.tolist() == [0, state]
    assert account.buffers.tolist() == [0, 8 * (18 + 7) + 2 * 4 * 8 * 6]
    assert account.total[1] == shard_bytes(task_of(optimizer), Shard("t", (0, 10), (0, 8), (1,)))


def test_sequence_table_buffers_hold_every_row_looked_up():
    account = memory_account(task_of(pooled=False), [Shard("t", (0, 10), (0, 8), (0,))])
    assert account.buffers[0] == 8 * (18 + 7) + 2 * 4 * 8 * 18


@pytest.mark.parametrize(("pooled", "outputs"), [(True, 3 * 6), (False, 18)])
def test_features_that_share_a_table_have_outputs_of_their_own(pooled, outputs):
    account = memory_account(task_of(pooling=[0.5, 0.5, 2.0], pooled=pooled), [Shard("t", (0, 10), (0, 8), (0,))])
    assert account.buffers[0] == 8 * (18 + 3 * 6 + 1) + 2 * 4 * 8 * outputs


def test_half_precision_weights_keep_full_precision_state():
    account = memory_account(task_of("adagrad", dtype="fp16"), [Shard("t", (0, 10), (0, 8), (0,))])
    assert (account.weights[0], account.optimizer[0]) == (160, 320)


def test_replicas_hold_all_weights_and_their_part_of_the_batch():
    account = memory_account(task_of(), [Shard("t", (0, 10), (0, 8), (0, 1))])
    assert account.weights.tolist() == [320, 320]
    assert account.buffers.tolist() == [8 * (9 + 4) + 2 * 4 * 8 * 3 + 4 * 10 * 8] * 2  # with a gradient of all rows


@pytest.mark.parametrize(("pooled", "size"), [(True, 2), (False, 4)])
def test_gradients_of_half_precision_weights_are_fp32_in_our_own_runtime_only(pooled, size):
    task, shard = task_of(dtype="fp16", pooled=pooled), Shard("t", (0, 10), (0, 8), (0, 1))
    assert gradient_bytes(task, shard_work(task, shard), 2) == size * 10 * 8


@pytest.mark.parametrize(("way", "gradient"), [("whole", 4 * 10 * 8), ("touched", 0), ("cheaper", 0)])
def test_replicas_of_sequences_hold_a_whole_gradient_if_they_reduce_one(way, gradient):
    task = replace(task_of(pooled=False), exchange=Exchange(replica_gradients=way))
    account = memory_account(task, [Shard("t", (0, 10), (0, 8), (0, 1))])
    assert account.buffers.tolist() == [8 * (9 + 4) + 2 * 4 * 8 * 9 + gradient] * 2


def test_rows_of_int8_weights_have_a_scale_and_a_bias():
    columns = [Shard("t", (0, 10), (0, 4), (0,)), Shard("t", (0, 10), (4, 8), (1,))]
    assert memory_account(task_of(dtype="int8"), [Shard("t", (0, 10), (0, 8), (0,))]).weights.tolist() == [10 * 16, 0]
    assert memory_account(task_of(dtype="int8"), columns).weights.tolist() == [10 * 12] * 2


def test_row_blocks_share_lookups_but_not_outputs():
    account = memory_account(task_of(), [Shard("t", (0, 5), (0, 8), (0,)), Shard("t", (5, 10), (0, 8), (1,))])
    assert account.weights.tolist() == [160, 160]
    assert account.optimizer.tolist() == [20, 20]
    assert account.buffers.tolist() == [8 * (9 + 7) + 2 * 4 * 8 * 6] * 2


def test_column_blocks_each_keep_row_wise_state():
    account = memory_account(task_of(), [Shard("t", (0, 10), (0, 4), (0,)), Shard("t", (0, 10), (4, 8), (1,))])
    assert account.optimizer.tolist() == [40, 40]


@pytest.mark.parametrize(("pipeline", "more"), [("none", 0), ("sparse_dist", 1), ("prefetch", 2)])
@pytest.mark.parametrize("weighted", [False, True])
def test_a_pipeline_holds_the_ids_of_several_batches(pipeline, more, weighted):
    table = Table("t", 1000, 8, 3.0, weighted=weighted)
    one, several = (
        Task([table], Topology(devices_per_host=2, memory="1 GB"), 64, exchange=Exchange(pipeline=name))
        for name in ("none", pipeline)
    )
    shard = Shard.whole(table, 0)
    inputs = (12 if weighted else 8) * 3 * 64 + 8 * 65
    assert shard_bytes(several, shard) - shard_bytes(one, shard) == more * inputs
    assert shard_bytes(one, shard) == 1000 * 8 * 4 + 4 * 1000 + inputs + 2 * 4 * 8 * 64
