"""The clusters of `neuroshard-production`: 128 devices, beside which the paper's production model is placed."""

from __future__ import annotations

from dataclasses import dataclass

from shardwright.task.topology import Topology

MAX_DIM = 128
HOSTS, DEVICES_PER_HOST = 16, 8
FILL = 0.5
"""Share of the cluster's memory that the weights take."""


@dataclass(frozen=True)
class World:
    """A cluster and its cost model.

    Attributes:
        name: device type; selects the cost model.
        batch_size: samples per step over all devices.
        about: description for readers of the page.
    """

    name: str
    batch_size: int
    about: str

    @property
    def topology(self) -> Topology:
        """16 hosts of 8 devices."""
        if self.name == "cpu":
            return Topology(
                HOSTS, DEVICES_PER_HOST, "cpu", "16 GB", intra_bandwidth="10 GB/s", inter_bandwidth="5 GB/s"
            )
        return Topology.preset(f"{self.name}-8", hosts=HOSTS)


WORLDS = (
    World("cpu", 1024, "CPU cores, 16 GB each, 10 GB/s inside a host and 5 GB/s between hosts"),
    World("a100", 65_536, "A100s, 68 GB each, with the links of the preset a100-8"),
)
