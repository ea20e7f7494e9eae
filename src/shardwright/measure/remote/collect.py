"""A collection on a cluster: its workers, what each must be asked before it measures, and the loop that hands out sets."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from pathlib import Path
from time import monotonic
from types import TracebackType
from typing import Any, Self

from shardwright.cluster import Cluster, Lost, Pool
from shardwright.errors import ClusterFailed, MeasurementFailed
from shardwright.files import write_atomically
from shardwright.measure.backend import check_backend, is_own
from shardwright.measure.checks import CHECKS
from shardwright.measure.collect import MOST_IN_A_ROW
from shardwright.measure.hardware import Fingerprint, differences, fingerprint
from shardwright.measure.measuring import Progress
from shardwright.measure.remote.node import Batch, Checked, Facts, MeasuringNode, NodeOptions, Outcome
from shardwright.measure.sampling import TableSet
from shardwright.measure.stock import Collection, CollectSummary, Stock, summarise, to_revisit
from shardwright.measure.timing import TimingPolicy

_BATCH = 4  # sets that a worker gets at a time: what is lost when it is killed
_MOST_DEATHS = 3  # of workers at one set
_MOST_SILENT = 5


@dataclass
class Member:
    """A worker, as far as it is known.

    Attributes:
        facts: what it is on; None until it has said so.
        checked: whether its kernels are known to compute what they should.
        failed: sets in a row that it could not measure.
    """

    facts: Facts | None = None
    checked: bool = False
    failed: int = 0


@dataclass
class Crew:
    """Workers that are asked, checked, and then given sets: `tell` gives each idle worker its next job, `hear` takes an answer.

    A context manager, which closes the stocks.

    Attributes:
        pool: the workers.
        folder: the store.
        collection: what is collected.
        check: whether each worker must be checked before it measures.
        ahead: whether sets may be drawn before they are needed, which takes a core of this machine.
        stocks: one for each kind of hardware.
    """

    pool: Pool[MeasuringNode]
    folder: Path
    collection: Collection
    check: bool
    ahead: bool
    members: dict[int, Member] = field(default_factory=dict)
    stocks: list[Stock] = field(default_factory=list)
    _jobs: dict[int, tuple[int, Batch | None]] = field(default_factory=dict)
    _deaths: Counter[tuple[int, int]] = field(default_factory=Counter)
    _silent: int = 0
    _numbers: count[int] = field(default_factory=count)

    def tell(self, *, go_on: bool) -> None:
        """Give each idle worker its next job.

        Args:
            go_on: whether new samples are to be measured.
        """
        for number in self.pool.idle:
            if self._member(number).facts is None:
                self._give(number, MeasuringNode.facts, None)
        for number in self.pool.idle if go_on else ():
            if self._member(number).facts is not None:
                self._next(number)

    def hear(self, number: int, answer: Any) -> None:
        """Take the answer to a job, or the news that its worker died.

        Raises:
            ClusterFailed: workers die again and again before they measure.
            MeasurementFailed: a machine or a sample cannot be measured on, and the collection ends with that.
        """
        worker, batch = self._jobs.pop(number)
        if isinstance(answer, Lost):
            member = self.members.pop(worker)
            if batch is not None:
                for drawn in reversed(batch.sets):
                    self._died(self._stock(member), drawn, f"the worker that measured it died: {answer.text}")
            else:
                self._unanswered(answer.text)
            return
        self._silent = 0
        member = self._member(worker)
        if isinstance(answer, Facts):
            member.facts = answer
        elif isinstance(answer, Checked):
            self._checked(member, answer)
        else:
            assert batch is not None
            self._measured(member, batch, answer)

    @property
    def left(self) -> int:
        """How many sets are to be visited, by all hardware that is known."""
        return sum(stock.left for stock in self.stocks) + sum(
            len(batch.sets) for _, batch in self._jobs.values() if batch
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with ExitStack() as closing:
            for stock in self.stocks:
                closing.callback(stock.close)

    def _unanswered(self, how: str) -> None:
        """Count the workers that died of a question, so that a machine on which all do ends the collection."""
        self._silent += 1
        if self._silent > _MOST_SILENT:
            raise ClusterFailed(
                f"{self._silent} workers in a row died when they were asked what hardware they are on, or checked, the last one: {how}; "
                "try there: python -m shardwright.measure.collect"
            )

    def _next(self, number: int) -> None:
        member = self._member(number)
        stock = self._stock(member)
        if self.check and not member.checked:
            path = self.folder / CHECKS
            self._give(number, MeasuringNode.check, path.read_text(encoding="utf-8") if path.exists() else None)
        elif stock.left:
            self._give(number, MeasuringNode.measure, self._batch(stock))

    def _batch(self, stock: Stock) -> Batch:
        """The next sets for one of the workers on a hardware."""
        workers = sum(one.facts is not None and self._stock(one) is stock for one in self.members.values())
        sets: list[TableSet] = []
        for _ in range(min(_BATCH, -(-stock.left // max(1, workers)))):
            sets.append(stock.draw(stock.take(), ahead=_BATCH * workers))
            if self._deaths[
                id(stock), sets[-1].sample
            ]:  # one that workers died of goes last, so that it is known which one it was
                break
        return Batch(sets, stock.arena_bytes)

    def _give(self, worker: int, method: Callable[[MeasuringNode, Any], Any], job: Any) -> None:
        number = next(self._numbers)
        self._jobs[number] = (worker, job if isinstance(job, Batch) else None)
        self.pool.give(number, method, job, worker=worker)

    def _checked(self, member: Member, answer: Checked) -> None:
        write_atomically(self.folder / CHECKS, answer.text)
        if answer.wrong:
            raise MeasurementFailed(f"{_host(member)}: {answer.wrong[0]}")
        member.checked = True

    def _measured(self, member: Member, batch: Batch, outcomes: Sequence[Outcome]) -> None:
        stock = self._stock(member)
        for drawn in reversed(batch.sets[len(outcomes) :]):  # it did not come to these
            stock.lost(drawn.sample)
        for drawn, outcome in zip(batch.sets, outcomes, strict=False):
            member.failed = 0 if outcome.visit else member.failed + 1
            if outcome.visit:
                stock.keep(drawn, outcome.visit)
                for step, took in outcome.visit.spent.items():
                    stock.spent[step] += took
            elif outcome.died:
                self._died(stock, drawn, f"{_host(member)}: {outcome.error}")
            else:
                self._failed(stock, drawn, f"{_host(member)}: {outcome.error}")
        if member.failed >= MOST_IN_A_ROW:
            raise MeasurementFailed(
                f"{_host(member)}: {member.failed} samples in a row cannot be measured, the last one: {outcomes[-1].error}"
            )

    def _died(self, stock: Stock, drawn: TableSet, how: str) -> None:
        """Put a set back at which a process died, unless too many did."""
        key = (id(stock), drawn.sample)
        self._deaths[key] += 1
        if self._deaths[key] > _MOST_DEATHS:
            self._failed(stock, drawn, f"{self._deaths[key]} times, {how}")
        else:
            stock.lost(drawn.sample)

    def _failed(self, stock: Stock, drawn: TableSet, why: str) -> None:
        """Note that a set cannot be measured; on a CPU that ends the collection."""
        if not stock.on_gpu:
            raise MeasurementFailed(f"sample {drawn.sample}: {why}")
        stock.fail(drawn, why)

    def _stock(self, member: Member) -> Stock:
        """The sets of a worker's hardware."""
        facts = member.facts
        assert facts is not None
        for stock in self.stocks:
            if not differences(stock.hardware, facts.hardware):
                return stock
        arena = self.collection.arena(lambda: facts.memory)
        self.stocks.append(Stock(self.folder, facts.hardware, self.collection, arena, ahead=self.ahead))
        return self.stocks[-1]

    def _member(self, worker: int) -> Member:
        return self.members.setdefault(worker, Member())


def _host(member: Member) -> str:
    return member.facts.host if member.facts else "a worker"


@dataclass(frozen=True)
class RemoteSummary:
    """What a collection on a cluster comes to.

    Attributes:
        stores: what the store holds now, for each kind of hardware.
        lost: answers that did not come because a worker died; their work was done again.
        given_up: workers that were given up, a line each.
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

    This process draws the sets, the same as without a cluster, and alone writes the samples. One worker measures on each machine, on a GPU
    machine one on each GPU; on a cluster of this machine alone, as many as it has workers. What a worker was doing when it died is done
    again by another. A visit is in the store as soon as this process has heard of it: a kill loses the last few of each worker.

    Machines whose measurements cannot be compared (`shardwright.measure.hardware.DECISIVE`) measure all samples each; the store keeps
    them apart.

    Args:
        cluster: where to measure.
        folder: the store.
        collection: what to measure.
        backend: as for `shardwright.measure.collect.collect`; by default fbgemm on the machines that have it.
        seconds: stop after this time; by default when all samples are there.
        policy: how often to repeat each measurement; by default the device's own.
        progress: called after each answer with the samples measured, those wanted, and how many are to be revisited, of all stores.
        say: is given a line on each kind of hardware, wherever there are several.
        of_machine: says what hardware a worker is on, from device and backend; runs there.

    Raises:
        InvalidInput: an option breaks a rule, or the store cannot be used.
        MeasurementFailed: a machine cannot measure, or a sample cannot be measured; what was measured before is kept.
        ClusterFailed: no worker is left.
    """
    started = monotonic()
    if backend is not None and not is_own(backend):
        check_backend(backend)
    collection.sets(collection.arena(lambda: 10**9 * 4))  # refuses wrong options before anything starts
    stop_at = started + (math.inf if seconds is None else seconds)
    options = NodeOptions(collection.device, backend, policy, of_machine)
    on_gpu = collection.device == "cuda"
    check = on_gpu or (backend is not None and is_own(backend))
    told: set[int] = set()
    with (
        cluster.pool(
            partial(MeasuringNode, options), places=_places(cluster, on_gpu=on_gpu), gpus=float(on_gpu)
        ) as pool,
        Crew(pool, Path(folder), collection, check, not cluster.local) as crew,
    ):
        while True:
            going_on = monotonic() < stop_at
            crew.tell(go_on=going_on)
            # With nothing at work, there is nothing to wait for but workers that are starting, where there is work for them.
            if not pool.busy and not (going_on and pool.starting and (crew.left or not crew.stocks)):
                break
            for number, answer in pool.wait():
                crew.hear(number, answer)
            if len(crew.stocks) > max(1, len(told)):
                for stock in crew.stocks:
                    if id(stock) not in told:
                        told.add(id(stock))
                        say(f"one kind of hardware: {stock.hardware['processor']}, {stock.hardware['cores']} cores")
            if progress and crew.stocks:
                wanted = sum(stock.wanted for stock in crew.stocks)
                progress(wanted - sum(stock.unseen for stock in crew.stocks), wanted, to_revisit(crew.stocks))
        seconds_taken = monotonic() - started
        found = [(summarise(stock, seconds_taken), dict(stock.hardware)) for stock in crew.stocks]
        return RemoteSummary(found, pool.redone, list(pool.given_up))


def _places(cluster: Cluster, *, on_gpu: bool) -> list[str]:
    """The node of each worker.

    Raises:
        ClusterFailed: there is no such device in the cluster.
    """
    nodes = cluster.nodes()
    if on_gpu:
        places = [node.id for node in nodes for _ in range(int(min(node.gpus, node.cores)))]
    else:  # measuring processes of one machine share its caches and memory: each would be noise to the others
        places = [node.id for node in nodes for _ in range(int(node.cores) if cluster.local else int(node.cores >= 1))]
    if not places:
        what = "GPU with a CPU core beside it" if on_gpu else "CPU core"
        raise ClusterFailed(f"--ray {cluster.address}: no node lends a {what}; add nodes, or leave --ray out")
    return places
