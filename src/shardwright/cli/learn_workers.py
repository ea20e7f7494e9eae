"""The workers of a cluster that `shardwright learn --ray` learns with."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from shardwright.cli.output import note

if TYPE_CHECKING:
    from shardwright.search.learned.fleet import Fleet


@contextmanager
def learning_fleet(address: str | None, device: str, actors: int, *, simulated: bool) -> Iterator[Fleet | None]:
    """Workers of one kind on a cluster; None without an address, and where nothing could be given to them.

    Args:
        address: the cluster.
        device: "cpu" or "cuda", what measured costs are of.
        actors: batches in which episodes are played.
        simulated: whether costs are a cost model's.

    Raises:
        ClusterFailed: the cluster does not answer, or lends nothing.
    """
    if address is None:
        yield None
        return
    if simulated and actors == 1:
        note(
            f"--ray {address} is not used: costs are simulated and one actor plays all episodes, which leaves nothing to share out; for "
            "tasks of hundreds of tables, give as many actors as workers with --option actors=N (another number is another policy)"
        )
        yield None
        return
    from shardwright.cluster import open_cluster
    from shardwright.measure.backend import default_backend
    from shardwright.measure.hardware import fingerprint
    from shardwright.search.learned.fleet import open_fleet

    # Played on machines like this one, episodes are those that would be played here, bit by bit.
    like = fingerprint("cpu", default_backend()) if simulated else None
    kind = "cpu" if simulated else device
    with open_cluster(address) as cluster, open_fleet(cluster, kind, like, measuring=not simulated) as fleet:
        for text in fleet.notes:
            note(text)
        yield fleet
