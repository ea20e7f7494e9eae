"""A topology's links as numbers for compiled code."""

from __future__ import annotations

import numpy as np

from shardwright.search.engine.blocks import Floats
from shardwright.task.topology import Topology


def link_facts(topology: Topology) -> Floats:
    """`(6,)` devices, devices a host, ms a byte inside and between hosts, latency in ms inside and between hosts."""
    near, far = topology.link_bandwidth
    waits = topology.intra_latency_ms, topology.inter_latency_ms
    return np.array([topology.devices, topology.devices_per_host, 1e3 / near, 1e3 / far, *waits])


def link_weights(topology: Topology) -> Floats:
    """`(2,)` ms that a byte of values, and of ids, adds to its holder's slower link in both passes."""
    peers = np.array([topology.devices_per_host - 1, topology.devices - topology.devices_per_host])
    slowest = float((peers / topology.devices / np.array(topology.link_bandwidth)).max()) * 1e3
    return np.array([2 * slowest, slowest])
