"""Hosts made of Linux network namespaces, with slow links between them: a test bed for exchanges between hosts.

    with HostBed(hosts=2, devices_per_host=2, rate="200mbit") as bed:
        outputs = bed.run([sys.executable, "rank.py"], timeout_s=120)

A host is a namespace with its own loopback interface and one link, `eth0`, into a switch (a bridge) in a further namespace, so that nothing
of the machine's own network is touched. Each link is limited in both directions by `tc … tbf`. Needs root, `ip` and `tc`:
`why_not()` says what is missing.

commands.py     running ip and tc
network.py      namespaces, links and limits; the counters of the links
ranks.py        processes inside the namespaces: started, watched, ended
bed.py          both together, and what cleans up
calibration.py  latency and bandwidth of a bed's links, from all-to-alls (collectives.py is the rank program)
"""

from __future__ import annotations

from benchmarks.hosts.bed import HostBed, why_not
from benchmarks.hosts.network import LinkBytes

__all__ = ["HostBed", "LinkBytes", "why_not"]
