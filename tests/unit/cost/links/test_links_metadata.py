import json

import pytest

from shardwright.cost.links import LINKS, LinkFit, LinkFits, links_of, links_to_text, topology_with_links
from shardwright.errors import InvalidInput
from shardwright.task import Topology

FITS = {
    "all_to_all": LinkFits(LinkFit(0.25, 3e9), None),
    "all_reduce": LinkFits(LinkFit(0.0, 1e9), LinkFit(2.5, 1.5e8)),
}


def test_fits_survive_the_metadata():
    assert links_of({LINKS: links_to_text(FITS), "device": "cpu"}) == FITS


def test_a_model_without_collectives_has_no_fits():
    assert links_of({"device": "cpu"}) == {}


def test_a_topology_takes_what_was_measured_and_keeps_the_rest():
    topology = Topology(2, 4, "cpu", "1 GB")
    measured = topology_with_links(topology, FITS["all_to_all"])
    assert (measured.intra_latency_ms, measured.intra_bandwidth) == (0.25, 3e9)
    assert (measured.inter_latency_ms, measured.inter_bandwidth) == (0.05, 10e9)
    assert (measured.hosts, measured.memory) == (topology.hosts, topology.memory)
    assert topology == Topology(2, 4, "cpu", "1 GB")
    assert topology_with_links(topology, FITS["all_reduce"]).link_bandwidth == (1e9, 1.5e8)


def fit_of(**changes):
    return json.dumps({"all_to_all": {"intra": {"latency_ms": 1, "bandwidth": 2} | changes, "inter": None}})


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{", "not JSON"),
        ("[]", "must be an object"),
        ('{"broadcast": {}}', "keys among"),
        ('{"all_to_all": {"intra": null}}', "must hold intra and inter"),
        ('{"all_to_all": {"intra": 1, "inter": null}}', "latency_ms and bandwidth, or be null"),
        (fit_of(extra=1), "latency_ms and bandwidth, or be null"),
        (fit_of(latency_ms=-1), "at least 0"),
        (fit_of(bandwidth=0), "greater than 0"),
        (fit_of(bandwidth=True), "must be numbers"),
        (fit_of(bandwidth="fast"), "must be numbers"),
        (fit_of(latency_ms=10**400), "must be numbers"),
        (fit_of(latency_ms=float("nan")), "must be finite"),
        ("[" * 100_000, "more than 1000 values"),
    ],
)
def test_damaged_entries_are_refused(text, says):
    with pytest.raises(InvalidInput, match=says):
        links_of({LINKS: text})
