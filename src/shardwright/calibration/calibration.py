"""A cost model of this machine, in minutes."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from time import monotonic

import numpy as np

from shardwright.calibration.calibrating import Calibrating, Told, Visitor
from shardwright.calibration.curriculum import Curriculum
from shardwright.calibration.keeping import calibration_lock, kept_samples
from shardwright.calibration.observed import Observed
from shardwright.calibration.sets import fitted_task
from shardwright.cost.accuracy import Accuracy
from shardwright.cost.adapting import FEWEST_SETS, Validated, error_of, recipes
from shardwright.cost.choice import cache_folder, keep_model, path_for, task_digest
from shardwright.cost.dataset import Samples
from shardwright.cost.files import accuracy_metadata, bundled_models, device_type, load_model, telling_name
from shardwright.cost.model import ComputeModel
from shardwright.cost.published import GPUS, PublishedModel
from shardwright.errors import InvalidInput
from shardwright.measure.backend import default_backend
from shardwright.measure.hardware import (
    Fingerprint,
    available_memory,
    cache_bytes,
    check_device,
    device_memory,
    fingerprint,
)
from shardwright.measure.measuring import Measurer, control_works
from shardwright.task import Task
from shardwright.task.task import Optimizer

MINUTES = {"cpu": 3.0, "cuda": 8.0}
AIM = 0.05

_ROOM = {"cpu": 1 << 30, "cuda": 8 << 30}  # bytes of the tables of a set, at most
_ROOM_SHARE = 0.25  # of the memory that is free
_BATCH_SIZE = {"cpu": 1024, "cuda": 65_536}  # where no task says
_OPTIMIZER: Optimizer = "rowwise_adagrad"
_PAGES = 4 << 20  # beside the tables of a set: each begins on a page of its own
_LESSONS, _THOROUGH = 600, 3.0  # sets that the published figures of a GPU are learned from, and times the usual updates
_FEWEST_NEW = 20  # sets on which an older model and the new one are compared


@dataclass(frozen=True)
class Calibration:
    """What a calibration came to.

    Attributes:
        path: the model's file; None where none was saved.
        model: the model, with what it says of itself; None where there were too few sets for one.
        accuracy: its errors on sets that it had not seen; None likewise.
        before: mean error of the model that it starts from on the same sets; None where there is none, or were too few.
        recipe: how the model was made.
        sets: how many sets it was made of, those of earlier calibrations included.
        new_sets: how many of them were measured now.
        failed: why sets could not be measured.
        notes: what else there is to say.
        stopped: "aim", "time" or "interrupted".
        seconds: how long it took.
        slower: how many times as long the controls took as when the last model was calibrated; None where there is none.
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
    """Measure this machine's kernels, train a cost model on them, and keep it where planning finds it.

    Args:
        task: what the model is for: its tables, batch size and optimizer are measured, and what searches make of it. Without, sets of
            any tables.
        minutes: how long it may take; by default 3, on cuda 8.
        device: "cpu" or "cuda"; by default what the task is for, or "cpu".
        aim: mean error on sets not seen that is good enough to stop before the time is up.
        seed: of all that is drawn.
        progress: called before each visit and training.
        visitor: times kernels, in place of a measuring process of this machine.

    Raises:
        InvalidInput: an option breaks a rule, the task is for another device, another calibration is under way, or the cache folder cannot
            be written to.
        MissingDependency: torch is not installed.
        MeasurementFailed: there is no such device, or kernels cannot run.
    """
    kind = device or ("cpu" if task is None or task.topology.device == "cpu" else "cuda")
    check_device(kind)
    limit = MINUTES[kind] if minutes is None else minutes
    if not (math.isfinite(limit) and limit > 0):
        raise InvalidInput(f"minutes is {limit:g}, must be a finite number greater than 0")
    if not 0 < aim < 1:
        raise InvalidInput(f"aim is {aim:g}, must be a share between 0 and 1, as in 0.05")
    machine = fingerprint(kind, default_backend())
    here = device_type(machine)
    if task is not None and task.topology.device != here:
        raise InvalidInput(
            f"the task is for {task.topology.device}, and would be calibrated on {here}: calibrate on a machine with "
            f"{task.topology.device} devices, or plan for {here}"
        )
    with calibration_lock(cache_folder()):
        return _calibrated(task, machine, 60 * limit, aim, seed, progress or (lambda *_: None), visitor)


def _calibrated(
    task: Task | None,
    machine: Fingerprint,
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
    start = _bundled(device)
    began = monotonic()
    with kept_samples(cache_folder() / "samples", machine, optimizer, batch_size) as kept:
        observed = Observed(kept.add, kept.earlier, kept.usual_ms)
        curriculum = Curriculum(fitted, batch_size, optimizer, room, device, seed, len(observed))
        if start is None and device in GPUS:
            start = _published(device, optimizer, curriculum, cache_bytes(kind))
        ways = recipes(start, cache_bytes(kind))
        with _measuring(kind, room, visitor) as measurer:
            run = Calibrating(measurer, curriculum, observed, controls, ways, start, seconds, aim, told)
            run.run()
    result = Calibration(
        stopped=run.stopped,
        sets=len(observed),
        new_sets=len(observed.sets),
        failed=tuple(observed.failed),
        notes=(note,) if note else (),
    )
    if len(observed) >= FEWEST_SETS:
        told(monotonic() - began, len(observed), None, "training the model")
        covered = _coverage(task, machine, optimizer, batch_size, curriculum.kinds)
        result = _with_model(result, run, covered, path_for(covered, machine), start)
    else:
        few = f"{len(observed)} sets are too few for a model, which needs {FEWEST_SETS}: calibrate again to go on"
        result = replace(result, notes=(*result.notes, few))
    return replace(result, seconds=monotonic() - began)


def _with_model(
    result: Calibration, run: Calibrating, covered: dict[str, str], path: Path, start: ComputeModel | None
) -> Calibration:
    """The result with a model of all sets, saved where it is better than the one before."""
    samples = run.observed.samples()
    found, model = run.finished()
    controls = run.observed.controls(run.controls)
    metadata = covered | accuracy_metadata(found.accuracy) | {
        "samples": str(len(samples)),
        "recipe": found.name,
        "controls": controls.text(),
        "date": datetime.now(UTC).date().isoformat(),
        "calibrated_at": datetime.now(UTC).isoformat(timespec="seconds"),
    }  # fmt: skip
    model = replace(model, metadata=metadata)
    model = replace(model, metadata=metadata | {"name": telling_name(model)})
    older = _model_at(path)
    result = replace(
        result,
        model=model,
        accuracy=found.accuracy,
        recipe=found.name,
        before=error_of(start, samples) if start is not None else None,
        slower=controls.slower_than(older.metadata) if older is not None else None,
    )
    if older is not None and not _better(found, older, samples, result.new_sets):
        kept = f"the model of before predicts the new sets better, and is kept: {older.name}"
        return replace(result, path=path, notes=(*result.notes, kept))
    keep_model(model, path)
    return replace(result, path=path)


def _better(found: Validated, older: ComputeModel, samples: Samples, new: int) -> bool:
    """Whether a model's recipe predicts the new sets at least as well as the older model, which has seen none of them either."""
    if new < _FEWEST_NEW:
        return found.accuracy.mean_error <= float(older.metadata.get("mean_error", "inf"))
    recent = np.arange(len(samples)) >= len(samples) - new
    total = samples.times[recent].sum(axis=1)
    error = float((np.abs(found.predicted[recent].sum(axis=1) - total) / total).mean())
    return error <= error_of(older, samples.select(recent))


def _coverage(
    task: Task | None, machine: Fingerprint, optimizer: str, batch_size: int, kinds: Iterable[str]
) -> dict[str, str]:
    """What a model is of and for, as its metadata says it."""
    covered = {
        "device": device_type(machine),
        "hardware": ", ".join(f"{key} {value}" for key, value in machine.items()),
        "optimizer": optimizer,
        "batch_sizes": str(batch_size),
        "tables": ", ".join(sorted(kinds)),
    }
    return covered | ({"task": task_digest(task)} if task is not None else {})


def _bundled(device: str) -> ComputeModel | None:
    """The bundled learned model of a device type."""
    path = bundled_models().get(device)
    return _model_at(path) if path is not None else None


def _published(device: str, optimizer: Optimizer, curriculum: Curriculum, caches: tuple[int, int]) -> ComputeModel:
    """What is published of a GPU as a model that can be fine-tuned."""
    lessons = curriculum.told_by(PublishedModel(device, optimizer), _LESSONS)
    return recipes(None, caches)["from nothing"](lessons, 0, _THOROUGH)


def _model_at(path: Path) -> ComputeModel | None:
    try:
        found = load_model(path)
    except InvalidInput:
        return None
    return found if isinstance(found, ComputeModel) else None


@contextmanager
def _measuring(kind: str, room: int, visitor: Visitor | None) -> Iterator[Visitor]:
    if visitor is not None:
        yield visitor
        return
    with Measurer(kind, None, room + _PAGES) as measurer:
        yield measurer
