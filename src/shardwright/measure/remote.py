"""Collect kernel samples on the machines of a Ray cluster: this process draws the sets and writes the store; the machines measure.

Each worker first reports its hardware. Then it gets, one at a time, sets that its kind of hardware has not measured yet. It measures with
the same process, on a reserved core in the same way, as a machine that collects alone.
"""

from __future__ import annotations

import math
import socket
import tempfile
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from pathlib import Path
from time import monotonic
from typing import Any

from shardwright.cluster import Cluster, Lost, Pool
from shardwright.errors import ClusterFailed, MeasurementFailed, ShardwrightError
from shardwright.files import write_atomically
from shardwright.measure.backend import check_backend, default_backend, is_own
from shardwright.measure.checks import CHECKS, check_machine
from shardwright.measure.collect import MOST_IN_A_ROW
from shardwright.measure.device_work import Visit
from shardwright.measure.hardware import Fingerprint, device_memory, differences, fingerprint, import_torch
from shardwright.measure.measuring import Progress
from shardwright.measure.sampling import TableSet
from shardwright.measure.stock import Collection, CollectSummary, Stock, summarise, to_revisit, work_of
from shardwright.measure.timing import TimingPolicy
from shardwright.measure.worker import Worker, WorkerOptions

_MOST_DEATHS = 3  # worker deaths at one set before the set is given up
_MOST_SILENT = 5


@dataclass(frozen=True)
class Facts:
    """A worker's machine: fingerprint, bytes of GPU memory (0 on a CPU), `checks.json` after its checks, and the failed check if any."""

    hardware: Fingerprint
    memory: int
    checks: str | None = None
    wrong: str = ""


@dataclass(frozen=True)
class Failed:
    """Why a set could not be measured, and whether the measuring process died, in which case another try may succeed."""

    error: str
    died: bool


@dataclass
class MeasuringNode:
    """A worker's state: its measuring process, started with the first set.

    Attributes:
        device: "cpu" or "cuda".
        backend: name of the backend; None for fbgemm if the machine has it.
        policy: how often to repeat each measurement; None for the policy of the device.
        of_machine: returns the fingerprint of the worker's machine, from device and backend.
    """

    device: str
    backend: str | None
    policy: TimingPolicy | None
    of_machine: Callable[[str, str], Fingerprint]
    _worker: Worker | None = None

    def facts(self, known: str | None) -> Facts:
        """The facts about this machine; on a GPU, and for a user's own backend, checks environment and kernels first.

        Args:
            known: the content of an earlier `checks.json`; a machine that passed then is not checked again.

        Raises:
            ShardwrightError: backend, torch or device is missing here.
        """
        host, backend, on_gpu = socket.gethostname(), self.backend or default_backend(), self.device == "cuda"
        try:
            check_backend(backend)
            import_torch()
            memory = device_memory() if on_gpu else 0
            hardware = self.of_machine(self.device, backend)
            checks = _checked(known, self.device, backend) if on_gpu or is_own(backend) else (None, "")
        except ShardwrightError as error:
            raise type(error)(f"{host}: {error}") from None
        return Facts(hardware, memory, checks[0], checks[1] and f"{host}: {checks[1]}")

    def measure(self, job: tuple[TableSet, int]) -> Visit | Failed:
        """Visit a set. The job is the set and the bytes of room for its tables.

        Raises:
            MeasurementFailed: the measuring process cannot start.
        """
        drawn, arena_bytes = job
        if self._worker is None or not self._worker.alive:
            if self._worker is not None:
                self._worker.close()
            options = WorkerOptions(self.device, self.backend or default_backend(), arena_bytes, self.policy)
            try:
                self._worker = Worker(options)
            except MeasurementFailed as error:
                raise MeasurementFailed(f"{socket.gethostname()}: {error}") from None
        try:
            return self._worker.visit(work_of(drawn))
        except MeasurementFailed as error:
            return Failed(f"{socket.gethostname()}: {error}", not self._worker.alive)


def _checked(known: str | None, device: str, backend: str) -> tuple[str, str]:
    """Check this machine; return the content of `checks.json` and the first problem, empty if there is none."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / CHECKS
        if known is not None:
            path.write_text(known, encoding="utf-8")
        wrong = check_machine(Path(folder), device, backend, say=lambda _: None)
        return path.read_text(encoding="utf-8"), wrong[0] if wrong else ""


@dataclass
class Dispatcher:
    """Hands jobs to workers, first the question for their facts and then sets: `tell` gives out jobs, `hear` takes an answer.

    Attributes:
        pool: the workers.
        folder: the store.
        collection: the collection to measure.
        ahead: whether sets may be drawn before they are needed, which takes a core of this machine.
        closing: closes the stocks at the end.
        stocks: the stock of sets of each kind of hardware.
        stock_of: the stock of each worker that has reported its hardware.
    """

    pool: Pool[MeasuringNode]
    folder: Path
    collection: Collection
    ahead: bool
    closing: ExitStack
    stocks: list[Stock] = field(default_factory=list)
    stock_of: dict[int, Stock] = field(default_factory=dict)
    _jobs: dict[int, tuple[int, TableSet | None]] = field(default_factory=dict)
    _deaths: Counter[tuple[int, int]] = field(default_factory=Counter)
    _failed: Counter[int] = field(default_factory=Counter)  # failed sets in a row of each worker
    _silent: int = 0
    _numbers: count[int] = field(default_factory=count)

    def tell(self, *, go_on: bool) -> None:
        """Give each idle worker its next job; sets only if `go_on`."""
        for worker in self.pool.idle:
            stock = self.stock_of.get(worker)
            if stock is None:
                path = self.folder / CHECKS
                known = path.read_text(encoding="utf-8") if path.exists() else None
                self._give(worker, MeasuringNode.facts, known, None)
            elif go_on and stock.left:
                drawn = stock.draw(stock.take(), ahead=len(self.stock_of))
                self._give(worker, MeasuringNode.measure, (drawn, stock.arena_bytes), drawn)

    def hear(self, number: int, answer: Any) -> None:
        """Take the answer to a job, or the news that its worker died.

        Raises:
            ClusterFailed: several workers in a row died before they could measure.
            MeasurementFailed: a machine failed its checks, or a sample cannot be measured; this ends the collection.
        """
        worker, drawn = self._jobs.pop(number)
        if drawn is not None:
            self._measured(worker, drawn, answer)
        elif isinstance(answer, Lost):
            self._silent += 1
            if self._silent > _MOST_SILENT:
                raise ClusterFailed(
                    f"{self._silent} workers in a row died when they were asked what hardware they are on, or checked, the last one: "
                    f"{answer.text}; try there: python -m shardwright.measure.collect"
                )
        else:
            self._silent = 0
            if answer.checks is not None:
                write_atomically(self.folder / CHECKS, answer.checks)
            if answer.wrong:
                raise MeasurementFailed(answer.wrong)
            self.stock_of[worker] = self._stock(answer)

    @property
    def left(self) -> int:
        """Number of sets still to be visited, over all known kinds of hardware."""
        return sum(stock.left for stock in self.stocks) + sum(drawn is not None for _, drawn in self._jobs.values())

    def _give(
        self, worker: int, method: Callable[[MeasuringNode, Any], Any], job: object, drawn: TableSet | None
    ) -> None:
        number = next(self._numbers)
        self._jobs[number] = (worker, drawn)
        self.pool.give(number, method, job, worker=worker)

    def _stock(self, facts: Facts) -> Stock:
        """The stock of a machine's kind of hardware; opens a new one for a new kind."""
        for stock in self.stocks:
            if not differences(stock.hardware, facts.hardware):
                return stock
        arena = self.collection.arena(lambda: facts.memory)
        self.stocks.append(
            self.closing.enter_context(Stock(self.folder, facts.hardware, self.collection, arena, ahead=self.ahead))
        )
        return self.stocks[-1]

    def _measured(self, worker: int, drawn: TableSet, answer: Visit | Failed | Lost) -> None:
        """Keep a visit; if a process died at the set, return the set to its stock, unless too many died at it."""
        stock = self.stock_of.pop(worker) if isinstance(answer, Lost) else self.stock_of[worker]
        if isinstance(answer, Visit):
            self._failed[worker] = 0
            stock.keep(drawn, answer)
            for step, took in answer.spent.items():
                stock.spent[step] += took
            return
        why = answer.error if isinstance(answer, Failed) else f"the worker that measured it died: {answer.text}"
        self._failed[worker] += 1
        if self._failed[worker] >= MOST_IN_A_ROW:
            raise MeasurementFailed(
                f"{self._failed[worker]} samples in a row cannot be measured by a worker, the last one: {why}"
            )
        key = (id(stock), drawn.sample)
        if isinstance(answer, Lost) or answer.died:
            self._deaths[key] += 1
            if self._deaths[key] <= _MOST_DEATHS:
                stock.lost(drawn.sample)
                return
            why = f"{self._deaths[key]} times, {why}"
        if not stock.on_gpu:
            raise MeasurementFailed(f"sample {drawn.sample}: {why}")
        stock.fail(drawn, why)


@dataclass(frozen=True)
class RemoteSummary:
    """The result of a collection on a cluster.

    Attributes:
        stores: the summary and the fingerprint of each kind of hardware in the store.
        lost: number of answers that did not come because a worker died; their work was done again.
        given_up: one line for each worker that was given up.
    """

    stores: Sequence[tuple[CollectSummary, Mapping[str, str]]]
    lost: int
    given_up: Sequence[str]


def collect_on_cluster(
    cluster: Cluster,
    folder: str | Path,
    collection: Collection,
    *,
    backend: str | None = None,
    seconds: float | None = None,
    policy: TimingPolicy | None = None,
    progress: Progress | None = None,
    say: Callable[[str], None] = print,
    of_machine: Callable[[str, str], Fingerprint] = fingerprint,
) -> RemoteSummary:
    """Measure random sets of tables on the machines of a cluster; call it again, with or without a cluster, to resume.

    This process draws the same sets as without a cluster, and it alone writes samples. It stores a visit as soon as the answer comes. If a
    worker dies, another one does its job again. Machines whose measurements are not comparable
    (`shardwright.measure.hardware.DECISIVE`) each measure all samples; the store keeps them apart.

    Args:
        cluster: the cluster; `Cluster.places` defines the number of workers.
        folder: the store.
        collection: what to measure.
        backend: as for `shardwright.measure.collect.collect`; by default fbgemm on the machines that have it.
        seconds: stop after this time; by default when all samples are measured.
        policy: how often to repeat each measurement; by default the policy of the device.
        progress: called after each answer with the samples measured, those wanted, and how many are to be revisited, over all hardware.
        say: called with one line for each kind of hardware, if there are several.
        of_machine: returns the fingerprint of a worker's machine, from device and backend; runs on the worker.

    Raises:
        InvalidInput: an option is out of range, or the store cannot be used.
        MeasurementFailed: a machine cannot measure, or a sample cannot be measured; what was measured before is kept.
        ClusterFailed: no worker is left.
    """
    started = monotonic()
    if backend is not None and not is_own(backend):
        check_backend(backend)
    collection.sets(collection.arena(lambda: 10**9 * 4))  # rejects wrong options before anything starts
    stop_at = started + (math.inf if seconds is None else seconds)
    device, told = collection.device, 1
    state = partial(MeasuringNode, device, backend, policy, of_machine)
    with cluster.pool(state, cluster.places(device), gpus=float(device == "cuda")) as pool, ExitStack() as closing:
        dispatcher = Dispatcher(pool, Path(folder), collection, not cluster.local, closing)
        while True:
            going_on = monotonic() < stop_at
            dispatcher.tell(go_on=going_on)
            # If no job runs, only starting workers are worth waiting for, and only if there is work for them.
            if not pool.busy and not (going_on and pool.starting and (dispatcher.left or not dispatcher.stocks)):
                break
            for number, answer in pool.wait():
                dispatcher.hear(number, answer)
            if len(dispatcher.stocks) > told:
                for stock in dispatcher.stocks[told if told > 1 else 0 :]:
                    say(f"one kind of hardware: {stock.hardware['processor']}, {stock.hardware['cores']} cores")
                told = len(dispatcher.stocks)
            if progress and dispatcher.stocks:
                wanted = sum(stock.wanted for stock in dispatcher.stocks)
                progress(
                    wanted - sum(stock.unseen for stock in dispatcher.stocks), wanted, to_revisit(dispatcher.stocks)
                )
        took = monotonic() - started
        found = [(summarise(stock, took), dict(stock.hardware)) for stock in dispatcher.stocks]
        return RemoteSummary(found, pool.redone, list(pool.given_up))
