"""Coefficients of tiers against the bytes of plans that hold all rows in one tier."""

import itertools

import numpy as np
import pytest

from shardwright.cost.score import traffic
from shardwright.search.flexshard.rates import rates_of
from shardwright.sharding import Shard, memory_account, shard_work
from shardwright.sharding.layout import dealt_ranges
from shardwright.sharding.memory import gradient_bytes
from shardwright.task import Exchange
from tests.unit.search.flexshard.made import task_of

EXCHANGES = [Exchange(*how) for how in itertools.product(("none", "device", "host"), ("whole", "touched"))]
SETS = {
    "cold": [(rank,) for rank in range(8)],
    "warm": [(rank, 4 + rank) for rank in range(4)],
    "hot": [tuple(range(8))],
    "host": [tuple(range(4))],
}


def held_in(task, tier):
    """All tables in one tier."""
    rows, sets = task.tables[0].rows, SETS[tier]
    whole = (0, rows) if len(sets) > 1 else None
    return [
        Shard(table.name, part, (0, table.dim), devices, "hotness", whole)
        for table in task.tables
        for part, devices in zip(dealt_ranges((0, rows), len(sets)), sets, strict=True)
    ]


@pytest.mark.parametrize("exchange", EXCHANGES, ids=lambda one: f"{one.deduplicate}-{one.replica_gradients}")
@pytest.mark.parametrize("tier", SETS)
def test_a_tier_costs_what_its_plan_sends(tier, exchange):
    """Of touched rows on one host the coefficients are a lower bound: there a replica serves other devices too."""
    task = task_of(0.8, 1.2, exchange=exchange, rows=4000)
    rates, shards = rates_of(task, task.tables, ("cold", "hot", "warm", "host")), held_in(task, tier)
    (way,) = rates.of_tier(tier)
    flows = traffic(task, shards)
    per_byte = 1e3 / np.array(task.topology.link_bandwidth)
    sent = np.concatenate([flow.sent.mean(axis=1) * per_byte for flow in (flows.forward, flows.backward)])
    found = rates.ms[way].sum(axis=0)
    if tier == "host" and exchange.replica_gradients == "touched":
        assert (found <= sent * (1 + 1e-9)).all()
    else:
        np.testing.assert_allclose(found, sent, rtol=1e-9)


@pytest.mark.parametrize("tier", SETS)
def test_a_tier_takes_the_memory_of_its_rows(tier):
    task = task_of(0.8, 1.2, rows=4000)
    rates, shards = rates_of(task, task.tables, ("cold", "hot", "warm", "host")), held_in(task, tier)
    (way,) = rates.of_tier(tier)
    account = memory_account(task, shards)
    rows = account.weights + account.optimizer
    for shard in shards:
        rows[list(shard.devices)] += gradient_bytes(task, shard_work(task, shard), len(shard.devices))
    assert rates.bytes[way].sum() == pytest.approx(rows.sum())
    if tier in ("warm", "hot"):
        assert rates.each[way].sum() == pytest.approx(rows[0])
    else:
        assert rates.each[way].sum() == 0
