"""What parts of the package that have many independent jobs know of a cluster: these two protocols, and no more.

`shardwright.cluster` has both on Ray; the command line opens it and hands it down.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol, TypeVar

Job = TypeVar("Job")
Result = TypeVar("Result")


class WorkerPool(Protocol):
    """Workers that each keep a state and do one job at a time; a job whose worker died is done again by another one.

    Methods are functions that the workers can import. They must give the same result for a job wherever and however often it is done.
    Jobs and results are plain data.
    """

    @property
    def size(self) -> int:
        """Number of workers."""
        ...

    @property
    def free(self) -> int:
        """How many more jobs can be handed out right now."""
        ...

    def give(self, number: int, method: Callable[[Any, Any], Any], job: Any) -> None:
        """Hand out a job; only where `free` is positive.

        Args:
            number: what `wait` names its result by.
            method: called with a worker's state and the job.
            job: the job.
        """
        ...

    def wait(self, timeout_s: float | None = None) -> list[tuple[int, Any]]:
        """Number and result of jobs that have finished; maybe none, where a worker got free instead.

        Raises:
            ShardwrightError: a job raised it, or was lost with its workers too often.
        """
        ...

    def map(self, method: Callable[[Any, Job], Result], jobs: Iterable[Job]) -> Iterator[tuple[int, Result]]:
        """Number and result of every job, in order of completion; raises as `wait`."""
        ...


class Node(Protocol):
    """A machine of a cluster."""

    @property
    def id(self) -> str:
        """Names the machine as a place for workers."""
        ...

    @property
    def host(self) -> str:
        """Host name."""
        ...

    @property
    def cores(self) -> float:
        """Cores it lends."""
        ...

    @property
    def gpus(self) -> float:
        """GPUs it lends."""
        ...


class WorkerCluster(Protocol):
    """Machines on which pools of workers can be started."""

    @property
    def local(self) -> bool:
        """Whether it is this machine alone, for this process alone."""
        ...

    def nodes(self) -> Sequence[Node]:
        """The machines that are there now."""
        ...

    def pool(
        self,
        factory: Callable[[], Any],
        *,
        cores: float = 1.0,
        gpus: float = 0.0,
        workers: int | None = None,
        places: Iterable[str] | None = None,
    ) -> AbstractContextManager[WorkerPool]:
        """Start workers, each with a state that the factory makes; they end with the block.

        Args:
            factory: called on each worker.
            cores: cores that a worker holds.
            gpus: GPUs that a worker holds.
            workers: how many, at least 1; by default as many as there is room for.
            places: `Node.id` for each worker, at least one, in place of `workers`.

        Raises:
            ShardwrightError: there would be no worker.
        """
        ...
