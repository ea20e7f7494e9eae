"""Choose a host for each tower, and for each table that may only have column blocks inside one host.

A sharded tower exchanges embeddings inside one host, so all of its tables lie there. TorchRec's planner places them together by
`ShardingOption.dependency`. Outputs of a sharded `EmbeddingTowerCollection` come host by host, for any order of its towers: the hosts of
its towers therefore ascend, so that outputs have the same order with and without sharding.

Hosts are chosen before the search, and its bound holds for this choice.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

import numpy as np

from shardwright.arrays import Floats
from shardwright.task.table import Table
from shardwright.task.topology import Topology

_TOO_FULL = 100.0  # penalty of a host that has too little room


def chosen_hosts(tables: Sequence[Table], towers: Mapping[str, tuple[str, str]], topology: Topology) -> dict[str, int]:
    """A host for each table of some towers, one for all tables of a tower.

    The load of a host is the share of its memory that its towers fill, and their share of the values that all towers look up, as a multiple
    of the mean. For each module, those with the largest weights first, the hosts with the least sum of squared loads are chosen.

    Args:
        tables: all tables, those of a module's first tower first.
        towers: module and tower by name of the table, for tables that need a host.
        topology: the cluster.

    Returns:
        The host by name of the table.
    """
    modules: dict[str, dict[str, list[Table]]] = defaultdict(lambda: defaultdict(list))
    for table in tables:
        if table.name in towers:
            module, tower = towers[table.name]
            modules[module][tower].append(table)
    by_size = sorted(modules.values(), key=lambda of_module: -sum(_held(tables) for tables in of_module.values()))
    looked_up = sum(_looked_up(tables) for of_module in by_size for tables in of_module.values())
    room = np.array(topology.memory_bytes, dtype=float).reshape(topology.hosts, -1).sum(axis=1)
    filled, busy = np.zeros(topology.hosts), np.zeros(topology.hosts)
    hosts: dict[str, int] = {}
    for of_module in by_size:
        held = np.array([_held(tables) for tables in of_module.values()], dtype=float)
        values = np.array([_looked_up(tables) for tables in of_module.values()]) * topology.hosts / looked_up
        for tables_of, host, more, work in zip(
            of_module.values(), _ascending(held, values, filled, busy, room), held, values, strict=True
        ):
            filled[host] += more
            busy[host] += work
            hosts |= {table.name: host for table in tables_of}
    return hosts


def _held(tables: Sequence[Table]) -> int:
    return sum(table.weight_bytes for table in tables)


def _looked_up(tables: Sequence[Table]) -> float:
    return sum(table.pooling * table.dim for table in tables)


def _load(filled: Floats, busy: Floats, room: Floats | float) -> Floats:
    """Loads of hosts; high for a host with too little room."""
    full = filled / room
    loads: Floats = (busy + full) * np.where(full > 1, _TOO_FULL, 1.0)
    return loads


def _ascending(held: Floats, values: Floats, filled: Floats, busy: Floats, room: Floats) -> list[int]:
    """`(towers,)` hosts, ascending, for which the sum of squared loads is least."""
    if held.size == 1:
        after, before = _load(filled + held, busy + values, room), _load(filled, busy, room)
        return [int((after**2 - before**2).argmin())]
    bytes_before, values_before = (np.concatenate([[0.0], np.cumsum(each)]) for each in (held, values))
    towers = held.size + 1
    least = np.where(np.arange(towers) == 0, 0.0, np.inf)  # for each number of towers, on the hosts so far
    firsts = np.zeros((filled.size, towers), dtype=int)  # the first tower of each host
    for host in range(filled.size):
        own, work = bytes_before[:, None] - bytes_before, values_before[:, None] - values_before
        loads = _load(filled[host] + own, busy[host] + work, room[host])
        sums = np.where(np.tri(towers, dtype=bool), least + loads**2, np.inf)  # towers behind × towers before
        firsts[host] = held.size - sums[:, ::-1].argmin(
            axis=1
        )  # of equal sums, the one with fewest towers on later hosts
        least = sums.min(axis=1)
    hosts, stop = [0] * held.size, held.size
    for host in reversed(range(filled.size)):
        hosts[firsts[host, stop] : stop] = [host] * (stop - firsts[host, stop])
        stop = firsts[host, stop]
    return hosts
