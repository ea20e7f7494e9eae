"""The topology as it stands in task files."""

from __future__ import annotations

from typing import Any

from msgspec import UNSET, Struct, UnsetType

from shardwright.schema import Place, convert, given
from shardwright.task.file_tables import plain
from shardwright.task.topology import Topology
from shardwright.task.units import LEAST_BARE, check_unit


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
        _check_units(fields)
        return Topology(**fields) if preset is None else Topology.preset(preset, **fields)


def _check_units(fields: dict[str, Any]) -> None:
    sizes = fields.get("memory")
    for size in sizes if isinstance(sizes, list) else [sizes]:
        check_unit(size, "topology: memory")
    for field in ("intra_bandwidth", "inter_bandwidth"):
        check_unit(fields.get(field), f"topology: {field}", per_second=True)


def topology_to_dict(topology: Topology) -> dict[str, Any]:
    """The topology as plain data; memory as one size where all devices have the same."""
    memory = [size if size >= LEAST_BARE else f"{size} B" for size in topology.memory_bytes]
    intra, inter = (plain(speed) if speed >= LEAST_BARE else f"{speed!r} B/s" for speed in topology.link_bandwidth)
    return {
        "hosts": topology.hosts,
        "devices_per_host": topology.devices_per_host,
        "device": topology.device,
        "memory": memory[0] if len(set(memory)) == 1 else memory,
        "intra_bandwidth": intra,
        "inter_bandwidth": inter,
        "intra_latency_ms": plain(topology.intra_latency_ms),
        "inter_latency_ms": plain(topology.inter_latency_ms),
    }
