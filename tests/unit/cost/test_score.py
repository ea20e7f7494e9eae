"""Bytes by hand for every kind of sharding, on two hosts of two devices with a batch of 8: 2 samples a device."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import shardwright as sw
from shardwright.cost import compute_ms, cost_model_for, device_ms
from shardwright.cost.flows import INTER, INTRA
from shardwright.cost.model import CostModel
from shardwright.cost.score import all_to_all_ms, communication_ms, served_bytes, traffic
from shardwright.errors import InvalidInput
from shardwright.measure.backend import kernel_groups
from shardwright.sharding import Shard, memory_account, shard_work
from shardwright.sharding.shard import even_cuts
from shardwright.task import Exchange, Table, Task, Topology
from shardwright.testing.model import SimpleCostModel
from shardwright.testing.tasks import task_of

MODEL: CostModel = SimpleCostModel()
ONE = shard_work(task_of(1, 1), Shard.whole(task_of(1, 1).tables[0], 0))
MIXED = [
    replace(ONE, samples=samples, dtype=dtype, dim=dim, pooled=pooled)
    for samples in (64, 256)
    for dtype in ("fp32", "fp16")
    for dim in (16, 64)
    for pooled in (True, False)
]


def test_the_parts_of_a_score_add_up_as_defined():
    plan = sw.plan(task_of(10, 4), cost_model=MODEL)
    cost = plan.cost
    phases = np.array(
        [[d.forward_ms, d.forward_communication_ms, d.backward_communication_ms, d.backward_ms] for d in cost.devices]
    )
    assert cost.step_ms == pytest.approx(phases.max(axis=0).sum())
    assert cost.embedding_cost_ms == pytest.approx(phases.sum(axis=1).max())
    assert cost.embedding_cost_ms <= cost.step_ms
    assert [d.memory_bytes for d in cost.devices] == memory_account(plan.task, plan.shards).total.tolist()


def test_shards_of_one_call_are_priced_together_not_one_by_one():
    task = task_of(6, 1)
    shards = [Shard.whole(table, 0) for table in task.tables if table.dtype == "fp32"]
    together = compute_ms(task, shards, MODEL)[0]
    latents = MODEL.encode([shard_work(task, shard) for shard in shards])
    np.testing.assert_allclose(together, MODEL.pricing.price(latents.sum(axis=0)))
    assert not np.isclose(together.sum(), MODEL.pricing.price(latents).sum())


@pytest.mark.slow
@given(st.lists(st.sampled_from(MIXED), max_size=12), st.randoms(use_true_random=False))
def test_a_device_is_the_sum_of_its_fused_calls(works, random):
    """The same groups as the kernels of a device; shards in any order."""
    groups = kernel_groups(works)
    encoded = [MODEL.encode(group.works).sum(axis=0) for group in groups]
    expected = sum((MODEL.pricing.price(sums) for sums in encoded), np.zeros(2))
    np.testing.assert_allclose(device_ms(MODEL, works), expected)
    random.shuffle(works)
    np.testing.assert_allclose(device_ms(MODEL, works), expected)


def test_a_replicated_table_pays_for_a_call_of_its_own_on_every_device():
    task = task_of(6, 2)
    shards = [Shard.whole(table, index % 2) for index, table in enumerate(task.tables)]
    replicated = [*shards[:-1], Shard.whole(task.tables[-1], 0, 1)]
    works = [shard_work(task, shard) for shard in replicated]
    before, after = compute_ms(task, shards, MODEL), compute_ms(task, replicated, MODEL)
    alone = device_ms(MODEL, works[-1:])
    np.testing.assert_allclose(after[0], before[0] + alone)
    assert (alone > MODEL.pricing.price(np.zeros(3))).all()


def test_a_device_type_nobody_knows_is_refused_with_the_remedy():
    with pytest.raises(InvalidInput, match="no cost model for device 'abacus'.*shardwright train"):
        cost_model_for("abacus")
    assert cost_model_for("a100").name == "a100/published"


TOPOLOGY = Topology(
    hosts=2, devices_per_host=2, memory="1 GB", intra_bandwidth="4 GB/s", inter_bandwidth="1 GB/s",
    intra_latency_ms=0.1, inter_latency_ms=0.2,
)  # fmt: skip
POOLED = Table("pooled", rows=16, dim=4, pooling=3)
SEQUENCE = Table("sequence", rows=16, dim=4, pooling=3, pooled=False)


def task_with(table: Table) -> Task:
    return Task([table], TOPOLOGY, batch_size=8)


def test_a_whole_pooled_table_sends_its_pooled_rows_and_gets_ids():
    flow = traffic(task_with(POOLED), [Shard.whole(POOLED, 0)]).forward
    values, ids = 2 * 4 * 4, 2 * (3 + 1) * 8  # of one device's two samples: ids, and the length of each bag
    np.testing.assert_allclose(flow.sent, [[values, ids, 0, 0], [2 * values, 0, ids, ids]])
    np.testing.assert_allclose(flow.received, [[ids, values, 0, 0], [2 * ids, 0, values, values]])


def test_every_feature_of_a_table_has_its_pooled_rows_sent():
    shared = replace(POOLED, pooling=[1.0, 2.0])
    one, two = (traffic(task_with(table), [Shard.whole(table, 0)]) for table in (POOLED, shared))
    values = 2 * 4 * 4
    lengths = 2 * 8
    more = [[values, lengths, 0, 0], [2 * values, 0, lengths, lengths]]
    np.testing.assert_allclose(two.forward.sent - one.forward.sent, more)
    np.testing.assert_allclose(two.backward.sent, 2 * one.backward.sent)


def rows_on(*devices: int, ends: Sequence[int] = (), table: str = "pooled") -> list[Shard]:
    cuts = [0, *ends, 16] if ends else even_cuts(16, len(devices))
    return [Shard(table, rows, (0, 4), (d,)) for rows, d in zip(pairwise(cuts), devices, strict=True)]


def test_rows_dealt_to_all_devices_are_reduced_and_scattered():
    flow = traffic(task_with(POOLED), rows_on(0, 1, 2, 3))
    ids = 2 * (3 / 4 + 1) * 8
    np.testing.assert_allclose(flow.forward.sent, [[ids] * 4, [2 * ids] * 4])
    assert not flow.backward.sent.any()
    values = 8 * 4 * 4  # of all samples
    inside, across = values * 3 / 4 / 4e9, values * 3 / 4 / 2 / 1e9  # the two rings of a host share the crossing
    np.testing.assert_allclose(flow.forward.apart, max(inside, across) * 1e3)
    np.testing.assert_allclose(flow.backward.apart, flow.forward.apart)


def test_rows_dealt_to_a_host_are_reduced_there_and_cross_once():
    flow = traffic(task_with(POOLED), rows_on(2, 3))
    values, ids = 8 * 4 * 4, 2 * (3 / 2 + 1) * 8
    np.testing.assert_allclose(flow.forward.apart, [0, 0, *[values / 2 / 4e9 * 1e3] * 2])
    np.testing.assert_allclose(flow.forward.sent[INTRA], [0, 0, ids, ids])
    np.testing.assert_allclose(flow.forward.sent[INTER], [2 * ids, 2 * ids, values / 2 / 2, values / 2 / 2])
    np.testing.assert_allclose(flow.backward.received[INTER], [0, 0, values / 2 / 2, values / 2 / 2])


@pytest.mark.parametrize("shards", [rows_on(0, 1, 2), rows_on(0, 2), rows_on(0, 1, 2, 3, ends=(3, 8, 12))])
def test_other_row_blocks_send_sums_of_their_own(shards):
    flow = traffic(task_with(POOLED), shards)
    assert not flow.forward.apart.any()
    values = 2 * 4 * 4
    np.testing.assert_allclose(flow.backward.received[INTER, 0], 2 * values)


def test_blocks_as_torchrec_cuts_them_count_as_dealt():
    tall = Table("pooled", rows=18, dim=4, pooling=3)
    shards = [Shard("pooled", (5 * d, min(5 * d + 5, 18)), (0, 4), (d,)) for d in range(4)]
    assert traffic(task_with(tall), shards).forward.apart.all()


def test_types_on_the_wire_scale_values_and_gradients():
    narrow = replace(task_with(POOLED), exchange=Exchange(values="fp16", gradients="fp8"))
    wide, fewer = (traffic(task, [Shard.whole(POOLED, 0)]) for task in (task_with(POOLED), narrow))
    np.testing.assert_allclose(fewer.forward.received[:, 2:], wide.forward.received[:, 2:] / 2)
    np.testing.assert_allclose(fewer.forward.sent[:, 2:], wide.forward.sent[:, 2:])  # ids stay as they are
    np.testing.assert_allclose(fewer.backward.sent, wide.backward.sent / 4)
    dealt, narrow_dealt = (traffic(task, rows_on(0, 1, 2, 3)) for task in (task_with(POOLED), narrow))
    np.testing.assert_allclose(narrow_dealt.forward.apart, dealt.forward.apart / 2)
    np.testing.assert_allclose(narrow_dealt.backward.apart, dealt.backward.apart / 4)


def test_weights_travel_with_the_ids():
    weighted = replace(POOLED, weighted=True)
    plain, with_weights = (traffic(task_with(table), [Shard.whole(table, 0)]).forward for table in (POOLED, weighted))
    np.testing.assert_allclose(with_weights.sent - plain.sent, [[0, 2 * 3 * 4, 0, 0], [0, 0, 2 * 3 * 4, 2 * 3 * 4]])


def test_every_kind_of_sharding_pays_the_latency_of_its_own_collectives():
    other = replace(POOLED, name="other")
    task = Task([POOLED, other], TOPOLOGY, batch_size=8)
    alone = traffic(task, [Shard.whole(POOLED, 0), Shard.whole(other, 1)]).waits
    np.testing.assert_allclose(alone, [4 * 0.2, 0.2])
    cut = [Shard("other", (0, 16), columns, (rank,)) for rank, columns in enumerate([(0, 2), (2, 4)])]
    np.testing.assert_allclose(traffic(task, [Shard.whole(POOLED, 0), *cut]).waits, alone)
    dealt = traffic(task, [*rows_on(0, 1, 2, 3), Shard.whole(other, 1)]).waits
    np.testing.assert_allclose(dealt, [8 * 0.2, 2 * 0.2])
    inside = traffic(task, [*rows_on(0, 1), Shard.whole(other, 1)]).waits
    np.testing.assert_allclose(inside, [8 * 0.2 + 0.1, 2 * 0.2 + 0.1])
    copied = traffic(task, [Shard.whole(POOLED, 0, 1, 2, 3), Shard.whole(other, 1)]).waits
    np.testing.assert_allclose(copied, [4 * 0.2, 2 * 0.2])


def test_collectives_of_the_input_follow_one_another_at_once():
    speeds = {"all_to_all": {"inter": {"latency_ms": 0.2, "bandwidth": "1 GB/s", "following_ms": 0.15}}}
    task = Task([POOLED], replace(TOPOLOGY, links=speeds), batch_size=8)
    np.testing.assert_allclose(traffic(task, [Shard.whole(POOLED, 0)]).waits, [0.2 + 2 * 0.15 + 0.2, 0.2])


@pytest.mark.parametrize("hosts", [1, 2, 4])
def test_devices_of_a_host_slow_one_another_down_but_not_those_of_other_hosts(hosts):
    """Links inside hosts carry four times as much for one sender; whether one device of a host serves, or all of it."""
    links = {"all_to_all": {"intra": {"latency_ms": 0.0, "bandwidth": "1 MB/s", "alone": "4 MB/s"}}}
    topology = Topology(hosts, 4, "cpu", "1 GB", 1e6, 1e12, 0.0, 0.0, links=links)
    tables = [replace(POOLED, name=str(number)) for number in range(4)]
    task = Task(tables, topology, batch_size=8 * hosts)
    served = 3 / 4 / hosts * served_bytes(task, shard_work(task, Shard.whole(tables[0], 0)))[0]

    def ms(*ranks):
        flow = traffic(task, [Shard.whole(table, rank) for table, rank in zip(tables, ranks, strict=True)]).backward
        return all_to_all_ms(task, flow).max()

    assert ms(0, 0, 0, 0) == pytest.approx(4 * served / 4e6 * 1e3)
    assert ms(0, 1, 2, 3) == pytest.approx(served / 1e6 * 1e3)
    assert ms(0, 0, 1, 1) == pytest.approx(served / 1e6 * 1e3)


@pytest.mark.parametrize("per_host", [1, 2])
def test_between_hosts_the_devices_of_a_host_share_its_link(per_host):
    """A host of two devices sends as fast whether one of them serves or both; hosts of one device share the links of receivers."""
    links = {"all_to_all": {"inter": {"latency_ms": 0.0, "bandwidth": "1 MB/s", "alone": "2 MB/s"}}}
    topology = Topology(4 // per_host, per_host, "cpu", "1 GB", 1e12, 1e6, 0.0, 0.0, links=links)
    tables = [replace(POOLED, name=str(number)) for number in range(4)]
    task = Task(tables, topology, batch_size=32)
    far = (4 - per_host) / 4 * served_bytes(task, shard_work(task, Shard.whole(tables[0], 0)))[0]

    def ms(*ranks):
        flow = traffic(task, [Shard.whole(table, rank) for table, rank in zip(tables, ranks, strict=True)]).backward
        return all_to_all_ms(task, flow).max()

    assert ms(0, 0, 0, 0) == pytest.approx(4 * far / 2e6 * 1e3)
    assert ms(0, 0, 1, 1) == pytest.approx(2 * far / (2e6 if per_host == 1 else 1e6) * 1e3)
    assert ms(0, 1, 2, 3) == pytest.approx(far / 1e6 * 1e3)
    if per_host == 2:
        assert ms(0, 0, 2, 2) == ms(0, 1, 2, 3)


def test_sequence_tables_of_each_dim_call_collectives_of_their_own():
    tables = [SEQUENCE, replace(SEQUENCE, name="alike"), replace(SEQUENCE, name="wide", dim=8)]
    task = Task(tables, TOPOLOGY, batch_size=8)
    whole = [Shard.whole(table, rank) for rank, table in enumerate(tables)]
    one_dim = traffic(Task(tables[:2], TOPOLOGY, batch_size=8), whole[:2])
    both = traffic(task, whole)
    np.testing.assert_allclose(both.waits, 2 * one_dim.waits)
    assert both.wait_of_ids == pytest.approx(2 * one_dim.wait_of_ids)
    replicas = [Shard.whole(table, 0, 1, 2, 3) for table in tables]
    np.testing.assert_allclose(traffic(task, replicas).waits, [0.0, 0.2])
    other = replace(task, exchange=Exchange(deduplicate="device"))
    np.testing.assert_allclose(traffic(other, whole).waits, one_dim.waits)


def test_rows_of_sequence_tables_on_all_devices_call_collectives_of_their_own():
    tables = [SEQUENCE, replace(SEQUENCE, name="cut")]
    task = Task(tables, TOPOLOGY, batch_size=8)
    whole, blocks = [Shard.whole(table, 0) for table in tables], rows_on(0, 1, 2, 3, table="cut")
    alone = traffic(task, whole)
    np.testing.assert_allclose(traffic(task, blocks).waits, alone.waits)
    beside = traffic(task, [whole[0], *blocks])
    np.testing.assert_allclose(beside.waits, 2 * alone.waits)
    assert beside.wait_of_ids == pytest.approx(2 * alone.wait_of_ids)
    np.testing.assert_allclose(beside.forward.sent.sum(), alone.forward.sent.sum())
    np.testing.assert_allclose(traffic(task, [whole[0], *rows_on(0, 1, table="cut")]).waits, alone.waits)
    for exchange in (Exchange(deduplicate="device"), Exchange(collectives="shared")):
        other = replace(task, exchange=exchange)
        np.testing.assert_allclose(traffic(other, [whole[0], *blocks]).waits, traffic(other, whole).waits)


def test_shared_collectives_carry_all_tables_at_once():
    speeds = {
        "all_to_all": {"inter": {"latency_ms": 9.0, "bandwidth": "1 MB/s"}},
        "exchange": {"inter": {"latency_ms": 0.2, "bandwidth": "2 MB/s", "following_ms": 0.15}},
    }
    weighted = replace(POOLED, name="weighted", weighted=True)
    tables = [POOLED, weighted, SEQUENCE]
    task = Task(tables, replace(TOPOLOGY, links=speeds), batch_size=8, exchange=Exchange(collectives="shared"))
    rest = [Shard.whole(weighted, 0), Shard.whole(SEQUENCE, 3)]
    for of_pooled in ([Shard.whole(POOLED, 0)], rows_on(0, 1, 2, 3), rows_on(0, 1)):
        np.testing.assert_allclose(traffic(task, [*of_pooled, *rest]).waits, [0.2 + 0.15 + 0.2, 0.2])
    dealt = traffic(task, rows_on(0, 1, 2, 3))
    assert not dealt.forward.apart.any()  # each holder sends its partial sums, of three bags in four
    np.testing.assert_allclose(dealt.forward.sent[INTER], 2 * 2 * 3 / 4 * (4 * 4 + 4))
    ids = traffic(task, [Shard.whole(POOLED, 0)]), traffic(task, [Shard.whole(weighted, 0)])
    np.testing.assert_allclose([of_table.ids.received[INTER, 0] for of_table in ids], [4 * 3 * 4, 4 * 3 * 8])
    assert dealt.milliseconds(task)[0][0] == pytest.approx(1e3 * dealt.forward.busiest[INTER, 0] / 2e6 + 0.55)


def test_the_exchange_is_priced_as_an_all_to_all_until_it_is_measured():
    speeds = {"all_to_all": {"inter": {"latency_ms": 0.4, "bandwidth": "3 MB/s"}}}
    topology = replace(TOPOLOGY, links=speeds)
    assert topology.bandwidth_of("exchange") == topology.bandwidth_of("all_to_all")
    assert topology.latency_of("exchange") == topology.latency_of("all_to_all")


def test_measured_links_price_each_collective():
    speeds = {"reduce_scatter": {"inter": {"latency_ms": 7.0, "bandwidth": "1 MB/s"}}}
    task = Task([POOLED], replace(TOPOLOGY, links=speeds), batch_size=8)
    flow, plain = (traffic(one, rows_on(0, 1, 2, 3)) for one in (task, task_with(POOLED)))
    np.testing.assert_allclose(flow.forward.apart, 8 * 4 * 4 * 3 / 4 / 2 / 1e6 * 1e3)
    np.testing.assert_allclose(flow.waits - plain.waits, [7.0 - 0.2, 0.0])
    np.testing.assert_allclose(flow.backward.apart, plain.backward.apart)


def test_data_parallel_only_reduces_gradients():
    flow = traffic(task_with(POOLED), [Shard.whole(POOLED, 0, 1, 2, 3)])
    assert not flow.forward.sent.any()
    block = 16 * 4 * 4
    np.testing.assert_allclose(
        flow.backward.apart, 2 * 1 / 2 * block / 2 / 1e9 * 1e3
    )  # between hosts, over both links of a host


def test_one_replica_a_host_keeps_lookups_inside_hosts():
    flow = traffic(task_with(SEQUENCE), [Shard.whole(SEQUENCE, 0, 2)])
    values, ids = 2 * 3 * 4 * 4, 2 * 3 * 8
    np.testing.assert_allclose(flow.forward.sent[INTRA], [values, ids, values, ids])
    assert not flow.forward.sent[INTER].any()
    np.testing.assert_allclose(flow.backward.apart, np.array([16 * 4 * 4, 0, 16 * 4 * 4, 0]) / 1e9 * 1e3)


def test_time_is_latencies_plus_bytes_over_bandwidth_of_the_slower_link():
    forward, backward = communication_ms(task_with(POOLED), [Shard.whole(POOLED, 0)])
    values = 2 * 4 * 4
    assert backward[0] == pytest.approx(0.2 + 2 * values / 1e9 * 1e3)
    assert backward[1] == pytest.approx(0.2 + values / 4e9 * 1e3)
    assert forward[0] == pytest.approx(4 * 0.2 + 2 * 64 / 1e9 * 1e3)


def test_a_single_device_sends_nothing():
    task = Task([POOLED], Topology(memory="1 GB"), 8)
    forward, backward = communication_ms(task, [Shard.whole(POOLED, 0)])
    assert forward.tolist() == backward.tolist() == [0.0]
