"""Calibration: measure sets, train cost models of this machine, measure where they disagree, until the error or time limit is reached."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from time import monotonic
from typing import TypeAlias

import numpy as np

from shardwright.arrays import Floats
from shardwright.calibration.curriculum import Curriculum
from shardwright.calibration.sets import Group, fitted_task
from shardwright.calibration.visits import Observed, calibration_lock, earlier_samples, machine_for, pace_by
from shardwright.cost.choice import cache_folder, keep_model, path_for, samples_folder, task_digest
from shardwright.cost.files import bundled_models, device_type, load_model, telling_name
from shardwright.cost.model import ComputeModel
from shardwright.cost.published import GPUS, PublishedModel
from shardwright.errors import InvalidInput, counted
from shardwright.hardware import Fingerprint, available_memory, cache_bytes, device_memory
from shardwright.measure.device_work import Job
from shardwright.measure.measurer import Measurer, Visitor
from shardwright.measure.pace import check_enough, check_minutes, minutes_text
from shardwright.measure.store import SampleStore
from shardwright.measure.visits import Controls, control_works
from shardwright.modelling.accuracy import Accuracy, accuracy_metadata
from shardwright.modelling.adapting import FEWEST_SCALING, FEWEST_SETS, Recipe, Validated, error_of, recipes, validated
from shardwright.modelling.dataset import Samples
from shardwright.modelling.gpu_parts import width_of
from shardwright.search.strategy import Interruptible
from shardwright.task import Task
from shardwright.task.task import Optimizer
from shardwright.threads import one_thread

Told: TypeAlias = Callable[[float, int, float | None, str], None]
"""Progress callback: seconds since the start, sets so far, held-out error (None until known), and the current activity."""

MINUTES = {"cpu": 3.0, "cuda": 8.0}
AIM = 0.05

_ROOM = {"cpu": 1 << 30, "cuda": 8 << 30}  # most bytes for the tables of one set
_ROOM_SHARE = 0.25  # most of the free memory that the tables of one set may take
_BATCH_SIZE = {"cpu": 1024, "cuda": 65_536}  # without a task
_OPTIMIZER: Optimizer = "rowwise_adagrad"
_PAGES = 4 << 20  # extra bytes beside the tables of a set: each table starts on its own page
_LESSONS, _THOROUGH = 600, 3.0  # to learn a GPU's published figures: number of sets, and factor on the usual updates
_FEWEST_NEW = 20  # fewest new sets on which the older and the new model are compared
_GROWTH = 2.0  # factor on the number of sets from one training to the next
_HALVES, _FOLDS = 2, 4
_EFFORT = 0.5  # effort of every training except the last
_FEW = 60  # with fewer sets, more training effort gains nothing
# Duration of the last training, at full and at half effort, over that of one on halves.
_LAST_TRAINING, _BRIEF_TRAINING = 4.5, 2.5
_HALVES_S = 3.0  # duration of a training on halves until one is known
# Share of the time, and most seconds, kept for the last training until a first training shows how long one takes.
_RESERVE, _LEAST_RESERVE_S, _MOST_RESERVE_S = 0.2, 8.0, 15.0
_TRAINS_S = 20.0  # least time in which a model is trained: in less, the start model is scaled
_SCALING_S = 1.0  # time kept for scaling the start model if no training fits
_OF_LEFT, _OF_USUAL = 0.25, 2.0  # a set may take this share of the time left, or this factor on a usual set
_FEWEST_CHOSEN = 10
_AGAIN = 3  # for this many sets, at most one disturbed set is visited again


@dataclass(frozen=True)
class Calibration:
    """The result of a calibration.

    Attributes:
        path: the model's file; None if none was saved.
        model: the model with its metadata: trained, or the start model scaled if there were too few sets; None if there were too few for
            both, or scaling made the start model no better.
        accuracy: the model's errors on sets that it had not seen; None if there is no model.
        before: mean error of the start model on the same sets; None if there is no start model, or too few sets.
        recipe: name of the recipe that made the model.
        sets: number of sets that the model learned from, earlier calibrations included.
        new_sets: number of those sets that this calibration measured.
        failed: why sets could not be measured.
        notes: further remarks for the user.
        stopped: "aim", "time" or "interrupted".
        seconds: how long the calibration took.
        slower: time of the controls over their time when the last model was calibrated; None if there is no such model.
    """

    path: Path | None = None
    model: ComputeModel | None = None
    accuracy: Accuracy | None = None
    before: float | None = None
    recipe: str = ""
    sets: int = 0
    new_sets: int = 0
    failed: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    stopped: str = "time"
    seconds: float = 0.0
    slower: float | None = None


def calibrate(
    task: Task | None = None,
    *,
    minutes: float | None = None,
    device: str | None = None,
    aim: float = AIM,
    seed: int = 0,
    progress: Told | None = None,
    visitor: Visitor | None = None,
) -> Calibration:
    """Measure this machine's kernels, train a cost model on the times, and save it where planning finds it.

    Args:
        task: the task that the model is for: its tables, batch size and optimizer are measured, and the plans that searches find for it.
            Without a task, sets of any tables are measured.
        minutes: time limit; by default 3, on cuda 8. If too little can be measured in it for a separate model, a warning states how much.
        device: "cpu" or "cuda"; by default the task's device, or "cpu" without a task.
        aim: mean error on unseen sets at which calibration stops before the time is up.
        seed: seed of all random draws.
        progress: called before each visit and training.
        visitor: times kernels; by default a measuring process on this machine.

    Raises:
        InvalidInput: an option is out of range, nothing can be measured in so short a time, the task is for another device, another
            calibration is running, or the cache folder cannot be written to.
        MissingDependency: torch is not installed.
        MeasurementFailed: this machine has no such device, or its kernels cannot run.
    """
    began = monotonic()
    kind, machine = machine_for(task, device, "calibrated")
    limit = MINUTES[kind] if minutes is None else minutes
    check_minutes(limit)
    if visitor is None:
        check_enough(limit, kind)
    if not 0 < aim < 1:
        raise InvalidInput(f"aim is {aim:g}, must be an error between 0 and 1, such as 0.05 for 5%")
    with calibration_lock(cache_folder()):
        return _calibrated(task, machine, began, 60 * limit, aim, seed, progress or (lambda *_: None), visitor)


def _calibrated(
    task: Task | None,
    machine: Fingerprint,
    began: float,
    seconds: float,
    aim: float,
    seed: int,
    told: Told,
    visitor: Visitor | None,
) -> Calibration:
    kind, device = machine["device_kind"], device_type(machine)
    room = min(_ROOM[kind], int(_ROOM_SHARE * (available_memory() if kind == "cpu" else device_memory())))
    fitted, note = fitted_task(task, room) if task else (None, None)
    optimizer, batch_size = (task.optimizer, task.batch_size) if task else (_OPTIMIZER, _BATCH_SIZE[kind])
    controls = control_works(kind, optimizer)
    start = _model_at(bundled_models().get(device))
    with SampleStore(samples_folder(), machine) as store:
        earlier = earlier_samples(store, optimizer, batch_size)
        curriculum = Curriculum(fitted, batch_size, optimizer, room, device, seed, len(earlier) if earlier else 0)
        if start is None and device in GPUS:
            start = _published(device, optimizer, curriculum, cache_bytes(kind))
        ways = recipes(start, cache_bytes(kind), width_of(kind))
        with Measurer(kind, None, room + _PAGES) if visitor is None else nullcontext(visitor) as measurer:
            curriculum.seconds = pace_by(start, kind)
            observed = Observed(measurer, controls, store, lambda: run.tell("measuring"), batch_size, earlier,
                                until=began + seconds, pace=curriculum.seconds)  # fmt: skip
            run = Calibrating(curriculum, observed, ways, start, seconds, aim, told, began)
            run.run()
    result = Calibration(
        stopped=run.stopped,
        sets=len(observed),
        new_sets=len(observed.sets),
        failed=tuple(observed.failed.values()),
        notes=(note,) if note else (),
    )
    if run.learnable:
        told(monotonic() - began, len(observed), None, "training the model")
        metadata = model_metadata(
            task, machine, optimizer, batch_size, curriculum.kinds, len(observed), observed.of_controls()
        )
        result = _with_model(result, run, metadata, path_for(metadata, machine))
    else:
        before = error_of(run.start, observed.samples()) if run.start is not None and len(observed) else None
        result = replace(result, before=before)
    if len(observed) < FEWEST_SETS:
        result = replace(result, notes=(*result.notes, run.too_few()))
    return replace(result, seconds=monotonic() - began)


def _with_model(result: Calibration, run: Calibrating, metadata: dict[str, str], path: Path) -> Calibration:
    """Train a model on all sets, save it if it beats the one saved before, and return the completed result."""
    samples = run.observed.samples()
    best, model = run.finished()
    metadata = metadata | accuracy_metadata(best.accuracy) | {"recipe": best.name}
    model = replace(model, metadata=metadata)
    model = replace(model, metadata=metadata | {"name": telling_name(model)})
    older = _model_at(path)
    before = error_of(run.start, samples) if run.start is not None else None
    if best.name == "scaled" and before is not None and best.accuracy.mean_error >= before:
        kept = f"scaling makes the default model no better on {counted(len(samples), 'set')}: it stays as it is"
        return replace(result, before=before, notes=(*result.notes, kept))
    result = replace(
        result,
        model=model,
        accuracy=best.accuracy,
        recipe=best.name,
        before=before,
        slower=run.observed.of_controls().slower_than(older.metadata) if older is not None else None,
    )
    if older is not None and not _better(best, older, samples, result.new_sets):
        kept = f"the earlier model predicts the new sets better and is kept: {older.name}"
        return replace(result, path=path, notes=(*result.notes, kept))
    keep_model(model, path)
    return replace(result, path=path)


def _better(best: Validated, older: ComputeModel, samples: Samples, new: int) -> bool:
    """Whether the recipe predicts the new sets at least as well as the older model; neither has seen the sets that it predicts."""
    if new < _FEWEST_NEW:
        return best.accuracy.mean_error <= float(older.metadata.get("mean_error", "inf"))
    recent = np.arange(len(samples)) >= len(samples) - new
    total = samples.times[recent].sum(axis=1)
    error = float((np.abs(best.predicted[recent].sum(axis=1) - total) / total).mean())
    return error <= error_of(older, samples.select(recent))


def model_metadata(
    task: Task | None,
    machine: Fingerprint,
    optimizer: str,
    batch_size: int,
    kinds: Iterable[str],
    samples: int,
    controls: Controls,
) -> dict[str, str]:
    """Metadata of a model: what it covers, the number of samples that it learned from, the state of the machine, and the date.

    It covers hardware, optimizer, batch size, kinds of tables, and the task if there is one.
    """
    now = datetime.now(UTC)
    metadata = {
        "device": device_type(machine),
        "hardware": ", ".join(f"{key} {value}" for key, value in machine.items()),
        "optimizer": optimizer,
        "batch_sizes": str(batch_size),
        "tables": ", ".join(sorted(kinds)),
        "samples": str(samples),
        "controls": controls.text(),
        "date": now.date().isoformat(),
        "calibrated_at": now.isoformat(timespec="seconds"),
    }
    return metadata | ({"task": task_digest(task)} if task is not None else {})


def _published(device: str, optimizer: Optimizer, curriculum: Curriculum, caches: tuple[int, int]) -> ComputeModel:
    """A trainable model that has learned a GPU's published figures, to be fine-tuned."""
    lessons = curriculum.told_by(PublishedModel(device, optimizer), _LESSONS)
    return recipes(None, caches, "widest")["from nothing"](lessons, 0, _THOROUGH)


def _model_at(path: Path | None) -> ComputeModel | None:
    """The learned model in a file; None if the file holds none or cannot be read."""
    try:
        model = load_model(path) if path is not None else None
    except InvalidInput:
        return None
    return model if isinstance(model, ComputeModel) else None


@dataclass
class Calibrating(Interruptible):
    """A running calibration.

    Attributes:
        curriculum: chooses the sets to measure.
        observed: measures sets, and holds those measured so far.
        ways: recipes for a model, by name.
        start: a model that predicts which sets are quick; None if there is none.
        seconds: time limit, the last training included.
        aim: mean held-out error at which to stop.
        told: progress callback.
        began: `time.monotonic()` at which the time began.
    """

    curriculum: Curriculum
    observed: Observed
    ways: dict[str, Recipe]
    start: ComputeModel | None
    seconds: float
    aim: float
    told: Told
    began: float = field(default_factory=monotonic)

    def __post_init__(self) -> None:
        self._ready = self.began  # when the controls are measured
        self._error: float | None = None
        self._halves_s = _HALVES_S
        # Loading torch and training take seconds, independently of the number of sets.
        self._trains = self.start is None or self.seconds >= _TRAINS_S
        self._reserve = min(max(_RESERVE * self.seconds, _LEAST_RESERVE_S), _MOST_RESERVE_S)
        self._tried = True  # whether any set of the last choice fitted into the time
        self.stopped = "time"

    def run(self) -> None:
        """Measure until the aim is reached, only the last training's time is left, or Ctrl-C is pressed; sets `stopped`.

        Raises:
            MeasurementFailed: no measuring process can be started, or ten sets in a row failed.
        """
        with self.until_interrupted():
            try:
                self._measure()
            except KeyboardInterrupt:
                self.stopped = "interrupted"

    def _measure(self) -> None:
        if self._trains:
            import shardwright.modelling.training  # noqa: F401  # loads torch for seconds, which a training later should not
        self.observed.visit_controls()
        self._ready = monotonic()
        models: Sequence[ComputeModel] = [self.start] if self.start is not None else []
        goal, foreseen = FEWEST_SETS, False
        if len(self.observed) >= FEWEST_SETS and self._time_to_train:  # from earlier calibrations
            models, goal = self._trained()
        while self._tried and not (foreseen and self._over):
            lacking = max(goal - len(self.observed), _FEWEST_CHOSEN)
            self.tell("choosing sets")
            if self._error is None:
                queue = self.curriculum.first_sets(lacking, models[-1] if models else None)
            else:
                queue = self.curriculum.next_sets(lacking, models)
            if not foreseen:
                foreseen = True
                self._foresee(queue)
            self._tried = False
            self.observed.visit_sets(self._sets_of(queue))
            self.observed.visit_sets(self._disturbed(len(queue) // _AGAIN))
            if len(self.observed) < FEWEST_SETS and self._left <= 0:
                self._reserve = _SCALING_S
            elif len(self.observed) >= goal and self._time_to_train:
                models, goal = self._trained()
        if self.observed.fits(self.observed.controls, self.began + self.seconds - self._reserve):
            self.observed.visit_controls()

    @property
    def _time_to_train(self) -> bool:
        """Whether a training, the last one and some sets in between fit into the time left."""
        return self._trains and self._left > 2 * self._reserve

    def _foresee(self, queue: Sequence[Group]) -> None:
        """Warn if the time is too short for a separate model, and state what it allows; all time then goes to measuring."""
        needed = FEWEST_SETS - len(self.observed)
        seconds = self._seconds_of(queue)
        count = int(np.searchsorted(np.cumsum(seconds), self._left, side="right"))
        if self._trains and count >= min(needed, len(seconds)):
            return
        self._reserve = _SCALING_S
        count = len(self.observed) + int(np.searchsorted(np.cumsum(seconds), self._left, side="right"))
        if count < FEWEST_SCALING or self.start is None:
            outcome = f"too few to learn from, since {FEWEST_SCALING if self.start else FEWEST_SETS} are needed; they are kept"
        else:
            outcome = "they scale the default model"
        warnings.warn(
            f"about {counted(count, 'set')} can be measured in {self.seconds:.0f} s: {outcome}; a model of its own needs "
            f"{FEWEST_SETS} sets, and about --minutes {self._enough(needed, float(seconds.mean()))}",
            stacklevel=2,
        )

    def _seconds_of(self, queue: Sequence[Group]) -> Floats:
        """`(n,)` foreseen seconds of the groups that may be measured in the time left, in order; never empty."""
        seconds = np.array([self.observed.expected_s(job.work for job in group).sum() for group in queue])
        most = max(_OF_LEFT * self._left, _OF_USUAL * float(np.median(seconds)))
        return seconds[seconds <= most]

    def _fits(self, group: Group) -> bool:
        """Whether a group leaves time for others, and ends in time; a heavy table may take as long as all the rest."""
        seconds = float(self.observed.expected_s(job.work for job in group).sum())
        usual = self._usual_s * len(group)
        return seconds <= min(self._left, max(_OF_LEFT * self._left, _OF_USUAL * usual))

    @property
    def _usual_s(self) -> float:
        """Mean seconds that a set took."""
        return (monotonic() - self._ready) / max(1, len(self.observed.sets))

    def _enough(self, lacking: int, each: float) -> str:
        """Minutes that a separate model takes, if `lacking` sets take `each` seconds."""
        start = self._ready - self.began
        reserve = max(_LEAST_RESERVE_S, self._reserve)
        return minutes_text(max(1.1 * (start + max(0, lacking) * each) + reserve, _TRAINS_S))

    def too_few(self) -> str:
        """The measurements, if they are too few for a separate model, and the time that the rest takes."""
        count = len(self.observed)
        return (
            f"{counted(count, 'set')} measured and kept, and a model of its own needs {FEWEST_SETS}: the next run goes on from there, and "
            f"ends with about --minutes {self._enough(FEWEST_SETS - count, self._usual_s)}"
        )

    @property
    def learnable(self) -> bool:
        """Whether there are enough sets to train a model, or to scale the start model."""
        return len(self.observed) >= (FEWEST_SETS if self.start is None else FEWEST_SCALING)

    @property
    def _over(self) -> bool:
        if self.interrupted:  # a search may have caught Ctrl-C and returned its best plan
            raise KeyboardInterrupt
        if self._error is not None and self._error <= self.aim and self.observed.sets:
            self.stopped = "aim"
            return True
        return self._left <= 0

    @property
    def _left(self) -> float:
        """Seconds until the last training must start."""
        return self.seconds - self._reserve - (monotonic() - self.began)

    def _trained(self) -> tuple[Sequence[ComputeModel], int]:
        """Train one model on each half of the sets; return them and the number of sets that the next training waits for."""
        self.tell("training")
        began, count = monotonic(), len(self.observed)
        best = self.validated(_HALVES, _EFFORT)
        self._error = best.accuracy.mean_error
        self._halves_s = monotonic() - began
        self._reserve = _LAST_TRAINING * self._halves_s
        self.tell("trained")
        return best.models, int(_GROWTH * count)

    def validated(self, folds: int, effort: float) -> Validated:
        """Cross-validate all recipes on the sets so far; return the best."""
        with one_thread():
            return validated(self.observed.samples(), self.ways, folds, self.curriculum.seed, effort)

    def finished(self) -> tuple[Validated, ComputeModel]:
        """The best recipe, and the model that it makes of all sets; with few sets or little time, the start model is only scaled."""
        samples, remaining = self.observed.samples(), self.seconds - (monotonic() - self.began)
        if self.start is not None and (
            not self._trains or len(samples) < FEWEST_SETS or remaining < _BRIEF_TRAINING * self._halves_s
        ):
            best = validated(samples, {"scaled": self.ways["scaled"]}, _FOLDS, self.curriculum.seed)
            return best, best.recipe(samples, self.curriculum.seed, _EFFORT)
        full = len(samples) >= _FEW and remaining >= _LAST_TRAINING * self._halves_s
        effort = 1.0 if full else _EFFORT
        best = self.validated(_FOLDS, effort)
        with one_thread():
            return best, best.recipe(samples, self.curriculum.seed, effort)

    def _sets_of(self, groups: Iterable[Group]) -> Iterator[Job]:
        """The sets of the groups that fit into the time left; after a set that fails, not the rest of its group: a pair counts whole."""
        for group in groups:
            if self._over:
                return
            if self._fits(group):
                self._tried = True
                for job in group:
                    if not self.observed.known_set(job):
                        yield job
                        if job.work in self.observed.failed:
                            break

    def _disturbed(self, most: int) -> Iterator[Job]:
        """Disturbed sets, to be visited again; this comes later because disturbances last."""
        for job in self.observed.disturbed()[:most]:
            if self._over or not self._fits((job,)):
                return
            yield job

    def tell(self, what: str) -> None:
        """Report progress."""
        self.told(monotonic() - self.began, len(self.observed), self._error, what)
