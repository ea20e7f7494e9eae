"""Which device asks which for a block, and the bytes that this sends over the links of each device.

A device that holds the block asks itself. Another device asks the holders in its host in equal parts, or all holders in equal parts if its
host has none. *Through proxies*, a device in a host without a holder asks, inside its host, the device with the holder's local rank; this
proxy asks the holder on behalf of the whole host.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache
from typing import Literal, TypeAlias

import numpy as np

from shardwright.arrays import Floats, Ints
from shardwright.task.topology import Topology

Phase: TypeAlias = Literal["forward", "backward"]
Kind: TypeAlias = Literal["ids", "values", "gradients", "replicas"]

VALUE_BYTES = 4
ID_BYTES = 8
INTRA, INTER = 0, 1

KINDS: tuple[tuple[Phase, Kind], ...] = (
    ("forward", "ids"),
    ("forward", "values"),
    ("backward", "gradients"),
    ("backward", "replicas"),
)
"""The traffic of a step: ids to the holders, values back, gradients of the values, and gradients that replicas all-reduce."""


@dataclass
class LinkTraffic:
    """Bytes of one pass over the links of each device.

    Attributes:
        sent: `(2, devices)` bytes sent inside the host, and between hosts.
        received: `(2, devices)` bytes received inside the host, and between hosts.
    """

    devices: int
    sent: Floats = field(init=False)
    received: Floats = field(init=False)

    def __post_init__(self) -> None:
        self.sent = np.zeros((2, self.devices))
        self.received = np.zeros((2, self.devices))

    def add(self, sent: Floats, received: Floats) -> None:
        """Add `(2, devices)` bytes sent and received."""
        self.sent += sent
        self.received += received

    def milliseconds(self, topology: Topology) -> Floats:
        """`(devices,)` ms that each device spends in the pass."""
        busiest = np.maximum(self.sent, self.received)
        bandwidth = np.array(topology.link_bandwidth)[:, None]
        latency = np.array([topology.intra_latency_ms, topology.inter_latency_ms])[:, None]
        time: Floats = np.where(busiest > 0, latency + busiest / bandwidth * 1e3, 0.0).max(axis=0)
        return time


@dataclass(frozen=True, eq=False)
class Holders:
    """The k devices that hold a block, and who asks them, in a cluster of `hosts` × `per_host` devices.

    Attributes:
        asks: `(2, devices)` how often each device asks others, by link class, in units of what the samples of one device ask for. Through
            proxies, the unit between hosts is what the samples of one host ask for.
        serves: `(2, devices)` how often each device is asked, in the same units.
        ranks: `(k,)` the holders.
        hosts: number of hosts with a holder.
        beside: `(k,)` number of holders in the host of each holder, itself included.
        served: `(k,)` number of devices whose samples each holder serves, itself included.
    """

    asks: Floats
    serves: Floats
    ranks: Ints
    hosts: int
    beside: Ints
    served: Floats


@lru_cache(maxsize=512)
def holders_of(hosts: int, per_host: int, devices: tuple[int, ...], proxies: bool) -> Holders:
    """The `Holders` for the holding `devices` in a cluster of `hosts` × `per_host` devices."""
    ranks = np.array(devices, dtype=np.int64)
    held = np.bincount(ranks // per_host, minlength=hosts)
    lacking, beside = held == 0, held[ranks // per_host]
    asks, serves = np.zeros((2, hosts, per_host)), np.zeros((2, hosts, per_host))
    asks[INTRA, ~lacking] = 1.0
    asks[INTRA, ranks // per_host, ranks % per_host] = 0.0
    serves[INTRA, ranks // per_host, ranks % per_host] = (per_host - beside) / beside
    share = np.bincount(ranks % per_host, minlength=per_host) / ranks.size  # share of the holders at each local rank
    far = float(lacking.sum())
    if proxies:
        asks[INTER, lacking] = share
        serves[INTRA, lacking] = (per_host - 1) * share
        asks[INTRA, lacking] = 1 - share
    else:
        asks[INTER, lacking] = 1.0
        far *= per_host
    serves[INTER, ranks // per_host, ranks % per_host] = far / ranks.size
    served = per_host / beside + per_host * float(lacking.sum()) / ranks.size
    return Holders(
        asks.reshape(2, -1), serves.reshape(2, -1), ranks, int(hosts - lacking.sum()), beside.astype(np.int64), served
    )


def single_holders(hosts: int, per_host: int, each: Floats, far: Floats, proxies: bool) -> tuple[Floats, Floats]:
    """Bytes over the links for blocks that have a single holder.

    Args:
        hosts: number of hosts.
        per_host: devices per host.
        each: `(devices,)` bytes that the samples of one device ask of each holder.
        far: `(devices,)` bytes that the samples of one device (through proxies: of one host) ask of each holder in another host.
        proxies: whether devices ask through proxies; see the module.

    Returns:
        `(2, devices)` bytes that each device asks for, and `(2, devices)` bytes that it serves, by link class.
    """
    each, far = each.reshape(hosts, per_host), far.reshape(hosts, per_host)
    if proxies:
        rail, far_rail = each.sum(axis=0), far.sum(axis=0)
        inside = np.broadcast_to(rail.sum() - rail, each.shape), np.broadcast_to((per_host - 1) * rail, each.shape)
        between = far_rail - far, (hosts - 1) * far
    else:
        host = each.sum(axis=1, keepdims=True)
        inside = host - each, (per_host - 1) * each
        between = np.broadcast_to(far.sum() - far.sum(axis=1, keepdims=True), far.shape), (hosts - 1) * per_host * far
    asked, served = (np.stack([inside[way].ravel(), between[way].ravel()]) for way in (0, 1))
    return asked, served
