"""The test bed: build the network, run the ranks, and clean up."""

from __future__ import annotations

import os
import shutil
import signal
import threading
from collections.abc import Callable, Mapping, Sequence
from types import FrameType
from typing import Any

from benchmarks.hosts.network import LinkBytes, Network, remove_leftovers
from benchmarks.hosts.ranks import Place, run_ranks
from shardwright.errors import InvalidInput, MeasurementFailed

_MOST_HOSTS = 64


class HostBed:
    """Hosts made of namespaces, with limited links. The context manager removes them, also on errors, Ctrl-C and SIGTERM.

    Args:
        hosts: number of hosts, 1 to 64.
        devices_per_host: number of ranks on each host.
        rate: limit of every host's link in each direction, such as "200mbit"; None for no limit.

    Raises:
        InvalidInput: an argument breaks a rule.
    """

    def __init__(self, hosts: int = 2, devices_per_host: int = 2, rate: str | None = "200mbit") -> None:
        if not 1 <= hosts <= _MOST_HOSTS or devices_per_host < 1:
            raise InvalidInput(
                f"{hosts} hosts of {devices_per_host} devices: hosts must be from 1 to {_MOST_HOSTS}, devices at least 1"
            )
        self.hosts, self.devices_per_host, self.rate = hosts, devices_per_host, rate
        self._network = Network(hosts, rate)
        self._handler: Callable[[int, FrameType | None], Any] | int | None = None

    @property
    def devices(self) -> int:
        """Number of ranks of all hosts together."""
        return self.hosts * self.devices_per_host

    def __enter__(self) -> HostBed:
        if reason := _missing():
            raise MeasurementFailed(reason)
        remove_leftovers()
        if threading.current_thread() is threading.main_thread():
            self._handler = signal.signal(signal.SIGTERM, _leave)
        try:
            self._network.build()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Remove the network and restore the signal handler."""
        self._network.remove()
        if self._handler is not None:
            signal.signal(signal.SIGTERM, self._handler)
            self._handler = None

    def run(
        self, command: Sequence[str], *, timeout_s: float = 120.0, environment: Mapping[str, str] | None = None
    ) -> list[str]:
        """Run a command as every rank: rank h × devices_per_host + i is device i of host h, as in a topology.

        RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR and MASTER_PORT are set as torchrun does.

        Args:
            command: program and arguments.
            timeout_s: most seconds the command may take.
            environment: additional environment variables.

        Returns:
            Output of each rank.

        Raises:
            MeasurementFailed: a rank failed, or the time is over; all ranks have been ended.
        """
        places = [
            Place(rank, rank % self.devices_per_host, host, self._network.namespaces[host])
            for rank in range(self.devices)
            for host in (rank // self.devices_per_host,)
        ]
        return run_ranks(command, places, timeout_s, environment or {})

    def link_bytes(self) -> list[LinkBytes]:
        """Return the bytes on each host's link so far, by the kernel's counters."""
        return self._network.counters()


def why_not() -> str | None:
    """Return why this machine cannot make a test bed; None if it can."""
    try:
        with HostBed(hosts=1, devices_per_host=1):
            return None
    except MeasurementFailed as error:
        return str(error)


def _missing() -> str | None:
    if os.geteuid() != 0:
        return "hosts are network namespaces, which only root can make; run it as root"
    missing = [tool for tool in ("ip", "tc") if shutil.which(tool) is None]
    return f"{' and '.join(missing)} is not installed; install iproute2" if missing else None


def _leave(number: int, frame: FrameType | None) -> None:
    raise SystemExit(128 + number)
