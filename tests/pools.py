"""A pool of workers in this process, which finish in any order and die now and then: see `shardwright.cluster.Pool`."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np


class UnrulyPool:
    """Workers that only share what can be pickled.

    Args:
        size: number of workers.
        seed: seed of the order in which they finish, and of their deaths.
        factory: makes the state of each.
        deaths: share of the jobs after which the worker dies and is started anew.

    Attributes:
        finished: numbers of the jobs, over all calls of `map`, in order of completion.
        redone: jobs done again.
    """

    def __init__(self, size: int, seed: int = 0, factory: Callable[[], Any] = lambda: None, deaths: float = 0.0):
        self.size = size
        self.finished: list[int] = []
        self.redone = 0
        self.given_up: list[str] = []
        self._rng = np.random.default_rng(seed)
        self._factory, self._deaths = factory, deaths
        self.states = [factory() for _ in range(size)]

    def keep(self, workers: Sequence[int]) -> None:
        self.states = [self.states[worker] for worker in workers]
        self.size = len(self.states)

    def each(self, method: Callable[[Any, Any], Any], job: Any) -> list[Any]:
        return [self._do(worker, pickle.dumps((method, job))) for worker in range(self.size)]

    def map(self, method: Callable[[Any, Any], Any], jobs: Iterable[Any]) -> Iterator[tuple[Any, Any]]:
        left, before = enumerate(jobs), len(self.finished)
        running: list[tuple[int, int, Any, bytes]] = []
        while True:
            idle = sorted(set(range(self.size)) - {worker for _, worker, _, _ in running})
            while idle and (given := next(left, None)):
                number, job = given
                running.append((number, idle.pop(self._rng.integers(len(idle))), job, pickle.dumps((method, job))))
            if not running:
                return
            number, worker, job, sent = running.pop(self._rng.integers(len(running)))
            result = self._do(worker, sent)
            if self._rng.random() < self._deaths:
                self.states[worker] = self._factory()
                self.redone += 1
                result = self._do(worker, sent)
            self.finished.append(before + number)
            yield job, pickle.loads(pickle.dumps(result))

    def _do(self, worker: int, sent: bytes) -> Any:
        method, job = pickle.loads(sent)
        return method(self.states[worker], job)
