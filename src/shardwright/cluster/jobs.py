"""A cluster that jobs run on.

What a user of this layer needs to know:

    with open_cluster(address) as cluster:                       # "local", "local:4", "auto", "host:port", "ray://host:port"
        for index, result in cluster.run(function, jobs):        # in order of completion; `index` counts the jobs from 0
            ...
        with cluster.pool(factory) as pool:                      # each worker makes one state by `factory()`, and keeps it
            for index, result in pool.map(method, jobs):         # method(state, job)
                ...

- `function`, `method`, `factory`, jobs and results travel between processes: functions are best defined at the top level of a module
  that is installed on every node (`functools.partial` of one is fine), jobs and results are plain data.
- `jobs` may be any iterable, also an endless or slow one: a job is taken from it only when a worker is free for it.
- A job whose worker dies (killed, out of memory, its machine lost) is done again by another one; jobs should therefore return what they
  found and leave writing to the caller. `pool.redone` counts these. A job whose workers died `retries + 1` times ends the run with
  `ClusterFailed`, which names it.
- An exception that a job raises itself reaches the caller as it is, and ends the run; it is never tried again.
- Leaving the loop or the `with` block, by Ctrl-C as well, kills what still runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sized
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar, cast

from shardwright.cluster.pool import Pool, Resources
from shardwright.errors import ClusterFailed, InvalidInput

Job = TypeVar("Job")
Result = TypeVar("Result")
State = TypeVar("State")


@dataclass(frozen=True)
class Node:
    """A machine of a cluster.

    Attributes:
        id: Ray's name of it, a place for `Cluster.pool`.
        host: host name.
        cores: CPU cores it lends.
        gpus: GPUs it lends.
    """

    id: str
    host: str
    cores: float
    gpus: float


@dataclass(frozen=True)
class Cluster:
    """A cluster that this process is connected to; made by `shardwright.cluster.open_cluster`.

    Attributes:
        address: where it is, for messages.
        workers: jobs of one core each that can run at once, on all nodes together.
    """

    address: str
    workers: int

    @property
    def local(self) -> bool:
        """Whether it was started on this machine, for this process alone."""
        return self.address.partition(":")[0] == "local"

    def nodes(self) -> list[Node]:
        """The machines that are there now."""
        import ray

        return [
            Node(
                node["NodeID"],
                node["NodeManagerHostname"],
                node["Resources"].get("CPU", 0.0),
                node["Resources"].get("GPU", 0.0),
            )
            for node in cast(Any, ray).nodes()
            if node["Alive"]
        ]

    def run(
        self,
        function: Callable[[Job], Result],
        jobs: Iterable[Job],
        *,
        cores: float = 1.0,
        gpus: float = 0.0,
        workers: int | None = None,
        retries: int = 3,
    ) -> Iterator[tuple[int, Result]]:
        """Call a function once for every job.

        Args:
            function: called on a worker with a job.
            jobs: its arguments.
            cores: CPU cores that a job holds.
            gpus: GPUs that a job holds.
            workers: how many jobs run at once; by default as many as there is room for.
            retries: how often a job is started again after its worker died.

        Yields:
            The job's number, from 0, and its result, in order of completion.

        Raises:
            InvalidInput: `workers` is less than 1.
            ClusterFailed: no worker can start, or the workers of one job die again and again.
        """
        _check_workers(workers)
        if isinstance(jobs, Sized):
            if not len(jobs):
                return
            workers = min(workers or len(jobs), len(jobs))
        with self.pool(_nothing, cores=cores, gpus=gpus, workers=workers, retries=retries) as pool:
            yield from pool.map(partial(_apply, function), jobs)

    def pool(
        self,
        factory: Callable[[], State],
        *,
        cores: float = 1.0,
        gpus: float = 0.0,
        workers: int | None = None,
        places: Iterable[str] | None = None,
        retries: int = 3,
        start_s: float = 120.0,
    ) -> Pool[State]:
        """Workers that live until the pool is closed, each with a state of its own; a context manager.

        Args:
            factory: called once on each worker, with its first job; makes what `method` gets as its first argument.
            cores: CPU cores that a worker holds.
            gpus: GPUs that a worker holds.
            workers: how many; by default as many as there is room for, never more than that.
            places: `Node.id` for each worker, at least one, in place of `workers`; a worker that dies is started again in its place.
            retries: how often a job is started again after its worker died.
            start_s: seconds in which a worker must start; a cluster that is busy with other work has no room for it earlier.

        Raises:
            InvalidInput: `workers` is less than 1.
            ClusterFailed: the nodes have no room for even one worker; where the pool is entered, it got no place, or no worker starts.
        """
        _check_workers(workers)
        chosen: list[str | None] = list(places or ())
        if places is None:
            room = self._room(cores, gpus)
            chosen = [None] * min(workers or room, room)
        return Pool(factory, chosen, Resources(cores, gpus), self.address, retries=retries, start_s=start_s)

    def _room(self, cores: float, gpus: float) -> int:
        """How many workers of this size the nodes have room for, other work aside."""
        nodes = self.nodes()
        room = sum(
            int(min(node.cores / cores if cores else float("inf"), node.gpus / gpus if gpus else float("inf")))
            for node in nodes
        )
        if not room:
            has = "; ".join(f"{node.host}: {node.cores:g} cores, {node.gpus:g} GPUs" for node in nodes) or "no node"
            raise ClusterFailed(
                f"--ray {self.address}: a worker needs {cores:g} cores and {gpus:g} GPUs of one node, the cluster has {has}; "
                "use a larger cluster, or ask for less"
            )
        return room


def _check_workers(workers: int | None) -> None:
    if workers is not None and workers < 1:
        raise InvalidInput(f"workers is {workers}, must be at least 1, or None for as many as there is room for")


def _nothing() -> None:
    """The state of workers that need none."""


def _apply(function: Callable[[Job], Result], _: None, job: Job) -> Result:
    return function(job)
