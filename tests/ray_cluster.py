"""A Ray cluster of this machine for tests, and functions that its workers run."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from shardwright.cluster import Cluster, Pool, open_cluster
from shardwright.hardware import Fingerprint, fingerprint
from shardwright.measure.remote import MeasuringNode
from tests.processes import descendants, wait_until

needs_ray = pytest.mark.skipif(find_spec("ray") is None, reason="needs Ray: pip install 'shardwright[ray]'")


def local_cluster() -> Iterator[Cluster]:
    """A cluster of two workers; every process of it has ended when this ends."""
    before = set(descendants(os.getpid()))
    with open_cluster("local:2") as cluster:
        yield cluster
    wait_until(lambda: not [pid for pid in descendants(os.getpid()) if pid not in before], "a process of Ray is left")


def die_once(marker: str) -> None:
    """Kill this process, unless an earlier call killed one."""
    with suppress(FileExistsError):
        os.close(os.open(marker, os.O_CREAT | os.O_EXCL))
        os.kill(os.getpid(), signal.SIGKILL)


def claimed(folder: str, driver: int, device: str, backend: str) -> Fingerprint:
    """A fingerprint that claims processor A for the driver and the first worker, and B for all other workers."""
    mine = Path(folder) / str(os.getpid())
    if not mine.exists():
        processor = "A" if os.getpid() == driver else "B"
        with suppress(FileExistsError):
            if processor == "B":
                (Path(folder) / "claimed").mkdir()
                processor = "A"
        mine.write_text(processor)
    return fingerprint(device, backend) | {"processor": f"Processor {mine.read_text()}"}


@dataclass(frozen=True)
class PretendingCluster(Cluster):
    """A cluster whose machines have made-up fingerprints."""

    of_machine: Callable[[str, str], Fingerprint]

    def pool(self, factory: Callable[[], Any], places: Sequence[str] | None = None, **options: Any) -> Pool[Any]:
        return super().pool(partial(pretending_node, factory, self.of_machine), places, **options)


def pretending_node(
    factory: Callable[[], MeasuringNode], of_machine: Callable[[str, str], Fingerprint]
) -> MeasuringNode:
    node = factory()
    node.of_machine = of_machine
    return node
