"""Coefficients of tiers against the bytes of plans that hold all rows in one tier."""

import itertools

import numpy as np
import pytest
from scipy.optimize import linprog

from shardwright.cost.flows import traffic_by_kind
from shardwright.cost.score import traffic
from shardwright.search.flexshard.bound import Limits, TierRelaxation, rates_of, ways_of
from shardwright.sharding import Shard, memory_account, shard_work
from shardwright.sharding.memory import gradient_bytes
from shardwright.sharding.shard import dealt_ranges
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
    flows, replicas = traffic(task, shards), traffic_by_kind(task, shards)["backward", "replicas"]
    per_byte = 1e3 / np.array(task.topology.link_bandwidth)
    sent = np.concatenate([flow.sent.mean(axis=1) * per_byte for flow in (flows.forward, flows.backward, replicas)])
    ms = rates.ms[way].sum(axis=0)
    if tier == "host" and exchange.replica_gradients == "touched":
        assert (ms <= sent * (1 + 1e-9)).all()
    else:
        np.testing.assert_allclose(ms, sent, rtol=1e-9)


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


def written_out(rates, limits):
    """Rows of every segment in every way, and two times."""
    ways, count = rates.bytes.shape
    ms = (rates.ms / rates.rows[None, :, None]).reshape(ways * count, 6).T
    per_row = [(terms / rates.rows).ravel() for terms in (rates.bytes, rates.each)]
    times = -np.repeat(np.eye(3), 2, axis=0)
    above = [np.hstack([ms, times]), np.append(per_row[0], np.zeros(3))[None]]
    most = [*-limits.waits, limits.memory]
    if limits.each is not None:
        above.append(np.append(per_row[1], np.zeros(3))[None])
        most.append(limits.each)
    held = np.hstack([np.tile(np.eye(count), ways), np.zeros((count, 3))])
    cost = np.append(np.zeros(ways * count), np.ones(3))
    bounds = [(0, None)] * (ways * count) + [(None, None)] * 3
    return linprog(
        cost, A_ub=np.vstack(above), b_ub=most, A_eq=held, b_eq=rates.rows, bounds=bounds, method="highs"
    ).fun


@pytest.mark.parametrize("each", [None, 4000.0])
@pytest.mark.parametrize("exchange", [Exchange(), Exchange("device", "cheaper"), Exchange("host", "touched")])
@pytest.mark.parametrize("factor", [1.02, 1.3, 3.0])
def test_the_mixture_is_the_best_there_is(exchange, factor, each):
    task = task_of(0.7, 1.2, exchange=exchange)
    rates = rates_of(task, task.tables, ("cold", "hot", "warm", "host"))
    memory = factor * float(rates.bytes[0].sum())
    limits = Limits(memory, each, np.array([0.01, 0.02, 0.0, 0.3, 0.1, 0.05]))
    mixture, best = TierRelaxation(rates).solve(limits), written_out(rates, limits)
    assert mixture.bound_ms <= best * (1 + 1e-7)
    assert mixture.ms == pytest.approx(best, rel=1e-3)
    assert mixture.bound_ms == pytest.approx(best, rel=1e-3)
    np.testing.assert_allclose(mixture.rows.sum(axis=0), rates.rows)
    assert (rates.bytes / rates.rows * mixture.rows).sum() <= memory * (1 + 1e-6)


def test_too_little_memory_has_no_mixture():
    task = task_of(1.0)
    rates = rates_of(task, task.tables)
    assert TierRelaxation(rates).solve(Limits(float(rates.bytes[0].sum()) - 1, None, np.zeros(6))) is None


def test_places_that_are_the_same_are_one_way():
    tiers = ("cold", "hot", "warm", "host")
    assert [way.tier for way in ways_of(task_of(1.0), tiers)] == list(tiers)
    assert [way.tier for way in ways_of(task_of(1.0, hosts=1), tiers)] == ["cold", "hot"]
    assert [way.tier for way in ways_of(task_of(1.0, near=1), tiers)] == ["cold", "hot"]
    cheaper = ways_of(task_of(1.0, exchange=Exchange("none", "cheaper")), ("cold", "hot"))
    assert [(way.tier, way.touched) for way in cheaper] == [("cold", False), ("hot", False), ("hot", True)]
