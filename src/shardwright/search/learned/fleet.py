"""Workers of one kind for a training: what they measure, and the last bits of what they compute, must not depend on which of them did it.

Measured costs are what a training on them spends nearly all its time on: hundreds of devices a round, one after another. `FleetWorld` hands
them to the workers, each of which has a measuring process with a core (or GPU) of its own. All else stays in this process.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

from shardwright.errors import ClusterFailed
from shardwright.jobs import Node, WorkerCluster, WorkerPool
from shardwright.measure.hardware import DECISIVE, Fingerprint
from shardwright.search.learned.bench import Bench, fingerprint_of


@dataclass(frozen=True)
class Fleet:
    """Workers of one kind.

    Attributes:
        pool: the workers; the state of each is a `Bench`.
        device: "cpu" or "cuda", what they measure on.
        fingerprint: what each of them measures with.
        left_out: host and processor of the machines that are of another kind.
    """

    pool: WorkerPool
    device: str
    fingerprint: Fingerprint
    left_out: tuple[str, ...] = ()

    @property
    def notes(self) -> list[str]:
        """What the user should know."""
        if not self.left_out:
            return []
        return [
            f"machines of the cluster differ: working on those with {_said(self.fingerprint)} alone, without "
            f"{', '.join(self.left_out)}"
        ]


@contextmanager
def open_fleet(cluster: WorkerCluster, device: str = "cpu") -> Iterator[Fleet]:
    """Start workers on the machines of the most common kind.

    Machines are of one kind if they agree in all that decides how long kernels take (`measure.hardware.DECISIVE`). Where two kinds
    have equally many workers, that of the machine named first counts. Workers that measure on a CPU are one a machine, as they would
    disturb each other through its caches and memory; only where the cluster is this machine alone, its user says how many. All others
    are as many as there are cores, on cuda GPUs.

    Args:
        cluster: the machines.
        device: "cpu" or "cuda", what to measure on.

    Raises:
        ClusterFailed: no machine lends a core (on cuda, a GPU), or none answers.
        MeasurementFailed: a machine lends a GPU that torch does not see.
    """
    one_each = device == "cpu" and not cluster.local
    room = {node.id: min(_room(node, device), 1) if one_each else _room(node, device) for node in cluster.nodes()}
    nodes = [node for node in cluster.nodes() if room.get(node.id)]
    if not nodes:
        raise ClusterFailed(
            f"no machine of the cluster lends a {'GPU' if device == 'cuda' else 'core'} to learn on; start its nodes with some, "
            "or leave --ray out"
        )
    gpus = 1.0 if device == "cuda" else 0.0
    found = _fingerprints(cluster, nodes, device, gpus)
    nodes = [node for node in nodes if node.host in found]
    kinds = {node.id: _kind(found[node.host]) for node in nodes}
    workers: Counter[tuple[str, ...]] = Counter()
    for node in nodes:
        workers[kinds[node.id]] += room[node.id]
    chosen = workers.most_common(1)[0][0]
    own = [node for node in nodes if kinds[node.id] == chosen]
    others = tuple(f"{node.host} ({_said(found[node.host])})" for node in nodes if kinds[node.id] != chosen)
    places = [node.id for node in own for _ in range(room[node.id])]
    with cluster.pool(partial(Bench, device), gpus=gpus, places=places) as pool:
        yield Fleet(pool, device, found[own[0].host], others)


def _fingerprints(cluster: WorkerCluster, nodes: list[Node], device: str, gpus: float) -> dict[str, Fingerprint]:
    """The fingerprints of the machines by host name, all asked at once; one on which no worker starts is left out."""
    with cluster.pool(partial(Bench, device), gpus=gpus, places=[node.id for node in nodes]) as pool:
        while pool.free < pool.size:
            pool.wait()
        asked = pool.size
        for number in range(asked):  # as many as there are free workers, so each gets one
            pool.give(number, fingerprint_of, None)
        found: dict[str, Fingerprint] = {}
        answers = 0
        while answers < asked:
            for _, (host, fingerprint) in pool.wait():
                found[host] = fingerprint
                answers += 1
    return found


def _room(node: Node, device: str) -> int:
    """How many workers a machine has room for."""
    return int(min(node.gpus, node.cores) if device == "cuda" else node.cores)


def _kind(fingerprint: Mapping[str, str]) -> tuple[str, ...]:
    return tuple(fingerprint.get(field, "") for field in DECISIVE)


def _said(fingerprint: Mapping[str, str]) -> str:
    """A fingerprint in short."""
    return f"{fingerprint['processor']}, {fingerprint['cores']} cores, torch {fingerprint['torch']}"
