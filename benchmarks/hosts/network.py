"""The network of a test bed: namespaces, veth pairs, a switch, and the limit of every link."""

from __future__ import annotations

import json
import os
import re
import secrets
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from benchmarks.hosts.commands import run
from shardwright.errors import InvalidInput, MeasurementFailed

LINK = "eth0"
"""Name of a host's link inside its namespace."""

_PREFIX = "shardwright-bed"
_UNITS = {"kbit": 1e3, "mbit": 1e6, "gbit": 1e9}
_MTU = 9000  # as in data centres; fewer packets mean less work for the one machine that plays all hosts
_BURST_S = 5e-4  # a link that was idle sends this long at full speed
_LEAST_BURST = 2 * _MTU
_QUEUE = 64 << 20  # bytes: large enough that the switch drops nothing; after a drop, TCP would pause for 200 ms
_TCP = {
    "tcp_congestion_control": "reno",  # fills a link that drops nothing; BBR, a default elsewhere, probes and pauses
    "tcp_slow_start_after_idle": 0,  # the pause between two steps must not make TCP start slowly
    "tcp_rmem": "4096 8388608 33554432",  # room for a whole exchange: a receiver that waits for a core does not stop the link
    "tcp_wmem": "4096 8388608 33554432",
}


@dataclass(frozen=True)
class LinkBytes:
    """Bytes on the link of a host, packet headers included.

    Attributes:
        sent: bytes that the host sent.
        received: bytes that the host received.
    """

    sent: int
    received: int

    def __sub__(self, earlier: LinkBytes) -> LinkBytes:
        return LinkBytes(self.sent - earlier.sent, self.received - earlier.received)


class Network:
    """Namespaces of hosts, each with a limited link to a switch.

    Args:
        hosts: number of hosts.
        rate: limit of every link in each direction, as `tc` writes it: "200mbit", "1gbit"; None for no limit.
    """

    def __init__(self, hosts: int, rate: str | None) -> None:
        self.hosts = hosts
        self._rate = rate
        self._bits = None if rate is None else bits_per_second(rate)
        name = f"{_PREFIX}-{os.getpid()}-{secrets.token_hex(2)}"
        self.switch = f"{name}-switch"
        self.namespaces = [f"{name}-{host}" for host in range(hosts)]

    def build(self) -> None:
        """Create the namespaces, the switch, and all links with their limits.

        Raises:
            MeasurementFailed: the machine does not allow it.
        """
        for namespace in (self.switch, *self.namespaces):
            run("ip", "netns", "add", namespace)
        self._ip(self.switch, "link", "add", "switch", "type", "bridge", "mcast_snooping", "0")
        self._up(self.switch, "switch")
        for host, namespace in enumerate(self.namespaces):
            port = f"port{host}"
            self._ip(
                self.switch, *("link", "add", port, "mtu", str(_MTU), "type", "veth"),
                *("peer", "name", LINK, "mtu", str(_MTU), "netns", namespace),
            )  # fmt: skip
            self._ip(self.switch, "link", "set", port, "master", "switch")
            self._ip(namespace, "addr", "add", f"{address(host)}/24", "dev", LINK)
            self._ip(namespace, "link", "set", "lo", "up")
            self._up(self.switch, port)
            self._up(namespace, LINK)
            for space, link in ((self.switch, port), (namespace, LINK)):
                self._ip(space, "link", "set", link, "gso_max_size", "9000")
            self._limit(self.switch, port)
            self._limit(namespace, LINK)
            for name, value in _TCP.items():
                run("ip", "netns", "exec", namespace, "sysctl", "-q", "-w", f"net.ipv4.{name}={value}")

    def counters(self) -> list[LinkBytes]:
        """Return the bytes on each host's link since it was created, by the kernel's counters."""
        result = []
        for namespace in self.namespaces:
            (link,) = json.loads(run("ip", "-n", namespace, "-s", "-j", "link", "show", LINK))
            counts = link["stats64"]
            result.append(LinkBytes(counts["tx"]["bytes"], counts["rx"]["bytes"]))
        return result

    def remove(self) -> None:
        """Delete the namespaces, and with them all links; a missing namespace is no error."""
        remove_namespaces([self.switch, *self.namespaces])

    def _limit(self, namespace: str, link: str) -> None:
        if self._rate is None or self._bits is None:
            return
        burst = max(_LEAST_BURST, round(self._bits / 8 * _BURST_S))
        limits = ("rate", self._rate, "burst", str(burst), "limit", str(_QUEUE))
        run("tc", "-n", namespace, "qdisc", "add", "dev", link, "root", "tbf", *limits)

    def _up(self, namespace: str, link: str) -> None:
        """Start a link without IPv6, whose discovery would count as traffic."""
        self._ip(namespace, "link", "set", link, "addrgenmode", "none")
        self._ip(namespace, "link", "set", link, "up")

    @staticmethod
    def _ip(namespace: str, *arguments: str) -> None:
        run("ip", "-n", namespace, *arguments)


def address(host: int) -> str:
    """Address of a host's link."""
    return f"10.77.0.{host + 1}"


def bits_per_second(rate: str) -> float:
    """Return a rate as a number.

    Raises:
        InvalidInput: the rate is not a positive number with kbit, mbit or gbit.
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?)(kbit|mbit|gbit)", rate)
    if match is None or not float(match[1]):
        raise InvalidInput(f"rate is {rate!r}, must be a positive number with kbit, mbit or gbit, like 200mbit")
    return float(match[1]) * _UNITS[match[2]]


def remove_leftovers() -> None:
    """Delete the namespaces of beds whose process was killed, and end the processes in them."""
    folder = Path("/run/netns")
    names = [path.name for path in folder.glob(f"{_PREFIX}-*")] if folder.is_dir() else []
    dead = [name for name in names if not Path(f"/proc/{name.removeprefix(_PREFIX + '-').split('-')[0]}").exists()]
    for name in dead:
        with suppress(MeasurementFailed):
            for pid in run("ip", "netns", "pids", name).split():
                run("kill", "-KILL", pid)
    remove_namespaces(dead)


def remove_namespaces(names: list[str]) -> None:
    for name in names:
        with suppress(MeasurementFailed):
            run("ip", "netns", "delete", name)
