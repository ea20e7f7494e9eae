"""A cluster and its pools of workers: each job goes to a free worker, and another worker repeats it if that worker dies.

    with open_cluster(address) as cluster, cluster.pool(factory) as pool:  # each worker makes a state with `factory()` and keeps it
        for job, result in pool.map(method, jobs):                         # method(state, job), in order of completion
            ...

- Functions, jobs and results travel between processes. Define functions at the top level of a module that is installed on every node
  (`functools.partial` of one is fine); jobs and results must be plain data.
- A job is taken from `jobs` only when a worker is free for it, so `jobs` may be endless.
- If a worker dies, Ray restarts it on its node and repeats the job (`max_restarts`, `max_task_retries`). If the node is lost, another
  worker does the job. So a job must give the same result on every worker and every time, and must leave writing to the caller.
- An exception that a job raises reaches the caller unchanged; the job is not tried again.
- Leaving the loop or the `with` block, also by Ctrl-C, kills the jobs that still run.
"""

from __future__ import annotations

import re
import reprlib
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, Generic, Self, TypeVar, cast

from shardwright.errors import ClusterFailed

State = TypeVar("State")
Job = TypeVar("Job")
Result = TypeVar("Result")

_LONGEST = 400  # most characters of the message on a worker's death; the end of the message is kept


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
            what = "GPU with a free CPU core" if on_gpu else "CPU core"
            raise ClusterFailed(f"--ray {self.address}: no node lends a {what}; add nodes, or leave --ray out")
        return places

    def pool(self, factory: Callable[[], State], places: Sequence[str] | None = None, **options: Any) -> Pool[State]:
        """A pool of workers with one core each, by default as many as there is room for; `options` are attributes of `Pool`."""
        return Pool(self.address, factory, self.places() if places is None else places, **options)


class StatefulWorker:
    """A worker: makes its state when it starts, also when Ray starts it anew."""

    def __init__(self, factory: Callable[[], Any]) -> None:
        self._state = factory()

    def call(self, method: Callable[[Any, Any], Any], job: Any) -> Any:
        """Do a job."""
        return method(self._state, job)


@dataclass(eq=False)
class Pool(Generic[State]):
    """Workers that each keep a state; a context manager that ends them. Made by `Cluster.pool`.

    Attributes:
        address: address of the cluster, for messages.
        factory: called on each worker when it starts; returns the worker's state, the first argument of `method`.
        places: the node of each worker.
        gpus: GPUs that each worker holds.
        retries: how often a job is started again after its worker died.
        start_s: seconds in which the workers must start; they wait while the cluster is busy with other work.
        given_up: one line for each worker that did not start, or whose node was lost.
    """

    address: str
    factory: Callable[[], State]
    places: Sequence[str]
    gpus: float = 0.0
    retries: int = 3
    start_s: float = 120.0
    given_up: list[str] = field(default_factory=list)
    _workers: list[Any] = field(default_factory=list)

    @property
    def size(self) -> int:
        """Number of workers."""
        return len(self._workers)

    def map(self, method: Callable[[State, Job], Result], jobs: Iterable[Job]) -> Iterator[tuple[Job, Result]]:
        """Call `method(state, job)` for every job, with the state of the worker that does the job.

        Yields:
            Each job and its result, in order of completion.

        Raises:
            ClusterFailed: a job's worker died more than `retries` times, or no worker is left.
            Exception: the exception that a job raised.
        """
        import ray

        self._check_not_empty()
        left: Iterator[tuple[int, Job]] = enumerate(jobs)
        idle = list(self._workers)
        running: dict[Any, tuple[Any, int, Job]] = {}
        try:
            while True:
                while idle and (given := next(left, None)):
                    worker, (number, job) = idle.pop(), given
                    running[worker.call.remote(method, job)] = worker, number, job
                if not running:
                    return
                (done,), _ = ray.wait([*running], num_returns=1)
                worker, number, job = running.pop(done)
                try:
                    result = _result(done)
                except ray.exceptions.RayError as error:
                    if _answers(worker):
                        raise ClusterFailed(
                            f"job {number} ({reprlib.repr(job)}): its worker died {self.retries + 1} times, the last time: "
                            f"{_line(error)}; give each worker more memory, or leave this job out"
                        ) from error
                    self._give_up(worker, f"died: {_line(error)}")
                    left = chain([(number, job)], left)
                    continue
                idle.append(worker)
                yield job, result
        finally:
            for ref, (worker, _, _) in running.items():
                _kill(worker, ref)

    def each(self, method: Callable[[State, Job], Result], job: Job) -> list[Result]:
        """Call `method(state, job)` once on every worker; return the results in order of the workers.

        Raises:
            ClusterFailed: a worker died more than `retries` times.
            Exception: the exception that the job raised.
        """
        from ray.exceptions import RayError

        asked = [worker.call.remote(method, job) for worker in self._workers]
        try:
            return [_result(ref) for ref in asked]
        except RayError as error:
            raise ClusterFailed(
                f"--ray {self.address}: a worker cannot do its first job ({_line(error)}); give the nodes more memory"
            ) from error

    def keep(self, numbers: Collection[int]) -> None:
        """End the workers whose place in the results of `each` is not in `numbers`."""
        for number, worker in enumerate(self._workers):
            if number not in numbers:
                _kill(worker)
        self._workers = [self._workers[number] for number in numbers]

    def __enter__(self) -> Self:
        self._check_not_empty(self.places)
        import ray
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        remote: Any = cast(Any, ray.remote(StatefulWorker))
        options = {"num_cpus": 1, "num_gpus": self.gpus, "max_restarts": -1, "max_task_retries": self.retries}
        try:
            for place in self.places:
                where = NodeAffinitySchedulingStrategy(node_id=place, soft=False)
                self._workers.append(remote.options(**options, scheduling_strategy=where).remote(self.factory))
            starting = {worker.__ray_ready__.remote(): worker for worker in self._workers}
            started, late = ray.wait([*starting], num_returns=len(starting), timeout=self.start_s)
            for ref in late:
                why = f"did not start within {self.start_s:g} s; it needs a core that is free of other work"
                self._give_up(starting[ref], why)
            for ref in started:
                try:
                    ray.get(ref)
                except ray.exceptions.RayError as error:
                    self._give_up(starting[ref], f"died: {_line(error)}")
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for worker in self._workers:
            _kill(worker)
        self._workers = []

    def _give_up(self, worker: Any, why: str) -> None:
        _kill(worker)
        self._workers.remove(worker)
        self.given_up.append(f"a worker is given up, it {why}")
        self._check_not_empty()

    def _check_not_empty(self, workers: Sequence[Any] | None = None) -> None:
        """Raise if no worker is left, since waiting would never end."""
        if not (self._workers if workers is None else workers):
            why = f"of {len(self.places)}" + (f"; {self.given_up[-1]}" if self.given_up else "")
            raise ClusterFailed(
                f"--ray {self.address}: no worker is left {why}; check that the nodes are up and free, and that each has the same "
                "version of shardwright and of its dependencies"
            )


def _answers(worker: Any) -> bool:
    """Whether a worker runs; waits until Ray has started it anew, or has found that its node is lost."""
    import ray

    try:
        ray.get(worker.__ray_ready__.options(max_task_retries=-1).remote())
    except ray.exceptions.RayError:
        return False
    return True


def _kill(worker: Any, job: Any = None) -> None:
    """End a worker, or only its job if one is given: Ray then starts the worker anew."""
    import ray

    with suppress(Exception):  # the worker is already dead, or the cluster has ended
        if job is not None:
            ray.cancel(job)  # else Ray would do the job again
        ray.kill(worker, no_restart=job is None)


def _result(ref: Any) -> Any:
    """The result of a finished job; raises the job's own exception unchanged, and a `RayError` if its worker or node died."""
    import ray
    from ray import exceptions

    try:
        return ray.get(ref)
    except exceptions.RayTaskError as error:
        cause = getattr(error, "cause", None)
        if isinstance(cause, exceptions.RayError) or not isinstance(cause, Exception):
            raise ClusterFailed(f"a job cannot be done: {_line(error)}; give each node the same software") from error
        raise cause from error


def _line(error: Exception) -> str:
    """The informative lines of an error message, joined into one."""
    said = re.sub(r"\x1b\[[0-9;]*m", "", str(error))  # Ray colours its messages
    lines = [line.strip() for line in said.splitlines() if line.strip(" ^")]
    # Drop the lines that only name actor, process and node, and the general explanation of deaths that follows.
    telling = [line for line in lines if not line.split(":")[0].endswith(("id", "namespace", "class_name", "ip"))]
    text = re.split(r" Some common causes| traceback: ", " ".join(telling or lines))[0]
    return text[-_LONGEST:] or type(error).__name__
