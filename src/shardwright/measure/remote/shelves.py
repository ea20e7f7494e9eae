"""The stores that a cluster's samples go to, one for each kind of hardware, and what is left to measure for each."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from time import monotonic

from shardwright.errors import MeasurementFailed
from shardwright.files import write_atomically
from shardwright.measure.agenda import Agenda
from shardwright.measure.checks import CHECKS
from shardwright.measure.collection import Collection, request_of
from shardwright.measure.drawing import Drawer, DrawnSet
from shardwright.measure.failures import Failures
from shardwright.measure.hardware import Fingerprint
from shardwright.measure.homes import alike, homes_of
from shardwright.measure.journal import Key
from shardwright.measure.remote.node import Batch, Facts, Visit
from shardwright.measure.schedule import schedule
from shardwright.measure.store import SampleStore
from shardwright.measure.visiting import row_of

_BATCH = 4  # samples that a worker gets at a time: what is lost when it is killed
_FLUSH_S = 30.0
_MOST_DEATHS = 3  # of workers at one sample


class Shelf:
    """One store, open for writing, and the samples that it still lacks; a context manager.

    Args:
        folder: the store.
        facts: of a worker whose samples go there.
        collection: what is collected.
        arena_bytes: room for the tables of a sample.
        allow_other_hardware: whether it may hold samples of other hardware.
        ahead: whether samples may be drawn before they are needed, which takes a core of this machine.
    """

    def __init__(
        self,
        folder: Path,
        facts: Facts,
        collection: Collection,
        arena_bytes: int,
        *,
        allow_other_hardware: bool,
        ahead: bool,
    ) -> None:
        self.folder, self.hardware, self._arena_bytes = folder, facts.hardware, arena_bytes
        sets = collection.sets(arena_bytes)
        self._open = ExitStack()
        request = request_of(sets, arena_bytes)
        self.store = self._open.enter_context(
            SampleStore(folder, facts.hardware, request, allow_other_hardware=allow_other_hardware)
        )
        self._drawer = self._open.enter_context(Drawer(sets, ahead=ahead))
        self.failures = None if collection.device == "cpu" else Failures(folder)
        wanted = list(schedule(collection.samples))
        self.wanted, self.measured, self._flushed = len(wanted), 0, monotonic()
        self._agenda = Agenda(wanted, self.store.visits, self.failures)
        self._out: dict[Key, DrawnSet] = {}
        self._deaths: Counter[Key] = Counter()
        self.spent: defaultdict[str, float] = defaultdict(float)

    @property
    def left(self) -> int:
        """Samples that are not settled."""
        return len(self._agenda) + len(self._out)

    @property
    def unseen(self) -> int:
        """Samples that were never visited."""
        return self._agenda.unseen + sum(not self.store.visits.seen(key) for key in self._out)

    def batch(self, workers: int) -> Batch | None:
        """The next samples for one of so many workers; None where all are settled or handed out."""
        if not len(self._agenda):
            return None
        keys = [self._agenda.take()]
        for _ in range(1, min(_BATCH, -(-(len(self._agenda) + 1) // max(1, workers)))):
            if self._deaths[
                keys[-1]
            ]:  # one that workers died of, or with, goes alone, so that it is known which one it was
                break
            keys.append(self._agenda.take())
        drawn = [self._drawer.get(sample) for sample, _ in keys]
        self._drawer.expect(sample for sample, _ in self._agenda.coming(_BATCH * workers))
        self._out.update(zip(keys, drawn, strict=True))
        return Batch(keys, [one.tables for one in drawn], self._arena_bytes)

    def keep(self, visits: Sequence[Visit], hardware: Fingerprint) -> None:
        """Store what a worker found.

        Args:
            visits: in order.
            hardware: what it found it on.

        Raises:
            MeasurementFailed: a sample cannot be measured, which on a CPU ends a collection; or measuring processes die of it.
        """
        for visit in visits:
            drawn = self._out.pop(visit.key)
            self.measured += 1
            if visit.measurement is not None:
                row = row_of(drawn, visit.key[1], hardware["device_kind"], visit.measurement, visit.measured_at)
                self.store.append(row, hardware)
                self._count(visit.measurement.spent)
                self._agenda.visited(visit.key)
            elif visit.died:
                self._died(visit.key, visit.error)
            else:
                self._failed(visit.key, visit.error)
        if monotonic() - self._flushed > _FLUSH_S:
            self.store.flush()
            self._flushed = monotonic()

    def give_back(self, keys: Sequence[Key]) -> None:
        """Put samples back that a worker did not come to."""
        for key in reversed(keys):
            del self._out[key]
            self._agenda.lost(key)

    def lose(self, keys: Sequence[Key], how: str) -> None:
        """Put samples back whose worker died.

        Raises:
            MeasurementFailed: too many workers died at one of them.
        """
        for key in reversed(keys):
            del self._out[key]
            self._died(key, f"the worker that measured it died: {how}")

    def checked(self, text: str) -> None:
        """Keep what the checks of a machine found, beside its samples."""
        write_atomically(self.folder / CHECKS, text)

    def known_checks(self) -> str | None:
        """What earlier checks found."""
        path = self.folder / CHECKS
        return path.read_text(encoding="utf-8") if path.exists() else None

    def close(self) -> None:
        """Close the store."""
        self._open.close()

    def _died(self, key: Key, how: str) -> None:
        """Put a sample back at which a process died, unless too many did."""
        self._deaths[key] += 1
        if self._deaths[key] > _MOST_DEATHS:
            self._failed(key, f"{self._deaths[key]} times, {how}")
        else:
            self._agenda.lost(key)

    def _failed(self, key: Key, why: str) -> None:
        """Note that a sample cannot be measured; on a CPU that ends the collection."""
        if self.failures is None:
            raise MeasurementFailed(f"sample {key[0]}: {why}")
        self.failures.add(key, MeasurementFailed(why))

    def _count(self, spent: Mapping[str, float]) -> None:
        for step, took in spent.items():
            self.spent[step] += took


class Shelves:
    """All stores of a collection; a context manager.

    Args:
        folder: what was asked for: one store, or the folder of several.
        collection: what is collected.
        mine: hardware of this machine; None where it has no such device.
        allow_other_hardware: whether samples of all hardware go into one store.
        ahead: as for `Shelf`.
    """

    def __init__(
        self, folder: Path, collection: Collection, mine: Fingerprint | None, *, allow_other_hardware: bool, ahead: bool
    ) -> None:
        self._folder, self._collection, self._mine = folder, collection, mine
        self._allow_other, self._ahead = allow_other_hardware, ahead
        self.all: list[Shelf] = []

    def open_for(self, found: Sequence[Facts]) -> None:
        """Open the stores of these workers, as far as they are not open.

        Raises:
            InvalidInput: one of them is of another collection, of other hardware, or in use.
        """
        new = [facts for facts in found if self.of(facts.hardware) is None]
        if not new:
            return
        if self._allow_other:
            least = min(found, key=lambda facts: facts.memory)
            self._add(self._folder, replace(new[0], memory=least.memory))
            return
        kinds: list[Facts] = []
        for facts in new:
            if not any(alike(facts.hardware, kind.hardware) for kind in kinds):
                kinds.append(facts)
        there = [shelf.hardware for shelf in self.all]
        homes = homes_of(self._folder, [*there, *(kind.hardware for kind in kinds)], self._mine)
        for facts, home in zip(kinds, homes[len(there) :], strict=True):
            self._add(home, facts)

    def of(self, hardware: Fingerprint) -> Shelf | None:
        """The store of a hardware; None where it is not open."""
        if self._allow_other:
            return next(iter(self.all), None)
        return next((shelf for shelf in self.all if alike(shelf.hardware, hardware)), None)

    def __enter__(self) -> Shelves:
        return self

    def __exit__(self, *_: object) -> None:
        with ExitStack() as closing:
            for shelf in self.all:
                closing.callback(shelf.close)

    def _add(self, folder: Path, facts: Facts) -> None:
        arena = self._collection.arena(lambda: facts.memory)
        allowed = self._allow_other
        self.all.append(Shelf(folder, facts, self._collection, arena, allow_other_hardware=allowed, ahead=self._ahead))
