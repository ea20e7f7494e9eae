"""A pool of workers on a cluster: jobs are handed to free workers, and again to others where a worker dies.

A worker keeps one state and lets jobs use it, one after another. A job ends with its result, its own error, or the death of its worker.
"""

from __future__ import annotations

import re
import reprlib
import socket
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count
from time import monotonic
from types import TracebackType
from typing import Any, Generic, Self, TypeVar, cast

from shardwright.errors import ClusterFailed

_LONGEST = 400  # characters of how a worker died; the end says most


@dataclass(frozen=True)
class Death:
    """A worker died before it had answered.

    Attributes:
        text: one line that says how.
    """

    text: str

    def __str__(self) -> str:
        return self.text


def outcome_of(ref: Any) -> Any:
    """The result of a finished job, or a `Death`.

    Args:
        ref: Ray's reference to the result.

    Raises:
        Exception: what the job raised, as it was raised there.
    """
    import ray
    from ray import exceptions

    deaths = (
        exceptions.RayActorError,  # died, or does not answer any more
        exceptions.WorkerCrashedError,
        exceptions.NodeDiedError,
        exceptions.OutOfMemoryError,
        exceptions.ObjectLostError,  # the job was done, and its node was lost before the result was fetched
        exceptions.ActorUnschedulableError,  # its place is gone
    )
    try:
        return ray.get(ref)
    except exceptions.RayTaskError as error:
        cause = getattr(error, "cause", None)
        if isinstance(cause, deaths) or not isinstance(cause, Exception):
            raise
        raise cause from error
    except deaths as error:
        return Death(_line(error))


def _line(error: Exception) -> str:
    """The lines of a message that say something, as one."""
    said = re.sub(r"\x1b\[[0-9;]*m", "", str(error))  # Ray colours its messages
    lines = [line.strip() for line in said.splitlines() if line.strip(" ^")]
    # It names actor, process and node on lines of their own, which say nothing to users, and goes on to explain what deaths there are.
    telling = [line for line in lines if not line.split(":")[0].endswith(("id", "namespace", "class_name", "ip"))]
    text = re.split(r" Some common causes| traceback: ", " ".join(telling or lines))[0]
    return text[-_LONGEST:] or type(error).__name__


class Keeper:
    """A worker's state, made by its first job, so that an error of the factory reaches the caller as that job's error.

    Args:
        factory: makes the state.
    """

    def __init__(self, factory: Callable[[], Any]) -> None:
        self._factory = factory
        self._state: list[Any] = []

    def ready(self) -> str:
        """The name of the machine; that it answers says that the worker runs."""
        return socket.gethostname()

    def call(self, method: Callable[[Any, Any], Any], job: Any) -> Any:
        """Do a job."""
        if not self._state:
            self._state.append(self._factory())
        return method(self._state[0], job)


State = TypeVar("State")
Job = TypeVar("Job")
Result = TypeVar("Result")

_MOST_STARTS = 3  # of one worker, in a row, before its place is given up


@dataclass(frozen=True)
class Resources:
    """What each worker holds: CPU cores and GPUs."""

    cores: float
    gpus: float


@dataclass(frozen=True)
class Lost:
    """What comes of a job that was given to one worker by name, when that worker dies; `text` says how it died."""

    text: str


@dataclass(eq=False)
class _Worker:
    """A worker process.

    Attributes:
        number: its name; a worker that is started again gets a new one.
        place: the node it must be on; None for any.
        actor: Ray's handle.
        starts: how often it was started in a row without getting ready.
        since: `time.monotonic` of its start.
    """

    number: int
    place: str | None
    actor: Any
    starts: int = 1
    since: float = field(default_factory=monotonic)


@dataclass
class _Given:
    """A job that was handed out.

    Attributes:
        number: the caller's name of it.
        method: called with the worker's state and the job.
        job: the job.
        bound: whether it is for one worker only, so that its caller must know when it is lost.
        deaths: how many workers died of it, or with it.
    """

    number: int
    method: Callable[[Any, Any], Any]
    job: Any
    bound: bool = False
    deaths: int = 0


class Pool(Generic[State]):
    """Workers that each keep a state; a context manager that ends them. Made by `Cluster.pool`.

    Most users need `map` only. Where the next job depends on earlier results, `free`, `give` and `wait` do the same step by step; and where
    it matters which worker does a job, `idle` names them.

    Attributes:
        redone: jobs that were started again, or lost, because their worker died.
        given_up: workers that never got ready, one line each.
    """

    def __init__(
        self,
        factory: Callable[[], State],
        places: Sequence[str | None],
        resources: Resources,
        address: str,
        *,
        retries: int,
        start_s: float,
    ) -> None:
        self._factory, self._places, self._resources, self._address = factory, places, resources, address
        self._retries, self._start_s = retries, start_s
        self._starting: dict[Any, _Worker] = {}
        self._idle: deque[_Worker] = deque()
        self._running: dict[Any, tuple[_Worker, _Given]] = {}
        self._again: deque[_Given] = deque()
        self._numbers = count()
        self._vacant: list[str | None] = []
        self.redone = 0
        self.given_up: list[str] = []

    @property
    def size(self) -> int:
        """Workers that run or are starting."""
        return len(self._starting) + len(self._idle) + len(self._running)

    @property
    def free(self) -> int:
        """How many more jobs can be handed out right now."""
        return max(0, len(self._idle) - len(self._again))

    @property
    def idle(self) -> list[int]:
        """The workers that have nothing to do, by number; one that was started again after its death has a new number."""
        return [worker.number for worker in self._idle]

    @property
    def starting(self) -> int:
        """Workers that are not ready yet."""
        return len(self._starting)

    @property
    def busy(self) -> int:
        """Jobs that are handed out and not finished."""
        return len(self._running) + len(self._again)

    def map(self, method: Callable[[State, Job], Result], jobs: Iterable[Job]) -> Iterator[tuple[int, Result]]:
        """Call a method once for every job, with the state of a worker and the job.

        Args:
            method: called on a worker.
            jobs: taken one at a time, whenever a worker is free.

        Yields:
            The job's number, from 0, and its result, in order of completion.

        Raises:
            ClusterFailed: the workers of one job die again and again, or no worker is left.
        """
        for place in self._vacant:
            self._start(place, 1)
        self._vacant.clear()
        left = enumerate(jobs)
        more = True
        try:
            while more or self.busy:
                while more and self.free:
                    number, job = next(left, (-1, None))
                    more = number >= 0
                    if more:
                        self.give(number, method, job)
                if self.busy or more:
                    yield from self.wait()
        finally:
            self._abandon()

    def give(self, number: int, method: Callable[[State, Any], Any], job: Any, *, worker: int | None = None) -> None:
        """Hand out a job; only where `free` says that there is a worker for it.

        Args:
            number: what `wait` names its result by.
            method: called with the worker's state and the job.
            job: plain data.
            worker: one of `idle`, where only that one may do it: if it dies, `wait` returns a `Lost` in place of a result.
        """
        if worker is not None:
            place = self.idle.index(worker)
            self._idle.rotate(-place)
        self._hand(_Given(number, method, job, bound=worker is not None))

    def wait(self, timeout_s: float | None = None) -> list[tuple[int, Any]]:
        """Wait until something happens; it may be that a worker gets ready, so that `free` grows and no job has finished.

        Args:
            timeout_s: longest to wait; by default as long as it takes.

        Returns:
            Number and result of at most one job; `Lost` is the result of a job that was for one worker, which died.

        Raises:
            ClusterFailed: the workers of one job died again and again, or no worker is left.
            Exception: whatever a job raised.
        """
        while self._again and self._idle:
            self._hand(self._again.popleft())
        watched = [*self._running, *self._starting]
        if not watched:
            self._check_not_empty()
            return []

        import ray

        limit = min([self._start_s, *([] if timeout_s is None else [timeout_s])]) if self._starting else timeout_s
        done, _ = ray.wait(watched, num_returns=1, timeout=limit)
        if not done:
            self._give_up_late()
            return []
        if done[0] in self._starting:
            self._started(done[0])
            return []
        return self._finished(done[0])

    def close(self) -> None:
        """End all workers; what they were doing is lost."""
        workers = [*self._starting.values(), *self._idle, *(worker for worker, _ in self._running.values())]
        for worker in workers:
            _kill(worker)
        self._starting, self._running = {}, {}
        self._idle.clear()
        self._again.clear()

    def __enter__(self) -> Self:
        try:
            for place in self._places:
                self._start(place, 1)
            self._check_not_empty()
            while not self._idle:
                self.wait()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _start(self, place: str | None, starts: int) -> None:
        """Start a worker in a place."""
        import ray
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        # Where a job is lost is for this class to notice, so that it is counted: Ray itself shall neither restart nor retry.
        actor: Any = (
            cast(Any, ray.remote(Keeper))
            .options(
                num_cpus=self._resources.cores,
                num_gpus=self._resources.gpus,
                max_restarts=0,
                max_task_retries=0,
                scheduling_strategy="SPREAD"
                if place is None
                else NodeAffinitySchedulingStrategy(node_id=place, soft=False),
            )
            .remote(self._factory)
        )
        self._starting[actor.ready.remote()] = _Worker(next(self._numbers), place, actor, starts)

    def _started(self, ref: Any) -> None:
        """A worker that was starting is ready, or has died."""
        worker = self._starting.pop(ref)
        outcome = outcome_of(ref)
        if isinstance(outcome, Death):
            self._restart(worker, worker.starts + 1, outcome)
        else:
            self._idle.append(worker)

    def _finished(self, ref: Any) -> list[tuple[int, Any]]:
        """A job is done, or its worker has died."""
        worker, given = self._running.pop(ref)
        try:
            outcome = outcome_of(ref)
        except BaseException:
            self._idle.append(worker)
            raise
        if not isinstance(outcome, Death):
            self._idle.append(worker)
            return [(given.number, outcome)]
        self.redone += 1
        if given.bound:
            self._restart(worker, 1, outcome)
            return [(given.number, Lost(str(outcome)))]
        given.deaths += 1
        if given.deaths > self._retries:
            raise ClusterFailed(
                f"job {given.number} ({reprlib.repr(given.job)}): its worker died {given.deaths} times, the last time: {outcome}; "
                "give each worker more memory, or leave this job out"
            )
        self._again.append(given)
        self._restart(worker, 1, outcome)
        return []

    def _restart(self, worker: _Worker, starts: int, death: Death) -> None:
        """Start a worker again in its place, unless the place is gone or it never gets ready."""
        _kill(worker)
        if starts <= _MOST_STARTS and _there(worker.place):
            self._start(worker.place, starts)
            return
        self.given_up.append(f"a worker is given up, it died: {death}")
        if not self.size:
            raise ClusterFailed(
                f"--ray {self._address}: no worker is left, the last one died: {death}; check that the nodes are up and that each "
                "has the same version of shardwright and of its dependencies"
            )

    def _check_not_empty(self) -> None:
        """Check that there is a worker: without any, nothing would ever happen."""
        if not self.size:
            raise ClusterFailed(
                f"--ray {self._address}: the pool has no worker, and was given {len(self._places)} places; name at least one node that is "
                "up, and use the pool inside its `with` block"
            )

    def _give_up_late(self) -> None:
        """Give up the workers that have been starting for too long, as long as there are others."""
        for ref, worker in list(self._starting.items()):
            if monotonic() - worker.since >= self._start_s:
                del self._starting[ref]
                _kill(worker)
                self.given_up.append(f"a worker is given up, it did not start within {self._start_s:g} s")
        if not self.size:
            raise ClusterFailed(
                f"--ray {self._address}: no worker started within {self._start_s:g} s; each needs {self._resources.cores:g} cores "
                f"and {self._resources.gpus:g} GPUs that nothing else holds: wait until the cluster is free, or use another one"
            )

    def _hand(self, given: _Given) -> None:
        worker = self._idle.popleft()
        self._running[worker.actor.call.remote(given.method, given.job)] = (worker, given)

    def _abandon(self) -> None:
        """Forget the jobs that are handed out; a worker that is at one is started anew when there is work again."""
        for worker, _ in self._running.values():
            _kill(worker)
            self._vacant.append(worker.place)
        self._running = {}
        self._again.clear()


def _there(place: str | None) -> bool:
    """Whether a node is in the cluster."""
    import ray

    return place is None or any(node["NodeID"] == place and node["Alive"] for node in cast(Any, ray).nodes())


def _kill(worker: _Worker) -> None:
    import ray

    with suppress(Exception):  # it is dead already, or the cluster is gone
        ray.kill(worker.actor)
