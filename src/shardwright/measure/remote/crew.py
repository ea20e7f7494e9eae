"""The workers of a collection on a cluster: what each is on, and what it must be asked before it measures."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from shardwright.cluster import Lost, Pool
from shardwright.errors import ClusterFailed, MeasurementFailed
from shardwright.measure.failures import MOST_IN_A_ROW
from shardwright.measure.remote.node import Batch, Checked, Facts, MeasuringNode
from shardwright.measure.remote.shelves import Shelf, Shelves

_MOST_SILENT = 5


@dataclass
class Member:
    """A worker, as far as it is known.

    Attributes:
        facts: what it is on; None until it has said so.
        checked: whether its kernels are known to compute what they should.
        failed: samples in a row that it could not measure.
    """

    facts: Facts | None = None
    checked: bool = False
    failed: int = 0


@dataclass
class Crew:
    """Workers that are asked, checked, and then given batches: `tell` gives each idle worker its next job, `hear` takes an answer.

    Attributes:
        pool: the workers.
        shelves: where their samples go.
        check: whether each must be checked before it measures.
        opened: called whenever stores were opened.
    """

    pool: Pool[MeasuringNode]
    shelves: Shelves
    check: bool
    opened: Callable[[], None]
    members: dict[int, Member] = field(default_factory=dict)
    _jobs: dict[int, tuple[int, Batch | None]] = field(default_factory=dict)
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
        # Which stores there are depends on all workers, so nothing is opened before all have said what they are on.
        if self.shelves.all or not (self.pool.starting or any(one.facts is None for one in self.members.values())):
            self._open()
        for number in self.pool.idle if self.shelves.all and go_on else ():
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
                self._shelf(member).lose(batch.keys, answer.text)
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

    def workers_of(self, shelf: Shelf) -> int:
        """How many workers measure for a store."""
        known = [member.facts for member in self.members.values() if member.facts is not None]
        return sum(self.shelves.of(facts.hardware) is shelf for facts in known)

    def _unanswered(self, how: str) -> None:
        """Count the workers that died of a question, so that a machine on which all do ends the collection."""
        self._silent += 1
        if self._silent > _MOST_SILENT:
            raise ClusterFailed(
                f"{self._silent} workers in a row died when they were asked what hardware they are on, or checked, the last one: {how}; "
                "try there: python -m shardwright.measure.collect"
            )

    def _open(self) -> None:
        """Open the stores of all workers that are known."""
        before = len(self.shelves.all)
        self.shelves.open_for([member.facts for member in self.members.values() if member.facts is not None])
        if len(self.shelves.all) > before:
            self.opened()

    def _next(self, number: int) -> None:
        member = self._member(number)
        shelf = self._shelf(member)
        if self.check and not member.checked:
            self._give(number, MeasuringNode.check, shelf.known_checks())
            return
        batch = shelf.batch(self.workers_of(shelf))
        if batch is not None:
            self._give(number, MeasuringNode.measure, batch)

    def _give(self, worker: int, method: Callable[[MeasuringNode, Any], Any], job: Any) -> None:
        number = next(self._numbers)
        self._jobs[number] = (worker, job if isinstance(job, Batch) else None)
        self.pool.give(number, method, job, worker=worker)

    def _checked(self, member: Member, answer: Checked) -> None:
        shelf = self._shelf(member)
        shelf.checked(answer.text)
        if answer.wrong:
            raise MeasurementFailed(f"{_host(member)}: {answer.wrong[0]}")
        member.checked = True

    def _measured(self, member: Member, batch: Batch, visits: Any) -> None:
        assert member.facts is not None
        for visit in visits:
            member.failed = 0 if visit.measurement is not None else member.failed + 1
        shelf, visited = self._shelf(member), {visit.key for visit in visits}
        shelf.give_back([key for key in batch.keys if key not in visited])
        try:
            shelf.keep(visits, member.facts.hardware)
        except MeasurementFailed as error:
            raise MeasurementFailed(f"{_host(member)}: {error}") from None
        if member.failed >= MOST_IN_A_ROW:
            raise MeasurementFailed(
                f"{_host(member)}: {member.failed} samples in a row cannot be measured, the last one: {visits[-1].error}"
            )

    def _shelf(self, member: Member) -> Shelf:
        assert member.facts is not None
        shelf = self.shelves.of(member.facts.hardware)
        assert shelf is not None
        return shelf

    def _member(self, worker: int) -> Member:
        return self.members.setdefault(worker, Member())


def _host(member: Member) -> str:
    return member.facts.host if member.facts else "a worker"
