"""Bytes of a pass over the links of each device, and the time they take."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from shardwright.task.topology import Topology

Floats: TypeAlias = npt.NDArray[np.float64]
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
"""What travels in a step: ids to the holders, values back, gradients of the values, gradients that replicas agree on."""


@dataclass
class LinkTraffic:
    """Bytes of one pass over the links of each device.

    Attributes:
        sent: `(2, devices)` bytes sent inside the host and between hosts.
        received: `(2, devices)` bytes received likewise.
    """

    devices: int
    sent: Floats = field(init=False)
    received: Floats = field(init=False)

    def __post_init__(self) -> None:
        self.sent = np.zeros((2, self.devices))
        self.received = np.zeros((2, self.devices))

    def add(self, sent: Floats, received: Floats) -> None:
        """Book further `(2, devices)` bytes."""
        self.sent += sent
        self.received += received

    def milliseconds(self, topology: Topology) -> Floats:
        """`(devices,)` ms that each device spends in the pass."""
        busiest = np.maximum(self.sent, self.received)
        bandwidth = np.array(topology.link_bandwidth)[:, None]
        latency = np.array([topology.intra_latency_ms, topology.inter_latency_ms])[:, None]
        time: Floats = np.where(busiest > 0, latency + busiest / bandwidth * 1e3, 0.0).max(axis=0)
        return time
