"""Fitted links in the metadata of a model file, and in a topology."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any

from shardwright.cost.links.fit import FITS, LinkFit, LinkFits
from shardwright.documents.json_text import parse_json
from shardwright.errors import InvalidInput
from shardwright.task.topology import Topology

LINKS = "links"
"""The key of the metadata."""

_MOST_VALUES = 1000
_LARGEST = 1e18
_AGAIN = "train the model again"


def links_to_text(fits: Mapping[str, LinkFits]) -> str:
    """Fits as one line of JSON: {"all_to_all": {"intra": {"latency_ms": …, "bandwidth": …}, "inter": null}, …}."""
    return json.dumps({name: asdict(fit) for name, fit in fits.items()}, allow_nan=False)


def links_of(metadata: Mapping[str, str]) -> dict[str, LinkFits]:
    """The fits in a model's metadata; none where it was trained without collectives.

    Raises:
        InvalidInput: the entry is damaged.
    """
    if LINKS not in metadata:
        return {}
    content = parse_json(metadata[LINKS], f"cost model: {LINKS}", _MOST_VALUES)
    if not isinstance(content, dict) or not content.keys() <= set(FITS):
        raise InvalidInput(f"cost model: {LINKS} must be an object with keys among {', '.join(FITS)}; {_AGAIN}")
    return {name: _fits(name, value) for name, value in content.items()}


def topology_with_links(topology: Topology, fits: LinkFits) -> Topology:
    """The topology with fitted latencies and bandwidths; a link class that was not measured keeps its own.

    Args:
        topology: left as it is.
        fits: of one kind of collective; a plan's steps are all-to-alls, so `links_of(model.metadata)["all_to_all"]` as a rule.
    """
    changes: dict[str, float] = {}
    for link, fit in (("intra", fits.intra), ("inter", fits.inter)):
        if fit is not None:
            changes |= {f"{link}_latency_ms": fit.latency_ms, f"{link}_bandwidth": fit.bandwidth}
    return replace(topology, **changes)  # type: ignore[arg-type]


def _fits(name: str, value: Any) -> LinkFits:
    if not isinstance(value, dict) or value.keys() != {"intra", "inter"}:
        raise InvalidInput(f"cost model: {LINKS}: {name} must hold intra and inter; {_AGAIN}")
    return LinkFits(**{link: _fit(f"{name}: {link}", figures) for link, figures in value.items()})


def _fit(where: str, value: Any) -> LinkFit | None:
    if value is None:
        return None
    if not isinstance(value, dict) or value.keys() != {"latency_ms", "bandwidth"}:
        raise InvalidInput(f"cost model: {LINKS}: {where} must hold latency_ms and bandwidth, or be null; {_AGAIN}")
    latency, bandwidth = value["latency_ms"], value["bandwidth"]
    numbers = all(type(figure) in (int, float) for figure in (latency, bandwidth))
    if not numbers or not 0 <= latency <= _LARGEST or not 0 < bandwidth <= _LARGEST:
        raise InvalidInput(
            f"cost model: {LINKS}: {where}: latency_ms and bandwidth must be numbers, at least 0 and greater than 0; {_AGAIN}"
        )
    return LinkFit(float(latency), float(bandwidth))
