"""Latency and bandwidth of link classes, fitted to measured collectives."""

from shardwright.cost.links.dataset import KINDS, Collectives, collectives_of, split
from shardwright.cost.links.errors import PassErrors, errors_of, link_errors, repeat_error
from shardwright.cost.links.fit import BACKWARD, FITS, FORWARD, LinkFit, LinkFits, fit_links
from shardwright.cost.links.metadata import LINKS, links_of, links_to_text, topology_with_links

__all__ = [
    "BACKWARD",
    "FITS",
    "FORWARD",
    "KINDS",
    "LINKS",
    "Collectives",
    "LinkFit",
    "LinkFits",
    "PassErrors",
    "collectives_of",
    "errors_of",
    "fit_links",
    "link_errors",
    "links_of",
    "links_to_text",
    "repeat_error",
    "split",
    "topology_with_links",
]
