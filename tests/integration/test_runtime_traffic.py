"""The traffic meter against bytes counted from the batches and the design alone, row by row."""

from __future__ import annotations

from collections import defaultdict

import numpy as np
import pytest

pytest.importorskip("torch", reason="the runtime needs torch")

from tests.runtime_cases import HOSTS, NEAR, RANKS, batch, make_module, make_plan, one_step, rank_maps

from shardwright.sharding.shard import RowLayout
from shardwright.task.topology import Exchange

EXCHANGES = [Exchange(way, how) for way in ("none", "device", "host") for how in ("whole", "touched")]


def metered(rank, plan, maps):
    module = make_module(plan, maps)
    one_step(module, rank, 0)
    sent, received = dict(module.traffic.sent), dict(module.traffic.received)
    module.traffic.reset()
    assert module.traffic.total() == 0
    return sent, received


class Counted:
    """Bytes of one step, by rank, phase, kind and link."""

    def __init__(self, plan, maps):
        self.plan, self.maps = plan, maps
        self.sent, self.received = defaultdict(int), defaultdict(int)
        self.way, self.how = plan.task.exchange.deduplicate, plan.task.exchange.replica_gradients
        self.asked_of = defaultdict(set)  # (table, row, rank that sums its gradient) by lookups
        for table in plan.task.tables:
            self.table(table, plan.by_table[table.name])

    def flow(self, phase, kind, source, target, size):
        link = "self" if source == target else "intra" if source // NEAR == target // NEAR else "inter"
        self.sent[source, phase, kind, link] += size
        self.received[target, phase, kind, link] += size

    def asking(self, source, target, dim, own=True):
        """One question: an id there, a row back, a gradient there."""
        if source == target and not own:
            return
        self.flow("forward", "ids", source, target, 8)
        self.flow("forward", "values", target, source, 4 * dim)
        self.flow("backward", "gradients", source, target, 4 * dim)

    def table(self, table, shards):
        shards = sorted(shards, key=lambda shard: shard.rows)
        layout = RowLayout.of(shards)
        ranked = shards[0].row_order == "hotness"
        touched = defaultdict(set)
        asked_by_host = set()
        for rank in range(RANKS):
            ids = batch(rank, 0, table.name, table.rows)[0].numpy()
            rows = self.maps[table.name].ranks(ids) if ranked else ids
            numbers, places = layout.locate(rows)
            looked = list(zip(numbers.tolist(), places.tolist(), strict=True))
            for number, place in looked if self.way == "none" else sorted(set(looked)):
                shard = shards[number]
                holder = self.holder(shard, rank)
                touched[number, holder].add(place)
                if self.way != "host":
                    self.asking(rank, holder, table.dim)
                    continue
                proxy = rank // NEAR * NEAR + holder % NEAR
                self.asking(rank, proxy, table.dim)
                asked_by_host.add((proxy, holder, number, place))
        for proxy, holder, _, _ in asked_by_host:
            self.asking(proxy, holder, table.dim)
        for number, shard in enumerate(shards):
            if len(shard.devices) > 1:
                by_holder = {rank: touched[number, rank] for rank in shard.devices}
                self.whole(table, layout, number, shard) if self.how == "whole" else self.touched(
                    table, layout, number, shard, by_holder
                )

    def holder(self, shard, rank):
        near = [device for device in shard.devices if device // NEAR == rank // NEAR]
        assert near or len(shard.devices) == 1, "a host without a replica: not in these plans"
        return rank if rank in shard.devices else near[0] if near else shard.devices[0]

    def owner(self, layout, number, shard, place):
        """A block with replicas is dealt row by row to its holders: the local ranks first, then the hosts."""
        local = sorted({device % NEAR for device in shard.devices})
        return place // len(local) % HOSTS * NEAR + local[place % len(local)]

    def whole(self, table, layout, number, shard):
        """Each row's gradient: inside the host to the owner's local rank, along the rail to the owner, and back."""
        flags = 4 if self.plan.task.optimizer == "adam" else 0
        for place in range(shard.row_count):
            owner = self.owner(layout, number, shard, place)
            for device in shard.devices:
                self.both_ways(device, self.beside(device, owner), 4 * table.dim + flags)
            for host in range(HOSTS):
                self.both_ways(host * NEAR + owner % NEAR, owner, 4 * table.dim + flags)

    def beside(self, device, owner):
        return device // NEAR * NEAR + owner % NEAR

    def both_ways(self, device, owner, size):
        if device != owner:
            self.flow("backward", "replicas", device, owner, size)
            self.flow("backward", "replicas", owner, device, size)

    def touched(self, table, layout, number, shard, by_holder):
        near = len({device % NEAR for device in shard.devices}) > 1
        size = 8 + 4 * table.dim
        union = set().union(*by_holder.values())
        for place in union:
            owner = self.owner(layout, number, shard, place)
            hosts = {device // NEAR for device in shard.devices if place in by_holder[device]}
            for device in shard.devices:
                if near and place in by_holder[device] and device != self.beside(device, owner):
                    self.flow("backward", "replicas", device, self.beside(device, owner), size)
                if near and device != self.beside(device, owner):
                    self.flow("backward", "replicas", self.beside(device, owner), device, size)
            for host in range(HOSTS):
                middle = host * NEAR + owner % NEAR
                if middle != owner:
                    if host in hosts:
                        self.flow("backward", "replicas", middle, owner, size)
                    self.flow("backward", "replicas", owner, middle, size)

    def of(self, book, rank):
        return {key[1:]: size for key, size in book.items() if key[0] == rank and key[3] != "self" and size}


@pytest.mark.parametrize("exchange", EXCHANGES, ids=lambda e: f"{e.deduplicate}-{e.replica_gradients}")
@pytest.mark.parametrize("kind", ["row_wise", "tiered", "data_parallel"])
def test_the_meter_counts_what_the_design_says(ranks, kind, exchange):
    plan = make_plan(kind, exchange, "adam" if exchange.deduplicate == "device" else "sgd")
    maps = rank_maps()
    counted = Counted(plan, maps)
    for rank, (sent, received) in enumerate(ranks.run(metered, plan, maps)):
        for book, wanted in ((sent, counted.sent), (received, counted.received)):
            sizes = {key: size for key, size in book.items() if key[1] != "counts" and key[2] != "self"}
            assert sizes == counted.of(wanted, rank)


def test_rows_that_stay_are_counted_apart(ranks):
    plan = make_plan("data_parallel", Exchange("none", "whole"))
    lookups = [
        sum(batch(rank, 0, table.name, table.rows)[0].numel() * 4 * table.dim for table in plan.task.tables)
        for rank in range(RANKS)
    ]
    for rank, (sent, _) in enumerate(ranks.run(metered, plan, None)):
        assert sent["forward", "values", "self"] == lookups[rank]
        assert np.sum([size for key, size in sent.items() if key[1] == "values"]) == lookups[rank]
