"""Measure links: the collectives that a step calls, over a ladder of sizes, inside every host and between all ranks.

Bytes that a device sends inside its host and to other hosts, of a buffer of V bytes on each of D devices, P of them on each of H hosts:

- all-to-all and exchange with equal splits: V (P - 1) / D and V (D - P) / D.
- reduce-scatter and all-gather of V: V (D - 1) / D, and if H > 1 also V (D - 1) / D / P to other hosts: the rings of a host's P devices
  share the crossing.
- all-reduce: 2 V (P - 1) / P and 2 V (H - 1) / H / P.

`cost.collectives` prices them by these bytes, for any library: gloo's reduce-scatter is an all-reduce inside, and so looks like slow links.

Links often carry more for a device that sends alone than for all at once: receivers share their links, and two directions of a link may
wait for each other, and the devices of a host may share one link. So all-to-alls in which one device sends are measured as well.

Devices start a collective one after the other, as they do after kernels of different length. This matters for gloo: a device that starts
late sends its data before it posts its receives, so the two directions of a link follow one another. With equal starts they overlap.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from time import monotonic
from typing import TYPE_CHECKING, Any, TypeAlias

from shardwright.measure.visits import Progress
from shardwright.task.links import DIRECT, TORCHREC_CALLS, Collective

if TYPE_CHECKING:
    from shardwright.task.link_files import Cluster

Ask: TypeAlias = Callable[[dict[str, Any], str], dict[str, Any]]
"""Has all ranks serve a request, for a purpose that is named, and returns the reply of rank 0; see `group.RankGroup.ask`."""

SIZES = tuple(2**power for power in range(13, 27))
"""Bytes of a buffer, 8 KiB to 64 MiB."""
ROUNDS = 2
"""Number of climbs of the ladder; their differences are the noise."""
_SIZES_ALONE = SIZES[::2]
_VALUE_BYTES = 4
FEWEST_RUNS = 3
"""Fewest counted runs of a rung."""
CHAIN = 4
"""Collectives of a chain, as the input of a step calls them; the time of each later one gives the latency of a following collective."""
_STEEP = 4.0  # a rung that would take more than this times its share of the time is left out, and all above it


@dataclass(frozen=True)
class Rung:
    """A collective of one size.

    Attributes:
        collective: the collective.
        within: whether the devices of each host form a group, all hosts at once; else all devices form one.
        size: bytes of the whole buffer on a device, before rounding to a multiple of the devices.
        round: number of the climb, from 0.
        calls: number of calls in a row, without a pause.
        alone: whether only the first device of each group sends.
    """

    collective: Collective
    within: bool
    size: int
    round: int = 0
    calls: int = 1
    alone: bool = False

    def splits(self, rank: int, devices: int) -> tuple[list[int], list[int]]:
        """Values that a device of a group sends to each device, and receives from each, in a collective of direct sends."""
        each, senders = self.elements(devices) // devices, 1 if self.alone else devices
        return [each * (rank < senders)] * devices, [each] * senders + [0] * (devices - senders)

    def elements(self, devices: int) -> int:
        """Values of the whole buffer: as many for each of the devices."""
        return max(1, self.size // _VALUE_BYTES // devices) * devices

    def sent(self, cluster: Cluster) -> tuple[float, float]:
        """Bytes that a device that sends anything sends inside its host and to other hosts."""
        near = cluster.devices_per_host
        devices = near if self.within else cluster.devices
        whole = self.elements(devices) * _VALUE_BYTES
        if self.collective in DIRECT:
            return whole * (near - 1) / devices, whole * (devices - near) / devices
        hosts = devices // near
        if self.collective == "all_reduce":
            return 2 * whole * (near - 1) / near, 2 * whole * (hosts - 1) / hosts / near
        ring = whole * (devices - 1) / devices
        return (ring if near > 1 else 0.0), (ring / near if hosts > 1 else 0.0)


def ladders(cluster: Cluster, collectives: Sequence[Collective] = TORCHREC_CALLS) -> Iterator[list[Rung]]:
    """The rungs to measure, smallest first: for each round, each class of links that the cluster has, and each collective.

    A chain of collectives of direct sends follows their ladder, and so does a ladder with one sender.
    """
    classes = [within for within, there in ((True, cluster.devices_per_host > 1), (False, cluster.hosts > 1)) if there]
    for number in range(ROUNDS):
        for within in classes:
            for collective in collectives:
                yield [Rung(collective, within, size, number) for size in SIZES]
                if collective in DIRECT:
                    yield [Rung(collective, within, SIZES[0], number, CHAIN)]
                    yield [Rung(collective, within, size, number, alone=True) for size in _SIZES_ALONE]


def measure_ladders(
    ask: Ask,
    cluster: Cluster,
    seconds: float,
    known: dict[Rung, float],
    progress: Progress | None = None,
    collectives: Sequence[Collective] = TORCHREC_CALLS,
) -> Iterator[tuple[Rung, float]]:
    """Measure the rungs that are not known.

    Sizes that would take too long are left out, so that slow links are measured in time too.

    Args:
        ask: asks the ranks.
        cluster: the cluster of the ranks.
        seconds: about how long all rungs may take.
        known: ms of the rungs that were measured before.
        progress: called after every rung.
        collectives: the collectives that the ranks can run.

    Yields:
        A rung and its ms, until the last device is done, as soon as it is measured.
    """
    todo, began = list(ladders(cluster, collectives)), monotonic()
    total, done = sum(map(len, todo)), 0
    for ladder in todo:
        if ladder[0].round and ladder[0] not in known and monotonic() - began > seconds:
            return  # the rungs so far give links, without their noise
        before, grew = 0.0, 0.0
        for place, rung in enumerate(ladder):
            left = total - done - place
            share = max(0.02, (seconds - (monotonic() - began)) / left)
            ms = known.get(rung)
            if ms is None:
                if (before + grew) * FEWEST_RUNS / 1e3 > _STEEP * share:
                    break
                request = {"rung": asdict(rung), "hosts": cluster.hosts, "seconds": share}
                ms = float(ask(request, f"for {rung.collective} of {rung.size} bytes")["ms"])
                yield rung, ms
            before, grew = ms, max(0.0, ms - before)
            if progress:
                progress(done + place + 1, total, "")
        done += len(ladder)
