"""Bytes by hand for every kind of sharding, on two hosts of two devices with a batch of 8: 2 samples a device."""

import numpy as np
import pytest

from shardwright.cost.communication import INTER, INTRA, communication_ms, traffic
from shardwright.sharding import Shard
from shardwright.task import Table, Task, Topology

TOPOLOGY = Topology(
    hosts=2, devices_per_host=2, memory="1 GB", intra_bandwidth="4 GB/s", inter_bandwidth="1 GB/s",
    intra_latency_ms=0.1, inter_latency_ms=0.2,
)  # fmt: skip
POOLED = Table("pooled", rows=16, dim=4, pooling=3)
SEQUENCE = Table("sequence", rows=16, dim=4, pooling=3, pooled=False)


def task_of(table: Table) -> Task:
    return Task([table], TOPOLOGY, batch_size=8)


def test_a_whole_pooled_table_sends_its_pooled_rows_and_gets_ids():
    flow = traffic(task_of(POOLED), [Shard.whole(POOLED, 0)]).forward
    values, ids = 2 * 4 * 4, 2 * 3 * 8  # of one device's two samples
    np.testing.assert_allclose(flow.sent, [[values, ids, 0, 0], [2 * values, 0, ids, ids]])
    np.testing.assert_allclose(flow.received, [[ids, values, 0, 0], [2 * ids, 0, values, values]])


def test_gradients_come_back_without_ids():
    flow = traffic(task_of(POOLED), [Shard.whole(POOLED, 0)]).backward
    values = 2 * 4 * 4
    np.testing.assert_allclose(flow.sent, [[0, values, 0, 0], [0, 0, values, values]])
    np.testing.assert_allclose(flow.received, [[values, 0, 0, 0], [2 * values, 0, 0, 0]])


def test_of_a_sequence_table_every_row_travels():
    flow = traffic(task_of(SEQUENCE), [Shard.whole(SEQUENCE, 0)]).backward
    assert flow.received[INTRA, 0] == 2 * 3 * 4 * 4


def test_row_blocks_of_a_pooled_table_send_partial_sums_and_share_the_ids():
    shards = [Shard("pooled", (4 * d, 4 * d + 4), (0, 4), (d,)) for d in range(4)]
    flow = traffic(task_of(POOLED), shards)
    values, ids = 2 * 4 * 4, 2 * 3 * 8 / 4
    np.testing.assert_allclose(flow.forward.sent[INTRA], values + ids)
    np.testing.assert_allclose(flow.forward.received[INTER], 2 * (values + ids))
    np.testing.assert_allclose(flow.backward.sent, flow.backward.received)


def test_column_blocks_share_the_values_and_repeat_the_ids():
    shards = [Shard("pooled", (0, 16), (0, 2), (0,)), Shard("pooled", (0, 16), (2, 4), (1,))]
    flow = traffic(task_of(POOLED), shards)
    assert flow.backward.received[INTER, 0] == 2 * (2 * 2 * 4)
    assert flow.forward.received[INTER, 0] == 2 * (2 * 3 * 8)


def test_data_parallel_only_reduces_gradients():
    flow = traffic(task_of(POOLED), [Shard.whole(POOLED, 0, 1, 2, 3)])
    assert not flow.forward.sent.any()
    block = 16 * 4 * 4
    np.testing.assert_allclose(flow.backward.sent[INTRA], 2 * 1 / 2 * block)
    np.testing.assert_allclose(flow.backward.sent[INTER], 2 * 1 / 2 * block / 2)


def test_one_replica_a_host_keeps_lookups_inside_hosts():
    flow = traffic(task_of(SEQUENCE), [Shard.whole(SEQUENCE, 0, 2)])
    values, ids = 2 * 3 * 4 * 4, 2 * 3 * 8
    np.testing.assert_allclose(flow.forward.sent[INTRA], [values, ids, values, ids])
    assert not flow.forward.sent[INTER].any()
    np.testing.assert_allclose(flow.backward.sent[INTER], [16 * 4 * 4, 0, 16 * 4 * 4, 0])


def test_replicas_on_one_host_serve_the_others_in_equal_parts():
    flow = traffic(task_of(SEQUENCE), [Shard.whole(SEQUENCE, 0, 1)])
    values = 2 * 3 * 4 * 4
    np.testing.assert_allclose(flow.backward.received[INTER], [values, values, 0, 0])
    np.testing.assert_allclose(flow.backward.sent[INTER], [0, 0, values, values])


def test_time_is_latency_plus_bytes_over_bandwidth_of_the_slower_link():
    forward, backward = communication_ms(task_of(POOLED), [Shard.whole(POOLED, 0)])
    values = 2 * 4 * 4
    assert backward[0] == pytest.approx(0.2 + 2 * values / 1e9 * 1e3)
    assert backward[1] == pytest.approx(0.1 + values / 4e9 * 1e3)
    assert (forward > backward).all()


def test_a_single_device_sends_nothing():
    task = Task([POOLED], Topology(memory="1 GB"), 8)
    forward, backward = communication_ms(task, [Shard.whole(POOLED, 0)])
    assert forward.tolist() == backward.tolist() == [0.0]


@pytest.mark.parametrize("kind", ["table_wise", "row_wise", "column_wise", "data_parallel", "warm"])
def test_what_is_sent_is_received(kind):
    shards = {
        "table_wise": [Shard.whole(POOLED, 3)],
        "row_wise": [Shard("pooled", (4 * d, 4 * d + 4), (0, 4), (d,)) for d in range(4)],
        "column_wise": [Shard("pooled", (0, 16), (0, 2), (0,)), Shard("pooled", (0, 16), (2, 4), (2,))],
        "data_parallel": [Shard.whole(POOLED, 0, 1, 2, 3)],
        "warm": [Shard.whole(POOLED, 1, 3)],
    }[kind]
    flow = traffic(task_of(POOLED), shards)
    for one_way in (flow.forward, flow.backward):
        np.testing.assert_allclose(one_way.sent.sum(axis=1), one_way.received.sum(axis=1))
