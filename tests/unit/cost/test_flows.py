"""Expected bytes against batches that were drawn and routed one lookup after another, by rules written down apart."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardwright.cost.flows import INTER, INTRA, KINDS, replica_exchange, traffic_by_kind
from shardwright.cost.score import communication_ms, traffic
from shardwright.sharding import Shard
from shardwright.sharding.shard import dealt_ranges
from shardwright.task import AccessProfile, Exchange, Table, Task, Topology
from tests.oracles.communication import communication_ms as plain_ms
from tests.oracles.communication import traffic as plain
from tests.oracles.routing import Meter, step
from tests.strategies import dense_exchanges, plans, tasks

HOSTS, NEAR, LOOKUPS, STEPS = 3, 2, 60, 100
DEVICES = HOSTS * NEAR
TABLE = Table("s", rows=120, dim=4, pooling=6.0, pooled=False, access=AccessProfile.zipf(120, 1.1))
TASK = Task([TABLE], Topology(HOSTS, NEAR, memory="1 GB"), batch_size=10 * DEVICES)


def dealt(tier, sets):
    ranges = dealt_ranges(tier, len(sets))
    whole = tier if len(sets) > 1 else None
    return [Shard("s", rows, (0, 4), on, "hotness", whole) for rows, on in zip(ranges, sets, strict=True)]


EVERY = tuple(range(DEVICES))
ALONE = [(rank,) for rank in EVERY]
RAILS = [EVERY[rail::NEAR] for rail in range(NEAR)]
PLANS = {
    "cold": dealt((0, 120), ALONE),
    "hot": dealt((0, 120), [EVERY]),
    "warm": dealt((0, 120), RAILS),
    "three tiers": dealt((0, 10), [EVERY]) + dealt((10, 44), RAILS) + dealt((44, 120), ALONE),
    "turned round": dealt((0, 10), [EVERY]) + dealt((10, 44), RAILS[::-1]) + dealt((44, 120), ALONE[2:] + ALONE[:2]),
    "on one device": dealt((0, 120), [(3,)]),
}
ODD = {  # which of several holders a device asks does not matter to whole gradients, to touched rows it does
    "one host": dealt((0, 120), [(2, 3)]),
    "two hosts of three": dealt((0, 120), [(0, 3)]),
    "unequal hosts": dealt((0, 60), [(0, 1, 4)]) + dealt((60, 120), [(5,)]),
}


def simulated(task, shards):
    (table,), exchange, rng, meter = task.tables, task.exchange, np.random.default_rng(0), Meter(HOSTS, NEAR)
    touched = [shard for shard in shards if len(shard.devices) > 1 and replica_exchange(task, shard) == "touched"]
    chance = np.diff(np.interp(np.arange(121), table.access.rows, table.access.share))
    for _ in range(STEPS):
        batches = [rng.choice(120, rng.poisson(LOOKUPS), p=chance / chance.sum()) for _ in EVERY]
        step(meter, table, shards, batches, exchange, touched)
    return meter


def assert_alike(shards, exchange, skew=1.1):
    """Sums over devices agree; with little skew also each device's, since a very hot row makes its block busy."""
    task = replace(TASK, tables=[replace(TABLE, access=AccessProfile.zipf(120, skew))], exchange=exchange)
    meter, expected = simulated(task, shards), traffic_by_kind(task, shards)
    assert set(expected) == set(KINDS)
    for key, flow in expected.items():
        for metered, wanted in ((meter.sent[key] / STEPS, flow.sent), (meter.received[key] / STEPS, flow.received)):
            np.testing.assert_allclose(metered.sum(axis=1), wanted.sum(axis=1), rtol=0.05, err_msg=str(key))
            if skew < 0.5:
                np.testing.assert_allclose(metered, wanted, rtol=0.1, atol=0.02 * wanted.max(), err_msg=str(key))


@pytest.mark.parametrize("gradients", ["whole", "touched", "cheaper"])
@pytest.mark.parametrize("deduplicate", ["none", "device", "host"])
@pytest.mark.parametrize("name", PLANS)
def test_bytes_are_those_of_batches_routed_by_the_rules(name, deduplicate, gradients):
    assert_alike(PLANS[name], Exchange(deduplicate, gradients))


@pytest.mark.parametrize("deduplicate", ["none", "device", "host"])
@pytest.mark.parametrize("name", PLANS | ODD)
def test_bytes_of_every_device_are_right_without_very_hot_rows(name, deduplicate):
    assert_alike((PLANS | ODD)[name], Exchange(deduplicate, "touched" if name in PLANS else "whole"), skew=0.2)


def test_hot_rows_are_exchanged_whole_and_rare_ones_if_touched():
    task = replace(TASK, exchange=Exchange("none", "cheaper"))
    often, seldom = (Shard("s", rows, (0, 4), EVERY, "hotness") for rows in ((0, 5), (100, 120)))
    rare = replace(task, tables=[replace(TABLE, pooling=0.2)])
    assert replica_exchange(task, often) == "whole"
    assert replica_exchange(rare, seldom) == "touched"
    assert replica_exchange(replace(rare, exchange=Exchange()), seldom) == "whole"
    assert replica_exchange(replace(task, exchange=Exchange("none", "touched")), often) == "touched"


def test_deduplication_never_sends_more_between_hosts():
    for shards in PLANS.values():
        none, device, host = (
            traffic(replace(TASK, exchange=Exchange(how)), shards).forward.sent[INTER].sum()
            for how in ("none", "device", "host")
        )
        assert host <= device * (1 + 1e-9) <= none * (1 + 1e-9)


def test_through_proxies_everything_between_hosts_runs_along_rails():
    task = replace(TASK, exchange=Exchange("host"))
    flow = traffic(task, dealt((0, 120), [(3,)])).forward  # local rank 1 of host 1
    assert (flow.sent[INTER] > 0).tolist() == [False, True, False, True, False, True]
    assert (flow.sent[INTRA] > 0).all()


def test_expectations_do_not_depend_on_how_a_table_is_cut():
    task = replace(TASK, exchange=Exchange("host", "touched"))
    one, many = (traffic(task, dealt((0, 120), sets)) for sets in ([EVERY], [EVERY, EVERY, EVERY]))
    np.testing.assert_allclose(one.backward.sent, many.backward.sent, rtol=1e-9)
    np.testing.assert_allclose(one.backward.apart, many.backward.apart, rtol=1e-9)


@pytest.mark.slow
@given(st.data())
@settings(max_examples=60, deadline=None)
def test_collectives_take_what_an_oracle_says(data):
    task = replace(data.draw(tasks(max_tables=3)), exchange=data.draw(dense_exchanges()))
    shards = data.draw(plans(task))
    new, old = traffic(task, shards), plain(task, shards)
    for phase in ("forward", "backward"):
        for way in ("sent", "received", "apart"):
            ours, expected = (getattr(getattr(flows, phase), way) for flows in (new, old))
            np.testing.assert_allclose(ours, expected, rtol=1e-9, atol=1e-9 * expected.max(initial=0.0))
    for ours, expected in zip(communication_ms(task, shards), plain_ms(task, shards), strict=True):
        np.testing.assert_allclose(ours, expected, rtol=1e-9, atol=1e-9 * max(1.0, task.exchange.hidden.total_ms))


@pytest.mark.slow
@given(st.data())
@settings(max_examples=60, deadline=None)
def test_the_exchange_does_not_concern_pooled_tables(data):
    task = data.draw(tasks(max_tables=3))
    task = replace(task, tables=[replace(table, pooled=True) for table in task.tables])
    shards = data.draw(plans(task))
    other = replace(task, exchange=Exchange(data.draw(st.sampled_from(["device", "host"])), "touched"))
    for phase in ("forward", "backward"):
        sent, expected = (getattr(traffic(one, shards), phase).sent for one in (other, task))
        np.testing.assert_array_equal(sent, expected)
