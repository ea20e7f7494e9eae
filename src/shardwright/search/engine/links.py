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
