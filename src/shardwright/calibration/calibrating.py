"""Measure, train, measure what the models disagree about, until the error or the time is what was asked for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import monotonic
from typing import Protocol, TypeAlias

from shardwright.calibration.curriculum import Curriculum
from shardwright.calibration.observed import Observed
from shardwright.calibration.sets import Group, Set
from shardwright.cost.adapting import FEWEST_SETS, Recipe, Validated, validated
from shardwright.cost.model import ComputeModel
from shardwright.errors import MeasurementFailed
from shardwright.measure.device_work import DeviceWork, Visit
from shardwright.search.strategy import Interruptible
from shardwright.threads import one_thread

Told: TypeAlias = Callable[[float, int, float | None, str], None]
"""Called with seconds since the beginning, sets so far, the held-out error (None before it is known), and what is being done."""

_GROWTH = 2.0  # of the number of sets, from one training to the next
_HALVES, _FOLDS = 2, 4
_EFFORT = 0.5  # of trainings but the last one
_FEW = 60  # with fewer sets, training gains nothing by more effort
_LAST_TRAINING = 4.5  # what the last one takes, in times of the one before: more parts and updates
_FIRST_RESERVE = (
    0.2,
    15.0,
)  # of the time, and seconds at most, for the last training, before one has told how long that takes
_BETWEEN_CONTROLS = 40  # visits
_FEWEST_CHOSEN = 10
_AGAIN = 3  # one of so many visits may be to a set that was disturbed before
_MOST_FAILED = 10  # in a row: then the backend is at fault, not a set


class Visitor(Protocol):
    """What times a device's work: a `shardwright.measure.measuring.Measurer`."""

    def visit(self, work: DeviceWork) -> Visit:
        """Time a work once."""
        ...


@dataclass
class Calibrating(Interruptible):
    """A calibration under way.

    Attributes:
        visitor: times kernels.
        curriculum: what to measure.
        observed: what was measured.
        controls: measured first, last, and now and then.
        ways: recipes for a model.
        start: a model that says which sets are quick.
        seconds: how long the whole may take.
        aim: mean held-out error that is good enough.
        told: hears of progress.
    """

    visitor: Visitor
    curriculum: Curriculum
    observed: Observed
    controls: Sequence[DeviceWork]
    ways: dict[str, Recipe]
    start: ComputeModel | None
    seconds: float
    aim: float
    told: Told

    def __post_init__(self) -> None:
        self._began = monotonic()
        self._error: float | None = None
        self._reserve = min(_FIRST_RESERVE[0] * self.seconds, _FIRST_RESERVE[1])
        self._failures = self._visits = 0
        self.stopped = "time"

    def run(self) -> None:
        """Measure until the aim is reached, the time is up but for the last training, or Ctrl-C is pressed; `stopped` says which.

        Raises:
            MeasurementFailed: no measuring process can be started, or ten sets in a row could not be measured.
        """
        with self.until_interrupted():
            try:
                self._measure()
            except KeyboardInterrupt:
                self.stopped = "interrupted"

    def _measure(self) -> None:
        self._visit_controls()
        models: Sequence[ComputeModel] = [self.start] if self.start is not None else []
        queue: list[Group] = []
        goal = FEWEST_SETS
        if len(self.observed) >= FEWEST_SETS:  # of earlier calibrations
            models, goal = self._trained()
        while not self._over:
            lacking = max(goal - len(self.observed), _FEWEST_CHOSEN)
            self._tell("choosing sets")
            if self._error is None:
                queue = self.curriculum.first_sets(lacking, models[-1] if models else None)
            else:
                queue = self.curriculum.next_sets(lacking, models)
            for group in queue:
                self._visit_group(group)
                if self._over:
                    break
            self._visit_again(len(queue) // _AGAIN)
            if len(self.observed) >= goal and self._left > 2 * self._reserve:
                models, goal = self._trained()
        self._visit_controls()

    @property
    def _over(self) -> bool:
        if self.interrupted:  # where a search answered Ctrl-C with its best plan
            raise KeyboardInterrupt
        if self._error is not None and self._error <= self.aim and self.observed.sets:
            self.stopped = "aim"
            return True
        return self._left <= 0

    @property
    def _left(self) -> float:
        """Seconds until the last training."""
        return self.seconds - self._reserve - (monotonic() - self._began)

    def _trained(self) -> tuple[Sequence[ComputeModel], int]:
        """The models of two halves of the sets, and how many sets the next training is to have."""
        self._tell("training")
        began, count = monotonic(), len(self.observed)
        found = self.validated(_HALVES, _EFFORT)
        self._error = found.accuracy.mean_error
        self._reserve = _LAST_TRAINING * (monotonic() - began)
        self._tell("trained")
        return found.models, int(_GROWTH * count)

    def validated(self, folds: int, effort: float) -> Validated:
        """The best recipe for the sets so far, and its held-out error."""
        with one_thread():
            return validated(self.observed.samples(), self.ways, folds, self.curriculum.seed, effort)

    def finished(self) -> tuple[Validated, ComputeModel]:
        """The best recipe for all sets, and the model that it makes of them."""
        effort = 1.0 if len(self.observed) >= _FEW else _EFFORT
        best = self.validated(_FOLDS, effort)
        with one_thread():
            return best, best.recipe(self.observed.samples(), self.curriculum.seed, effort)

    def _visit_group(self, group: Group) -> None:
        """Visit the sets of a group once, whole where it is a pair; one that cannot be measured is noted, with its group left out."""
        for one in group:
            if self.observed.known(one):
                self.observed.take(one)
            elif not self._visit(one):
                return

    def _visit_again(self, most: int) -> None:
        """Visit sets again that were disturbed: later, since disturbances last."""
        for one in self.observed.disturbed()[:most]:
            if self._over:
                return
            self._visit(one)

    def _visit(self, one: Set) -> bool:
        """Whether a set could be visited.

        Raises:
            MeasurementFailed: too many in a row could not.
        """
        self._visits += 1
        if self._visits % _BETWEEN_CONTROLS == 0:
            self._visit_controls()
        self._tell("measuring")
        began = monotonic()
        try:
            visit = self.visitor.visit(one.work)
        except MeasurementFailed as error:
            self._failures += 1
            self.observed.failed.append(str(error))
            if self._failures >= _MOST_FAILED:
                raise MeasurementFailed(
                    f"{self._failures} sets in a row could not be measured, the last: {error}"
                ) from error
            return False
        self._failures = 0
        self.observed.add(one, visit)
        self.curriculum.seconds.saw(one, visit.forward_ms + visit.backward_ms, monotonic() - began)
        return True

    def _visit_controls(self) -> None:
        for work in self.controls:
            one = Set(work, "control")
            try:
                self.observed.add(one, self.visitor.visit(work))
            except MeasurementFailed as error:
                if not self.observed.sets:
                    raise
                self.observed.failed.append(str(error))

    def _tell(self, what: str) -> None:
        self.told(monotonic() - self._began, len(self.observed), self._error, what)
