"""How replicas of a block agree on its gradient, whole or only the rows that a sample touched, and how many bytes that takes.

See `cost.sequences` for the equations.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from shardwright.cost.flows import ID_BYTES, INTER, INTRA, VALUE_BYTES, Floats
from shardwright.cost.holders import Holders
from shardwright.sharding.work import ShardWork
from shardwright.task.topology import Topology


def distinct_rows(work: ShardWork, lookups: Floats) -> Floats:
    """`(m,)` distinct rows of a block that are expected among `(m,)` numbers of lookups.

    A row of access probability q is in n lookups with probability 1 - exp(-n q). Other than the binomial
    form this does not depend on how a table is cut: the rows of two blocks are those of both together.
    """
    rows = np.diff(work.access.rows)
    mean = np.diff(work.access.share) / rows
    found: Floats = (-np.expm1(-np.multiply.outer(lookups, mean))) @ rows
    return found


def whole_bytes(holders: Holders, gradient: float) -> tuple[Floats, Floats]:
    """`(2, k)` bytes sent, and received, by each holder to agree on a gradient of so many bytes."""
    p, h = holders.beside, holders.hosts
    sent = np.stack([2 * (p - 1) / p * gradient, 2 * (h - 1) / h * gradient / p])
    return sent, sent


def touched_bytes(holders: Holders, topology: Topology, of: Callable[[Floats], Floats]) -> tuple[Floats, Floats]:
    """`(2, k)` bytes sent, and received, by each holder to agree on the touched rows.

    Args:
        holders: the replicas.
        topology: their cluster.
        of: from `(m,)` numbers of devices to the `(m,)` bytes of ids and gradients of the distinct rows that their samples touch.
    """
    p, h = holders.beside, holders.hosts
    own, index = np.unique(holders.served, return_inverse=True)
    by_host, host_index = np.unique(holders.served * p, return_inverse=True)
    found = of(np.concatenate([own, by_host, [topology.devices]]))
    mine, host, all_rows = found[index], found[own.size + host_index], found[-1]
    hosts_together = float((host / p).sum())  # each host counted once
    near = (p - 1) / p * (mine + all_rows)  # the holders of a host serve alike, so they send and receive alike
    sent = (h - 1) / h * (host + all_rows) / p
    received = ((hosts_together - host) / h + (h - 1) / h * all_rows) / p
    return np.stack([near, sent]), np.stack([near, received])


def row_bytes(dim: int) -> int:
    """Bytes of a touched row: its id and its gradient."""
    return ID_BYTES + VALUE_BYTES * dim


def touched_is_cheaper(holders: Holders, topology: Topology, work: ShardWork, lookups: float) -> bool:
    """Whether the touched rows take fewer bytes than all on the link that the replicas wait for: between hosts, where they lie on several.

    Args:
        holders: the replicas.
        topology: their cluster.
        work: the block.
        lookups: of the samples of one device in the block.
    """
    link = INTER if holders.hosts > 1 else INTRA

    def touched(devices: Floats) -> Floats:
        return row_bytes(work.dim) * distinct_rows(work, devices * lookups)

    whole, _ = whole_bytes(holders, float(VALUE_BYTES * work.rows * work.dim))
    return bool(touched_bytes(holders, topology, touched)[0][link].sum() < whole[link].sum())
