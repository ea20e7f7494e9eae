"""A pool of workers in this process, which finish in any order and die now and then: see `shardwright.cluster.Pool`."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np


class UnrulyPool:
    """Workers that only share what can be pickled.

    Args:
        size: number of workers.
        seed: of the order in which they finish, and of their deaths.
        factory: makes the state of each.
        deaths: share of the jobs of which the worker dies when it has done them, and is started anew.

    Attributes:
        finished: numbers of the jobs (of the last `map`), in order of completion.
        redone: jobs done again.
        most_ahead: most jobs that had been handed out before the first one that was not finished yet.
    """

    def __init__(self, size: int, seed: int = 0, factory: Callable[[], Any] = lambda: None, deaths: float = 0.0):
        self.size = size
        self.finished: list[int] = []
        self.redone = 0
        self.most_ahead = 0
        self._rng = np.random.default_rng(seed)
        self._factory, self._deaths = factory, deaths
        self.states = [factory() for _ in range(size)]
        self._running: list[tuple[int, int, bytes]] = []

    starting = 0

    @property
    def busy(self) -> int:
        return len(self._running)

    @property
    def places(self) -> list[str]:
        return [""] * self.size

    @property
    def free(self) -> int:
        return len(self.idle)

    @property
    def idle(self) -> list[int]:
        return sorted(set(range(self.size)) - {worker for _, worker, _ in self._running})

    def keep(self, workers: Iterable[int]) -> None:
        assert not self._running
        self.states = [self.states[worker] for worker in workers]
        self.size = len(self.states)

    def give(self, number: int, method: Callable[[Any, Any], Any], job: Any, *, worker: int | None = None) -> None:
        assert self.idle, "a job was given where no worker is free"
        assert worker is None or worker in self.idle
        chosen = int(self._rng.choice(self.idle)) if worker is None else worker
        self._running.append((number, chosen, pickle.dumps((method, job))))
        first_missing = next(count for count in range(number + 2) if count not in self.finished)
        self.most_ahead = max(self.most_ahead, number - first_missing)

    def wait(self) -> list[tuple[int, Any]]:
        assert self._running, "waiting for nothing would take for ever"
        if self._rng.random() < 0.2:
            return []  # a worker got ready
        number, worker, sent = self._running.pop(self._rng.integers(len(self._running)))
        found = self._do(worker, sent)
        if self._rng.random() < self._deaths:
            self.states[worker] = self._factory()
            self.redone += 1
            found = self._do(worker, sent)
        self.finished.append(number)
        return [(number, pickle.loads(pickle.dumps(found)))]

    def map(self, method: Callable[[Any, Any], Any], jobs: Iterable[Any]) -> Iterator[tuple[int, Any]]:
        left = enumerate(jobs)
        more = True
        self.finished.clear()
        while more or self._running:
            while more and self.free:
                number, job = next(left, (-1, None))
                more = number >= 0
                if more:
                    self.give(number, method, job)
            if self._running:
                yield from self.wait()

    def _do(self, worker: int, sent: bytes) -> Any:
        method, job = pickle.loads(sent)
        return method(self.states[worker], job)
