"""What a calibration has measured so far."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from shardwright.calibration.sets import Set
from shardwright.cost.dataset import Samples, join, samples_of_works
from shardwright.measure.device_work import DeviceWork, Visit
from shardwright.measure.measuring import Controls, settled, time_of

Keep = Callable[[Set, Visit], None]


@dataclass
class Observed:
    """Visits to sets, and the sets of earlier calibrations.

    Attributes:
        keep: takes every visit, so that it survives the process.
        earlier: what was measured before; None where nothing was.
        usual_ms: state of the machine to convert times to, as those of before were; None for that of this process.
        sets: those of this calibration, in the order of their first visit.
        failed: why sets could not be measured, in the order of trying.
    """

    keep: Keep
    earlier: Samples | None = None
    usual_ms: float | None = None
    sets: dict[Set, None] = field(default_factory=dict)
    failed: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._visits: dict[DeviceWork, list[Visit]] = {}

    def __len__(self) -> int:
        return len(self.sets) + (len(self.earlier) if self.earlier is not None else 0)

    def add(self, one: Set, visit: Visit) -> None:
        """Take a visit to what a set does."""
        self._visits.setdefault(one.work, []).append(visit)
        self.keep(one, visit)
        self.take(one)

    def take(self, one: Set) -> None:
        """Take a set whose work was visited, be it for another set."""
        if one.kind != "control":
            self.sets[one] = None

    def known(self, one: Set) -> bool:
        """Whether what a set does was visited."""
        return one.work in self._visits

    def disturbed(self) -> list[Set]:
        """Sets that need another visit, the most disturbed first."""
        found = {one.work: one for one in self.sets if not settled(self._visits[one.work])}
        return sorted(found.values(), key=lambda one: -min(visit.sentinel for visit in self._visits[one.work]))

    def controls(self, works: Sequence[DeviceWork]) -> Controls:
        """What the controls took; nothing where one of them was not visited."""
        if not all(self._visits.get(work) for work in works):
            return Controls()
        return Controls(tuple(sum(time_of(self._visits[work], self.usual_ms)) for work in works))

    def samples(self) -> Samples:
        """All sets with their times, earlier ones first."""
        own = self.own()
        return own if self.earlier is None else join([self.earlier, own]) if len(own) else self.earlier

    def own(self) -> Samples:
        """The sets of this calibration."""
        times = np.array([time_of(self._visits[one.work], self.usual_ms) for one in self.sets]).reshape(-1, 2)
        return samples_of_works([one.work.works for one in self.sets], times, [one.label for one in self.sets])
