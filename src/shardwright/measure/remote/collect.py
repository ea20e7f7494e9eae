"""The loop of a collection on a cluster, and what it comes to."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from time import monotonic

from shardwright.cluster import Cluster
from shardwright.errors import ClusterFailed
from shardwright.measure.backends import check_backend, is_own
from shardwright.measure.collection import Collection
from shardwright.measure.hardware import Fingerprint, fingerprint
from shardwright.measure.printer import Progress
from shardwright.measure.remote.crew import Crew
from shardwright.measure.remote.node import MeasuringNode, NodeOptions
from shardwright.measure.stock import CollectSummary, summarise, to_revisit
from shardwright.measure.timing import TimingPolicy


@dataclass(frozen=True)
class RemoteSummary:
    """What a collection on a cluster comes to.

    Attributes:
        stores: what the store holds now, for each kind of hardware.
        lost: answers that did not come because a worker died; their work was done again.
        given_up: workers that were given up, a line each.
    """

    stores: Sequence[tuple[CollectSummary, Mapping[str, str]]]
    lost: int
    given_up: Sequence[str]


def collect_on_cluster(
    cluster: Cluster,
    folder: str | Path,
    collection: Collection,
    *,
    backend: str | None = None,
    seconds: float | None = None,
    policy: TimingPolicy | None = None,
    progress: Progress | None = None,
    say: Callable[[str], None] = print,
    of_machine: Callable[[str, str], Fingerprint] = fingerprint,
) -> RemoteSummary:
    """Measure random sets of tables on the machines of a cluster; call it again, with or without a cluster, to resume.

    This process draws the sets, the same as without a cluster, and alone writes the samples. One worker measures on each machine, on a GPU
    machine one on each GPU; on a cluster of this machine alone, as many as it has workers. What a worker was doing when it died is done
    again by another. A visit is in the store as soon as this process has heard of it: a kill loses the last few of each worker.

    Machines whose measurements cannot be compared (`shardwright.measure.hardware.DECISIVE`) measure all samples each; the store keeps
    them apart.

    Args:
        cluster: where to measure.
        folder: the store.
        collection: what to measure.
        backend: as for `shardwright.measure.collect.collect`; by default fbgemm on the machines that have it.
        seconds: stop after this time; by default when all samples are there.
        policy: how often to repeat each measurement; by default the device's own.
        progress: called after each answer with the samples measured, those wanted, and how many are to be revisited, of all stores.
        say: is given a line on each kind of hardware, wherever there are several.
        of_machine: says what hardware a worker is on, from device and backend; runs there.

    Raises:
        InvalidInput: an option breaks a rule, or the store cannot be used.
        MeasurementFailed: a machine cannot measure, or a sample cannot be measured; what was measured before is kept.
        ClusterFailed: no worker is left.
    """
    started = monotonic()
    if backend is not None and not is_own(backend):
        check_backend(backend)
    collection.sets(collection.arena(lambda: 10**9 * 4))  # refuses wrong options before anything starts
    stop_at = started + (math.inf if seconds is None else seconds)
    options = NodeOptions(collection.device, backend, policy, of_machine)
    on_gpu = collection.device == "cuda"
    check = on_gpu or (backend is not None and is_own(backend))
    told: set[int] = set()
    with (
        cluster.pool(
            partial(MeasuringNode, options), places=_places(cluster, on_gpu=on_gpu), gpus=float(on_gpu)
        ) as pool,
        Crew(pool, Path(folder), collection, check, not cluster.local) as crew,
    ):
        while True:
            going_on = monotonic() < stop_at
            crew.tell(go_on=going_on)
            # With nothing at work, there is nothing to wait for but workers that are starting, where there is work for them.
            if not pool.busy and not (going_on and pool.starting and (crew.left or not crew.stocks)):
                break
            for number, answer in pool.wait():
                crew.hear(number, answer)
            if len(crew.stocks) > max(1, len(told)):
                for stock in crew.stocks:
                    if id(stock) not in told:
                        told.add(id(stock))
                        say(f"one kind of hardware: {stock.hardware['processor']}, {stock.hardware['cores']} cores")
            if progress and crew.stocks:
                wanted = sum(stock.wanted for stock in crew.stocks)
                progress(wanted - sum(stock.unseen for stock in crew.stocks), wanted, to_revisit(crew.stocks))
        seconds_taken = monotonic() - started
        found = [(summarise(stock, seconds_taken), dict(stock.hardware)) for stock in crew.stocks]
        return RemoteSummary(found, pool.redone, list(pool.given_up))


def _places(cluster: Cluster, *, on_gpu: bool) -> list[str]:
    """The node of each worker.

    Raises:
        ClusterFailed: there is no such device in the cluster.
    """
    nodes = cluster.nodes()
    if on_gpu:
        places = [node.id for node in nodes for _ in range(int(min(node.gpus, node.cores)))]
    else:  # measuring processes of one machine share its caches and memory: each would be noise to the others
        places = [node.id for node in nodes for _ in range(int(node.cores) if cluster.local else int(node.cores >= 1))]
    if not places:
        what = "GPU with a CPU core beside it" if on_gpu else "CPU core"
        raise ClusterFailed(f"--ray {cluster.address}: no node lends a {what}; add nodes, or leave --ray out")
    return places
