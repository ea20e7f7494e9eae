"""A cluster, and the pools of workers on it: jobs go to free workers, and again to others where a worker dies.

    with open_cluster(address) as cluster, cluster.pool(factory) as pool:  # each worker makes a state by `factory()`, and keeps it
        for index, result in pool.map(method, jobs):                       # method(state, job), in order of completion
            ...

- Functions, jobs and results travel between processes: functions are best defined at the top level of a module that is installed on every
  node (`functools.partial` of one is fine), jobs and results are plain data.
- A job is taken from `jobs` only when a worker is free for it, so they may be endless.
- Ray starts a worker that died again in its place (`max_restarts`), and its job is done again by whichever worker is free first. So a job
  gives the same result wherever and however often it is done, and leaves writing to the caller.
- An exception that a job raises itself reaches the caller as it is, and is never tried again.
- Leaving the loop or the `with` block, by Ctrl-C as well, kills what still runs.
"""

from __future__ import annotations

import re
import reprlib
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count
from typing import Any, Generic, Self, TypeVar, cast

from shardwright.errors import ClusterFailed

State = TypeVar("State")
Job = TypeVar("Job")
Result = TypeVar("Result")

_LONGEST = 400  # characters of how a worker died; the end says most


@dataclass(frozen=True)
class Cluster:
    """A cluster that this process is connected to; made by `shardwright.cluster.open_cluster`.

    Attributes:
        address: where it is, for messages.
    """

    address: str

    @property
    def local(self) -> bool:
        """Whether it was started on this machine, for this process alone."""
        return self.address.partition(":")[0] == "local"

    def nodes(self) -> list[tuple[str, int, int]]:
        """Ray's name, the CPU cores and the GPUs of each machine that is there now."""
        import ray

        lent = [(node["NodeID"], node["Resources"]) for node in cast(Any, ray).nodes() if node["Alive"]]
        return [(name, int(has.get("CPU", 0)), int(has.get("GPU", 0))) for name, has in lent]

    def places(self, measuring_on: str | None = None) -> list[str]:
        """The node of each worker that there is room for, other work aside.

        Args:
            measuring_on: the device, for workers that measure: one on each GPU ("cuda"), or one on each machine ("cpu"), as they would
                disturb each other through its caches and memory. A cluster of this machine alone has as many as its user said.

        Raises:
            ClusterFailed: there is no such device in the cluster.
        """
        one_each = measuring_on == "cpu" and not self.local
        on_gpu = measuring_on == "cuda"
        room = {name: min(cores, gpus) if on_gpu else cores for name, cores, gpus in self.nodes()}
        places = [name for name, workers in room.items() for _ in range(min(workers, 1) if one_each else workers)]
        if not places:
            what = "GPU with a CPU core beside it" if on_gpu else "CPU core"
            raise ClusterFailed(f"--ray {self.address}: no node lends a {what}; add nodes, or leave --ray out")
        return places

    def pool(self, factory: Callable[[], State], places: Sequence[str] | None = None, **options: Any) -> Pool[State]:
        """Workers of one core each: by default as many as there is room for; `options` are attributes of `Pool`."""
        return Pool(self.address, factory, self.places() if places is None else places, **options)


@dataclass(frozen=True)
class Lost:
    """What becomes of a job for one worker, which died.

    Attributes:
        text: one line that says how.
    """

    text: str


class StatefulWorker:
    """A worker: its state is made by its first job, so that an error of the factory reaches the caller as that job's error."""

    def __init__(self, factory: Callable[[], Any]) -> None:
        self._factory = factory
        self._state: list[Any] = []

    def ready(self) -> None:
        """That it answers says that the worker runs."""

    def call(self, method: Callable[[Any, Any], Any], job: Any) -> Any:
        """Do a job."""
        if not self._state:
            self._state.append(self._factory())
        return method(self._state[0], job)


_Worker = tuple[int, Any]
"""A worker's number since it was last started, and Ray's handle."""


@dataclass(eq=False)
class _Given:
    """A job that was handed out under a number; `bound` to its worker or not, and `deaths` of workers at it."""

    number: int
    method: Callable[[Any, Any], Any]
    job: Any
    bound: bool
    deaths: int = 0


@dataclass(eq=False)
class Pool(Generic[State]):
    """Workers that each keep a state; a context manager that ends them. Made by `Cluster.pool`.

    Most users need `map` only. Where the next job depends on earlier results, `free`, `give` and `wait` do the same step by step; and where
    it matters which worker does a job, `idle` names them.

    Attributes:
        address: of the cluster, for messages.
        factory: called on each worker, with its first job; makes what `method` gets as its first argument.
        places: the node of each worker.
        gpus: GPUs that a worker holds.
        retries: how often a job is started again after its worker died.
        start_s: seconds in which a worker must start; a cluster that is busy with other work has no room for it earlier.
        redone: jobs that were started again, or lost, because their worker died.
        given_up: workers that never got ready, one line each.
    """

    address: str
    factory: Callable[[], State]
    places: Sequence[str]
    gpus: float = 0.0
    retries: int = 3
    start_s: float = 120.0
    redone: int = 0
    given_up: list[str] = field(default_factory=list)
    _idle: deque[_Worker] = field(default_factory=deque)
    _running: dict[Any, tuple[_Worker, _Given | None]] = field(default_factory=dict)  # without a job, it is starting
    _again: deque[_Given] = field(default_factory=deque)
    _numbers: Iterator[int] = field(default_factory=count)

    @property
    def size(self) -> int:
        """Workers that run or are starting."""
        return len(self._idle) + len(self._running)

    @property
    def free(self) -> int:
        """How many more jobs can be handed out right now."""
        return max(0, len(self._idle) - len(self._again))

    @property
    def idle(self) -> list[int]:
        """The workers that have nothing to do, by number; one that was started again after its death has a new number."""
        return [number for number, _ in self._idle]

    @property
    def starting(self) -> int:
        """Workers that are not ready yet."""
        return sum(given is None for _, given in self._running.values())

    @property
    def busy(self) -> int:
        """Jobs that are handed out and not finished."""
        return len(self._running) - self.starting + len(self._again)

    def map(self, method: Callable[[State, Job], Result], jobs: Iterable[Job]) -> Iterator[tuple[int, Result]]:
        """Call a method once for every job, with the state of a worker and the job.

        Yields:
            The job's number, from 0, and its result, in order of completion.

        Raises:
            ClusterFailed: the workers of one job die again and again, or no worker is left.
        """
        left, more = enumerate(jobs), True
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
            self._idle.rotate(-self.idle.index(worker))
        self._hand(_Given(number, method, job, bound=worker is not None))

    def wait(self) -> list[tuple[int, Any]]:
        """Wait until something happens; it may be that a worker gets ready, so that `free` grows and no job has finished.

        Returns:
            Number and result of at most one job; `Lost` is the result of a job that was for one worker, which died.

        Raises:
            ClusterFailed: the workers of one job died again and again, or no worker is left.
            Exception: whatever a job raised.
        """
        while self._again and self._idle:
            self._hand(self._again.popleft())
        self._check_not_empty()
        if not self._running:
            return []
        import ray

        done, _ = ray.wait([*self._running], num_returns=1, timeout=self.start_s if self.starting else None)
        if done:
            return self._finished(done[0])
        for ref, (worker, given) in list(self._running.items()):
            if given is None:
                del self._running[ref]
                self._give_up(
                    worker, f"did not start within {self.start_s:g} s; it needs a core that nothing else holds"
                )
        return []

    def keep(self, workers: Collection[int]) -> None:
        """End the idle workers whose numbers are not among these."""
        for worker in [worker for worker in self._idle if worker[0] not in workers]:
            self._idle.remove(worker)
            _kill(worker)

    def __enter__(self) -> Self:
        if not self.places:
            self._check_not_empty()
        import ray
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        remote: Any = cast(Any, ray.remote(StatefulWorker))
        try:
            for place in self.places:
                # A job that was lost goes to whoever is free first: Ray itself restarts workers, and does no job again.
                options = {"num_cpus": 1, "num_gpus": self.gpus, "max_restarts": -1, "max_task_retries": 0}
                where = NodeAffinitySchedulingStrategy(node_id=place, soft=False)
                self._begin(remote.options(**options, scheduling_strategy=where).remote(self.factory))
            while not self._idle:
                self.wait()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for worker in [*self._idle, *(worker for worker, _ in self._running.values())]:
            _kill(worker)
        self._idle.clear()
        self._running.clear()
        self._again.clear()

    def _begin(self, actor: Any) -> None:
        """Count a worker among the starting ones until it answers; Ray keeps the question while it restarts the worker."""
        self._running[actor.ready.options(max_task_retries=-1).remote()] = ((next(self._numbers), actor), None)

    def _finished(self, ref: Any) -> list[tuple[int, Any]]:
        """A worker is ready, a job is done, or a worker has died."""
        worker, given = self._running.pop(ref)
        try:
            outcome = _outcome(ref)
        except BaseException:
            self._idle.append(worker)
            raise
        if not isinstance(outcome, Lost):
            self._idle.append(worker)
            return [(given.number, outcome)] if given else []
        if given is None:
            self._give_up(worker, f"died: {outcome.text}")
            return []
        self.redone += 1
        self._begin(worker[1])
        if given.bound:
            return [(given.number, outcome)]
        given.deaths += 1
        if given.deaths > self.retries:
            raise ClusterFailed(
                f"job {given.number} ({reprlib.repr(given.job)}): its worker died {given.deaths} times, the last time: {outcome.text}; "
                "give each worker more memory, or leave this job out"
            )
        self._again.append(given)
        return []

    def _give_up(self, worker: _Worker, why: str) -> None:
        _kill(worker)
        self.given_up.append(f"a worker is given up, it {why}")
        self._check_not_empty()

    def _check_not_empty(self) -> None:
        """Check that there is a worker: without any, nothing would ever happen."""
        if not self.size:
            why = f"of {len(self.places)}" + (f"; {self.given_up[-1]}" if self.given_up else "")
            raise ClusterFailed(
                f"--ray {self.address}: no worker is left {why}; check that the nodes are up and free, and that each has the same "
                "version of shardwright and of its dependencies"
            )

    def _hand(self, given: _Given) -> None:
        worker = self._idle.popleft()
        self._running[worker[1].call.remote(given.method, given.job)] = (worker, given)

    def _abandon(self) -> None:
        """Forget the jobs that are handed out; Ray starts the workers that are at one anew."""
        self._again.clear()
        for ref, (worker, given) in list(self._running.items()):
            if given is not None:
                del self._running[ref]
                _kill(worker, for_good=False)
                self._begin(worker[1])


def _kill(worker: _Worker, *, for_good: bool = True) -> None:
    import ray

    with suppress(Exception):  # it is dead already, or the cluster is gone
        ray.kill(worker[1], no_restart=for_good)


def _outcome(ref: Any) -> Any:
    """The result of a finished job, or `Lost` where its worker or its node died; raises what the job raised, as it was."""
    import ray
    from ray import exceptions

    try:
        return ray.get(ref)
    except exceptions.RayTaskError as error:
        cause = getattr(error, "cause", None)
        if isinstance(cause, exceptions.RayError) or not isinstance(cause, Exception):
            raise
        raise cause from error
    except exceptions.RayError as error:
        return Lost(_line(error))


def _line(error: Exception) -> str:
    """The lines of a message that say something, as one."""
    said = re.sub(r"\x1b\[[0-9;]*m", "", str(error))  # Ray colours its messages
    lines = [line.strip() for line in said.splitlines() if line.strip(" ^")]
    # It names actor, process and node on lines of their own, which say nothing to users, and goes on to explain what deaths there are.
    telling = [line for line in lines if not line.split(":")[0].endswith(("id", "namespace", "class_name", "ip"))]
    text = re.split(r" Some common causes| traceback: ", " ".join(telling or lines))[0]
    return text[-_LONGEST:] or type(error).__name__
