"""ShardedEmbeddings on real gloo processes, 2 hosts × 2 devices, against an unsharded reference."""

from __future__ import annotations

from dataclasses import replace

import pytest

pytest.importorskip("torch", reason="the runtime needs torch")

import torch
from tests.runtime_cases import (
    KINDS,
    Reference,
    batch,
    close,
    held_rows,
    make_module,
    make_plan,
    one_step,
    rank_maps,
    whole_tables,
)

import shardwright as sw
from shardwright.task.topology import Exchange

STEPS = 3


def train_like_reference(rank, plan, maps):
    """Train the module beside the reference: its outputs have the bits that the reference computes from the same weights."""
    module = make_module(plan, maps)
    tolerance = 2e-3 if any(table.dtype == "fp16" for table in plan.task.tables) else 1e-6
    weights = whole_tables(plan)
    for table in plan.task.tables:
        if table.dtype == "fp16":
            weights[table.name] = weights[table.name].half().float()
    reference = Reference(plan, weights)
    for step in range(STEPS):
        out = one_step(module, rank, step)
        for table in plan.task.tables:
            ids, lengths = batch(rank, step, table.name, table.rows)
            rows = out[table.name]
            assert torch.equal(rows.lengths, lengths)
            if step == 0:
                assert torch.equal(rows.values, weights[table.name][ids]), table.name
            close(rows.values, reference.rows(table.name, ids), tolerance)
        reference.learn(step)
    seen = 0
    for name, pieces in held_rows(module).items():
        for ids, values, _ in pieces:
            close(values, reference.weights[name][ids], tolerance)
            seen += ids.numel()
    return seen


EXCHANGES = [Exchange(way, how) for way in ("none", "device", "host") for how in ("whole", "touched", "cheaper")]


@pytest.mark.slow
@pytest.mark.parametrize("exchange", EXCHANGES, ids=lambda e: f"{e.deduplicate}-{e.replica_gradients}")
@pytest.mark.parametrize("kind", KINDS)
def test_every_plan_and_exchange_trains_like_one_unsharded_table(ranks, kind, exchange):
    optimizer = ("sgd", "rowwise_adagrad", "adagrad", "adam")[(KINDS.index(kind) + EXCHANGES.index(exchange)) % 4]
    plan = make_plan(kind, exchange, optimizer)
    seen = ranks.run(train_like_reference, plan, rank_maps())
    assert sum(seen) == sum(shard.row_count * len(shard.devices) for shard in plan.shards)


@pytest.mark.parametrize("exchange", EXCHANGES[::4], ids=lambda e: f"{e.deduplicate}-{e.replica_gradients}")
@pytest.mark.parametrize("hosts", [1, 4])
def test_one_host_of_four_devices_and_four_hosts_of_one(ranks, hosts, exchange):
    plan = make_plan("tiered", exchange, "adam", hosts=hosts)
    ranks.run(train_like_reference, plan, rank_maps())


@pytest.mark.parametrize("optimizer", ["sgd", "rowwise_adagrad", "adagrad", "adam"])
def test_half_precision_tables_beside_others(ranks, optimizer):
    plan = make_plan("tiered", Exchange("host", "touched"), optimizer, "fp16")
    ranks.run(train_like_reference, plan, rank_maps())


def look_up_what_is_stored(rank, plan, maps):
    """The looked-up rows after some steps, and the stored rows, by table and id."""
    module = make_module(plan, maps)
    for step in range(2):
        one_step(module, rank, step)
    stored = held_rows(module)
    with torch.no_grad():
        out = module({table.name: batch(rank, 7, table.name, table.rows) for table in plan.task.tables})
    return {name: rows.values for name, rows in out.items()}, stored


@pytest.mark.parametrize("way", ["none", "device", "host"])
def test_trained_rows_arrive_with_the_same_bits(ranks, way):
    plan = make_plan("tiered", Exchange(way, "touched"), "adagrad")
    by_rank = ranks.run(look_up_what_is_stored, plan, rank_maps())
    stored = {}
    for _, held in by_rank:
        for name, pieces in held.items():
            for ids, weights, _ in pieces:
                stored.update({(name, row): weight for row, weight in zip(ids.tolist(), weights, strict=True)})
    for rank, (rows, _) in enumerate(by_rank):
        for table in plan.task.tables:
            ids, _ = batch(rank, 7, table.name, table.rows)
            for row, values in zip(ids.tolist(), rows[table.name], strict=True):
                assert torch.equal(values, stored[table.name, row])


@pytest.mark.parametrize("way", ["none", "host"])
@pytest.mark.parametrize("strategy", ["flexshard", "two_tiers", "row_wise"])
def test_plans_of_the_strategies_run(ranks, strategy, way):
    task = replace(
        make_plan("row_wise", Exchange(way, "cheaper"), "rowwise_adagrad").task,
        topology=sw.Topology(2, 2, memory="9 KB"),
    )
    plan = sw.plan(task, strategy=strategy)
    assert strategy == "row_wise" or way == "host" or any(len(shard.devices) > 1 for shard in plan.shards)
    ranks.run(train_like_reference, plan, rank_maps())
