"""The page of `steps_measured.py`: rows scored by the cost function of the day, beside what was measured."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from shardwright.cost.dataset import rates_of
from shardwright.task import Topology
from shardwright.task.links import LINK_CLASSES


def links_of(times: Sequence[Sequence[Any]], topology: Topology) -> Topology:
    """A topology with the links of timed collectives: a line through the times of each, by the bytes that a device sends.

    Args:
        times: collective, links ("intra" or "inter"), bytes of the whole buffer, and ms.
        topology: the bed.
    """
    links: dict[str, dict[str, Any]] = {}
    for collective, name in dict.fromkeys((one[0], one[1]) for one in times):
        own = [(size, ms) for kind, where, size, ms in times if (kind, where) == (collective, name)]
        sizes = np.array([_sent(collective, name, size, topology) for size, _ in own])
        columns = np.stack([np.ones(len(sizes)), sizes], axis=1)
        latency, slope = rates_of(columns, np.array([ms for _, ms in own]))
        links.setdefault(collective, {})[name] = {"latency_ms": float(latency), "bandwidth": 1e3 / max(slope, 1e-12)}
    usual = links["all_to_all"]
    of_class = {name: usual.get(name, next(iter(usual.values()))) for name in LINK_CLASSES}
    return replace(
        topology,
        intra_bandwidth=of_class["intra"]["bandwidth"],
        inter_bandwidth=of_class["inter"]["bandwidth"],
        intra_latency_ms=of_class["intra"]["latency_ms"],
        inter_latency_ms=of_class["inter"]["latency_ms"],
        links=links,  # type: ignore[arg-type]  # a mapping is read
    )


def _sent(collective: str, name: str, size: int, topology: Topology) -> float:
    """Bytes that a device sends in a collective on a buffer of `size` bytes, inside its host or between hosts.

    An all-to-all sends directly. The others are rings, of which one a device crosses between hosts.
    """
    hosts, local = topology.hosts, topology.devices_per_host
    ranks = hosts * local if name == "inter" or hosts == 1 else local
    if collective == "all_to_all":
        return size * ((ranks - local) if name == "inter" else (ranks - 1)) / ranks
    passes = 2 if collective == "all_reduce" else 1
    return passes * size * (ranks - 1) / ranks / (local if name == "inter" else 1)


def write_page(rows: Any, model: Any, arguments: Any) -> None:
    print(len(rows))
