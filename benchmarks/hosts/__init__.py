"""Hosts made of Linux network namespaces, with slow links between them: a test bed for exchanges.

    with HostBed(hosts=2, devices_per_host=2, rate="200mbit") as bed:
        outputs = bed.run([sys.executable, "rank.py"], timeout_s=120)

A host is a namespace with its own loopback interface and one link, `eth0`. The link goes into a switch (a bridge) in a further namespace,
so the machine's own network stays as it is. `tc … tbf` limits each link in both directions. Needs root, `ip` and `tc`; `why_not()` names
what is missing.

commands.py     running ip and tc
network.py      namespaces, links and limits; the counters of the links
ranks.py        processes inside the namespaces: start, watch, end
bed.py          both together, and the clean-up
calibration.py  latency and bandwidth of a bed's links, from all-to-alls (collectives.py is the rank program)
"""

from __future__ import annotations

from benchmarks.hosts.bed import HostBed, why_not
from benchmarks.hosts.network import LinkBytes

__all__ = ["HostBed", "LinkBytes", "why_not"]
