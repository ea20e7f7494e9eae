"""The topology as it stands in task files."""

from __future__ import annotations

from typing import Any

from msgspec import UNSET, Struct, UnsetType

from shardwright.schema import Place, convert, given
from shardwright.task.file_tables import plain
from shardwright.task.topology import Topology


class _TopologyFile(Struct, forbid_unknown_fields=True):
    preset: str | UnsetType = UNSET
    hosts: int | UnsetType = UNSET
    devices_per_host: int | UnsetType = UNSET
    device: str | UnsetType = UNSET
    memory: int | float | str | list[int | float | str] | UnsetType = UNSET
    intra_bandwidth: int | float | str | UnsetType = UNSET
    inter_bandwidth: int | float | str | UnsetType = UNSET
    intra_latency_ms: float | UnsetType = UNSET
    inter_latency_ms: float | UnsetType = UNSET


def topology_from_dict(content: str | dict[str, Any], place: Place) -> Topology:
    """The topology in a task file: a preset's name, or a mapping, perhaps with a preset and what differs from it.

    Raises:
        InvalidInput: a rule is broken.
    """
    if isinstance(content, str):
        content = {"preset": content}
    fields = given(convert(content, _TopologyFile, place))
    preset = fields.pop("preset", None)
    with Place(place.file).naming():
        return Topology(**fields) if preset is None else Topology.preset(preset, **fields)


def topology_to_dict(topology: Topology) -> dict[str, Any]:
    """The topology as plain data; memory as one size where all devices have the same."""
    memory = topology.memory_bytes
    intra, inter = topology.link_bandwidth
    return {
        "hosts": topology.hosts,
        "devices_per_host": topology.devices_per_host,
        "device": topology.device,
        "memory": memory[0] if len(set(memory)) == 1 else list(memory),
        "intra_bandwidth": plain(intra),
        "inter_bandwidth": plain(inter),
        "intra_latency_ms": plain(topology.intra_latency_ms),
        "inter_latency_ms": plain(topology.inter_latency_ms),
    }
