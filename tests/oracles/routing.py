"""The bytes of a step, lookup by lookup: the rules of exchange, followed literally on drawn batches, to test expectations."""

from __future__ import annotations

from collections import defaultdict

import numpy as np

from shardwright.sharding.shard import RowLayout

ID, VALUE = 8, 4


class Meter:
    """Bytes by (phase, kind), link class and device, sent and received."""

    def __init__(self, hosts: int, near: int) -> None:
        self.near = near
        self.sent = defaultdict(lambda: np.zeros((2, hosts * near)))
        self.received = defaultdict(lambda: np.zeros((2, hosts * near)))

    def send(self, key, source, target, size):
        if source == target:
            return
        link = int(source // self.near != target // self.near)
        self.sent[key][link, source] += size
        self.received[key][link, target] += size

    def ask(self, source, target, dim):
        """An id to the holder, the value back, the gradient to it."""
        self.send(("forward", "ids"), source, target, ID)
        self.send(("forward", "values"), target, source, VALUE * dim)
        self.send(("backward", "gradients"), source, target, VALUE * dim)


def step(meter, table, shards, batches, exchange, touched):
    """Route one step.

    Args:
        meter: counts the bytes.
        table: a sequence table.
        shards: of the table, in order of hotness.
        batches: `(devices)` arrays of ranks of rows that the samples of each device look up.
        exchange: the rules.
        touched: the shards whose replicas exchange touched rows.
    """
    layout = RowLayout.of(shards)
    by_rows = {shard.rows: shard for shard in shards}
    located = [layout.locate(batch) for batch in batches]
    for number, rows in enumerate(layout.ranges):
        shard = by_rows[rows]
        asked = [place[ranges == number] for ranges, place in located]
        served = route(meter, shard, asked, exchange)
        if len(shard.devices) > 1:
            (agree_on_touched if shard in touched else agree_on_all)(meter, shard, served)


def route(meter, shard, asked, exchange):
    """Route the lookups of one block; returns the rows whose gradients each holder then has."""
    near, dim = meter.near, shard.dim
    served = {holder: set() for holder in shard.devices}
    through = defaultdict(set)
    for device, rows in enumerate(asked):
        at_host = [holder for holder in shard.devices if holder // near == device // near]
        for row in rows.tolist() if exchange.deduplicate == "none" else np.unique(rows).tolist():
            if device in shard.devices:
                served[device].add(row)
                continue
            if at_host or exchange.deduplicate != "host":
                among = at_host or shard.devices
                holder = among[row % len(among)]
                meter.ask(device, holder, dim)
                served[holder].add(row)
                continue
            holder = shard.devices[row % len(shard.devices)]
            proxy = device // near * near + holder % near
            meter.ask(device, proxy, dim)
            through[proxy, holder].add(row)
    for (proxy, holder), rows in through.items():
        for row in rows:
            meter.ask(proxy, holder, dim)
            served[holder].add(row)
    return served


def agree_on_touched(meter, shard, served):
    """Touched rows to their owner in the host, to their owner among the hosts, and the sums back."""
    near, size, key = meter.near, ID + VALUE * shard.dim, ("backward", "replicas")
    by_host = defaultdict(list)
    for holder in shard.devices:
        by_host[holder // near].append(holder)
    hosts, everywhere = sorted(by_host), set().union(*served.values())
    for host in hosts:
        holders = by_host[host]
        for holder in holders:
            for row in served[holder]:
                meter.send(key, holder, holders[row % len(holders)], size)
        for row in set().union(*(served[holder] for holder in holders)):
            rail = hosts[row // len(holders) % len(hosts)]
            meter.send(key, holders[row % len(holders)], by_host[rail][row % len(holders)], size)
    for row in everywhere:
        rail = by_host[hosts[row // len(by_host[hosts[0]]) % len(hosts)]]
        for host in hosts:
            owner = by_host[host][row % len(by_host[host])]
            meter.send(key, rail[row % len(rail)], owner, size)
            for holder in by_host[host]:
                meter.send(key, owner, holder, size)


def agree_on_all(meter, shard, served):
    """The same with all rows and without ids."""
    near, size, key = meter.near, VALUE * shard.dim, ("backward", "replicas")
    by_host = defaultdict(list)
    for holder in served:
        by_host[holder // near].append(holder)
    hosts = sorted(by_host)
    for row in range(shard.row_count):
        owners = [by_host[host][row % len(by_host[host])] for host in hosts]
        rail = owners[row // len(by_host[hosts[0]]) % len(hosts)]
        for host, owner in zip(hosts, owners, strict=True):
            for holder in by_host[host]:
                meter.send(key, holder, owner, size)
                meter.send(key, owner, holder, size)
            meter.send(key, owner, rail, size)
            meter.send(key, rail, owner, size)
