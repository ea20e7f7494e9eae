"""A cluster and its pools of workers: each job goes to a free worker, and to another one if that worker dies.

    with open_cluster(address) as cluster, cluster.pool(factory) as pool:  # each worker makes a state by `factory()`, and keeps it
        for index, result in pool.map(method, jobs):                       # method(state, job), in order of completion
            ...

- Functions, jobs and results travel between processes. Define functions at the top level of a module that is installed on every node
  (`functools.partial` of one is fine); jobs and results must be plain data.
- A job is taken from `jobs` only when a worker is free for it, so `jobs` may be endless.
- If a worker dies, Ray restarts it (`max_restarts`), and the first free worker does its job again. So a job must give the same result
  wherever and however often it runs, and must leave writing to the caller.
- An exception that a job raises reaches the caller unchanged; the job is not tried again.
- Leaving the loop or the `with` block, also by Ctrl-C, kills the jobs that still run.
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

_LONGEST = 400  # most characters of the message that says how a worker died; its end says most


@dataclass(frozen=True)
class Cluster:
    """A cluster that this process is connected to; made by `shardwright.cluster.open_cluster`.

    Attributes:
        address: its address, for messages.
    """

    address: str

    @property
    def local(self) -> bool:
        """Whether the cluster was started on this machine for this process alone."""
        return self.address.partition(":")[0] == "local"

    def nodes(self) -> list[tuple[str, int, int]]:
        """Ray's name, CPU cores and GPUs of each machine that is up now."""
        import ray

        lent = [(node["NodeID"], node["Resources"]) for node in cast(Any, ray).nodes() if node["Alive"]]
        return [(name, int(has.get("CPU", 0)), int(has.get("GPU", 0))) for name, has in lent]

    def places(self, measuring_on: str | None = None) -> list[str]:
        """The node of each worker that the cluster has room for, ignoring other work.

        Args:
            measuring_on: the device, for workers that measure: one worker per GPU ("cuda"), or one per machine ("cpu"), since several
                would disturb each other through caches and memory. A local cluster has as many as its user asked for.

        Raises:
            ClusterFailed: the cluster has no such device.
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
        """A pool of workers with one core each, by default as many as there is room for; `options` are attributes of `Pool`."""
        return Pool(self.address, factory, self.places() if places is None else places, **options)


@dataclass(frozen=True)
class Lost:
    """The result of a job whose worker died, if only that worker could do the job.

    Attributes:
        text: one line that says how the worker died.
    """

    text: str


class StatefulWorker:
    """A worker. Its first job makes its state, so that an error of the factory reaches the caller as an error of that job."""

    def __init__(self, factory: Callable[[], Any]) -> None:
        self._factory = factory
        self._state: list[Any] = []

    def ready(self) -> None:
        """Answer, which shows that the worker runs."""

    def call(self, method: Callable[[Any, Any], Any], job: Any) -> Any:
        """Do a job."""
        if not self._state:
            self._state.append(self._factory())
        return method(self._state[0], job)


_Worker = tuple[int, Any]
"""A worker: its number, new after each start, and Ray's handle."""


@dataclass(eq=False)
class _Given:
    """A job that was handed out; `bound` if only one worker may do it, and `deaths` of the workers that did it."""

    number: int
    method: Callable[[Any, Any], Any]
    job: Any
    bound: bool
    deaths: int = 0


@dataclass(eq=False)
class Pool(Generic[State]):
    """Workers that each keep a state; a context manager that ends them. Made by `Cluster.pool`.

    Most users need `map` only. If the next job depends on earlier results, `free`, `give` and `wait` do the same step by step. If it
    matters which worker does a job, `idle` names the workers.

    Attributes:
        address: address of the cluster, for messages.
        factory: called on each worker with its first job; returns the worker's state, the first argument of `method`.
        places: the node of each worker.
        gpus: GPUs that each worker holds.
        retries: how often a job is started again after its worker died.
        start_s: seconds in which a worker must start; it waits while the cluster is busy with other work.
        redone: number of jobs that were restarted, or lost, because their worker died.
        given_up: one line for each worker that never got ready.
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
    _running: dict[Any, tuple[_Worker, _Given | None]] = field(default_factory=dict)  # job None: the worker is starting
    _again: deque[_Given] = field(default_factory=deque)
    _numbers: Iterator[int] = field(default_factory=count)

    @property
    def size(self) -> int:
        """Number of workers that run or are starting."""
        return len(self._idle) + len(self._running)

    @property
    def free(self) -> int:
        """Number of jobs that can be handed out now."""
        return max(0, len(self._idle) - len(self._again))

    @property
    def idle(self) -> list[int]:
        """Numbers of the workers that have nothing to do; a restarted worker has a new number."""
        return [number for number, _ in self._idle]

    @property
    def starting(self) -> int:
        """Number of workers that are not ready yet."""
        return sum(given is None for _, given in self._running.values())

    @property
    def busy(self) -> int:
        """Number of jobs that are handed out and not finished."""
        return len(self._running) - self.starting + len(self._again)

    def map(self, method: Callable[[State, Job], Result], jobs: Iterable[Job]) -> Iterator[tuple[int, Result]]:
        """Call `method(state, job)` for every job, with the state of the worker that does the job.

        Yields:
            The job's number, from 0, and its result, in order of completion.

        Raises:
            ClusterFailed: a job's workers died more than `retries` times, or no worker is left.
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
        """Hand out a job; call this only if `free` is above 0.

        Args:
            number: the number under which `wait` returns the result.
            method: called with the worker's state and the job.
            job: plain data.
            worker: one of `idle`, if only that worker may do the job: if it dies, `wait` returns a `Lost` in place of a result.
        """
        if worker is not None:
            self._idle.rotate(-self.idle.index(worker))
        self._hand(_Given(number, method, job, bound=worker is not None))

    def wait(self) -> list[tuple[int, Any]]:
        """Wait until a job finishes or a worker gets ready or dies; if no job has finished, `free` may have grown.

        Returns:
            Number and result of at most one job; the result is `Lost` if the job was for one worker and that worker died.

        Raises:
            ClusterFailed: a job's workers died more than `retries` times, or no worker is left.
            Exception: the exception that a job raised.
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
        """End the idle workers whose numbers are not in `workers`."""
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
                # Ray restarts dead workers but repeats no job: the pool itself gives a lost job to the first free worker.
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
        """Count a worker as starting until it answers; Ray keeps the request while it restarts the worker."""
        self._running[actor.ready.options(max_task_retries=-1).remote()] = ((next(self._numbers), actor), None)

    def _finished(self, ref: Any) -> list[tuple[int, Any]]:
        """Handle one event: a worker is ready, a job is done, or a worker has died."""
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
        """Raise if no worker is left, since waiting would never end."""
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
        """Forget all jobs that are handed out, and restart the workers that are doing one."""
        self._again.clear()
        for ref, (worker, given) in list(self._running.items()):
            if given is not None:
                del self._running[ref]
                _kill(worker, for_good=False)
                self._begin(worker[1])


def _kill(worker: _Worker, *, for_good: bool = True) -> None:
    import ray

    with suppress(Exception):  # the worker is already dead, or the cluster is gone
        ray.kill(worker[1], no_restart=for_good)


def _outcome(ref: Any) -> Any:
    """The result of a finished job, or `Lost` if its worker or node died; raises the job's own exception unchanged."""
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
    """The informative lines of an error message, joined into one."""
    said = re.sub(r"\x1b\[[0-9;]*m", "", str(error))  # Ray colours its messages
    lines = [line.strip() for line in said.splitlines() if line.strip(" ^")]
    # Drop the lines that only name actor, process and node, and the general explanation of deaths that follows.
    telling = [line for line in lines if not line.split(":")[0].endswith(("id", "namespace", "class_name", "ip"))]
    text = re.split(r" Some common causes| traceback: ", " ".join(telling or lines))[0]
    return text[-_LONGEST:] or type(error).__name__
