"""The loop of a collection on a cluster, and what it comes to."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from time import monotonic

from shardwright.cluster import Cluster
from shardwright.errors import ClusterFailed, ShardwrightError
from shardwright.measure.agenda import to_revisit
from shardwright.measure.backends import check_backend, default_backend
from shardwright.measure.collection import Collection
from shardwright.measure.hardware import Fingerprint, fingerprint
from shardwright.measure.homes import alike
from shardwright.measure.own_backend import is_own
from shardwright.measure.printer import Progress
from shardwright.measure.remote.crew import Crew
from shardwright.measure.remote.node import MeasuringNode, NodeOptions
from shardwright.measure.remote.shelves import Shelf, Shelves
from shardwright.measure.store import read_samples
from shardwright.measure.summary import CollectSummary, summarise
from shardwright.measure.timing import TimingPolicy


@dataclass(frozen=True)
class RemoteSummary:
    """What a collection on a cluster comes to.

    Attributes:
        stores: what each store holds now, with the hardware its samples are of.
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
    allow_other_hardware: bool = False,
    progress: Progress | None = None,
    say: Callable[[str], None] = print,
    of_machine: Callable[[str, str], Fingerprint] = fingerprint,
) -> RemoteSummary:
    """Measure random sets of tables on the machines of a cluster; call it again, with or without a cluster, to resume.

    This process draws the sets, the same as without a cluster, and alone writes the samples. One worker measures on each machine, on a GPU
    machine one on each GPU; on a cluster of this machine alone, as many as it has workers. What a worker was doing when it died is done
    again by another. A visit is in the store as soon as this process has heard of it: a kill loses the last few of each worker.

    Machines whose measurements cannot be compared (`shardwright.measure.hardware.DECISIVE`) fill a store each, with all samples
    (`shardwright.measure.homes`).

    Args:
        cluster: where to measure.
        folder: the store, or the folder of several.
        collection: what to measure.
        backend: as for `shardwright.measure.collect.collect`; by default fbgemm on the machines that have it.
        seconds: stop after this time; by default when all samples are there.
        policy: how often to repeat each measurement; by default the device's own.
        allow_other_hardware: put samples of all hardware into one store.
        progress: called after each answer with the samples measured, those wanted, and how many are to be revisited, of all stores.
        say: is given a line on what goes where, wherever there are several stores.
        of_machine: says what hardware a worker is on, from device and backend; runs there.

    Raises:
        InvalidInput: an option breaks a rule, or a store is of another request, of other hardware, or in use.
        MeasurementFailed: a machine cannot measure, or a sample cannot be measured; what was measured before is kept.
        ClusterFailed: no worker is left.
    """
    started = monotonic()
    if backend is not None and not is_own(backend):
        check_backend(backend)
    collection.sets(collection.arena(lambda: 10**9 * 4))  # refuses wrong options before anything starts
    stop_at = started + (math.inf if seconds is None else seconds)
    options = NodeOptions(collection.device, backend, policy, of_machine)
    mine = _own(collection.device, backend, of_machine)
    on_gpu = collection.device == "cuda"
    with (
        Shelves(
            Path(folder), collection, mine, allow_other_hardware=allow_other_hardware, ahead=not cluster.local
        ) as shelves,
        cluster.pool(
            partial(MeasuringNode, options), places=_places(cluster, on_gpu=on_gpu), gpus=float(on_gpu)
        ) as pool,
    ):
        check = on_gpu or (backend is not None and is_own(backend))
        crew = Crew(pool, shelves, check, lambda: _say_where(crew, shelves, say))
        while True:
            going_on = monotonic() < stop_at
            crew.tell(go_on=going_on)
            left = sum(shelf.left for shelf in shelves.all)
            # With nothing at work, there is nothing to wait for but workers that are starting, where there is work for them.
            if not pool.busy and not (going_on and pool.starting and (left or not shelves.all)):
                break
            for number, answer in pool.wait():
                crew.hear(number, answer)
            if progress and shelves.all:
                wanted, unseen, left = (
                    sum(getattr(shelf, count) for shelf in shelves.all) for count in ("wanted", "unseen", "left")
                )
                progress(wanted - unseen, wanted, to_revisit(left - unseen))
        lost, given_up = pool.redone, list(pool.given_up)
    return RemoteSummary(
        [_summary(shelf, collection.samples, monotonic() - started) for shelf in shelves.all], lost, given_up
    )


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


def _own(device: str, backend: str | None, of_machine: Callable[[str, str], Fingerprint]) -> Fingerprint | None:
    """The hardware of this machine, as it would collect without a cluster; None where it cannot."""
    try:
        return of_machine(device, backend or default_backend())
    except ShardwrightError:
        return None


def _say_where(crew: Crew, shelves: Shelves, say: Callable[[str], None]) -> None:
    """Say which hardware's samples go where, unless there is one kind and one store."""
    if len(shelves.all) > 1:
        say(
            f"{len(shelves.all)} kinds of hardware, whose times do not go together: a store for each, to train on by itself"
        )
        for shelf in shelves.all:
            workers = crew.workers_of(shelf)
            say(f"  {shelf.hardware['processor']}, {shelf.hardware['cores']} cores ({workers} workers): {shelf.folder}")
        return
    kinds: list[Fingerprint] = []
    for member in crew.members.values():
        if member.facts is not None and not any(alike(member.facts.hardware, kind) for kind in kinds):
            kinds.append(member.facts.hardware)
    if len(kinds) > 1:
        say(
            f"{len(kinds)} kinds of hardware go into one store, as --allow-other-hardware says: {shelves.all[0].folder}"
        )


def _summary(shelf: Shelf, samples: int, seconds: float) -> tuple[CollectSummary, Mapping[str, str]]:
    measured = read_samples(shelf.folder, allow_other_hardware=True) if len(shelf.store.visits) else None
    summary = replace(
        summarise(shelf.folder, measured, shelf.measured, seconds),
        wanted=samples,
        failed=len(shelf.failures or ()),
        spent=dict(shelf.spent),
    )
    return summary, dict(shelf.hardware)
