"""The best plan that was measured for a task, in minutes."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from time import monotonic

import numpy as np

from shardwright.calibration.bench import Bench
from shardwright.calibration.calibrating import Visitor
from shardwright.calibration.keeping import calibration_lock
from shardwright.calibration.sets import fitted_task
from shardwright.calibration.tuner import Tuner
from shardwright.cost.choice import cache_folder, resolve_cost_model
from shardwright.cost.correction import CorrectedModel
from shardwright.cost.files import device_type
from shardwright.cost.model import CostModel
from shardwright.cost.score import scored
from shardwright.errors import InvalidInput
from shardwright.measure.backend import default_backend
from shardwright.measure.device_work import arena_bytes
from shardwright.measure.hardware import Fingerprint, available_memory, check_device, device_memory, fingerprint
from shardwright.measure.measuring import Measurer, control_works
from shardwright.measure.store import SampleStore
from shardwright.sharding.plan import Plan
from shardwright.sharding.runtimes import Runtime
from shardwright.sharding.shard import Shard
from shardwright.task.files import task_to_dict
from shardwright.task.task import Task

Told = Callable[[float, float, str], None]
"""Called with the seconds since the beginning, the seconds there are, and what is being done."""

_ROOM_SHARE = 0.5  # of the memory that is free, for the tables of a device


@dataclass(frozen=True)
class Tuned:
    """What a tuning came to.

    Attributes:
        plan: the best measured plan; `plan.tuning` holds what was measured, and `plan.cost` what the model predicts, uncorrected.
        first: the plan that planning alone finds.
        model: the model, corrected by what was measured; None where time was up before a correction.
        bound_ms: lower bound on the step of every plan, proven for the corrected model; None where no search of it ended.
        slower: how many times as long the controls took as when the model was learned; None where that is not known.
        stopped: "floor", "no gain", "time" or "interrupted".
        seconds: how long it took.
        failed: why devices could not be measured.
        notes: what else there is to say.
    """

    plan: Plan
    first: Plan
    model: CorrectedModel | None
    bound_ms: float | None
    slower: float | None
    stopped: str
    seconds: float
    failed: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def tune(
    task: Task,
    *,
    minutes: float = 5.0,
    device: str | None = None,
    cost_model: CostModel | str | Path | None = None,
    runs_on: Runtime | None = "shardwright",
    seed: int = 0,
    progress: Told | None = None,
    visitor: Visitor | None = None,
) -> Tuned:
    """Plan, measure on this machine, correct the model, and plan again; the best plan that was measured.

    The kernels of each device are measured one after another; links are predicted. Measurements are kept in the user's cache folder: the
    same call goes on where the last one stopped.

    Args:
        task: what is placed, and where; its devices must be of this machine's type.
        minutes: how long it may take. The first plan is measured in any case.
        device: "cpu" or "cuda"; by default what the task is for.
        cost_model: a model or the path of one; by default the one that planning takes.
        runs_on: see `shardwright.plan`.
        seed: of searches and draws.
        progress: called before each visit.
        visitor: times kernels, in place of a measuring process of this machine.

    Raises:
        InvalidInput: an option breaks a rule, the task is for another device, another tuning or calibration is under way, or the cache
            folder cannot be written to.
        InfeasibleTask: no strategy finds a plan.
        MissingDependency: torch is not installed.
        MeasurementFailed: there is no such device, or the first plan cannot be measured.
        KeyboardInterrupt: Ctrl-C came before the first plan was measured; later, it ends the tuning with the best plan so far.
    """
    if isinstance(minutes, bool) or not (math.isfinite(minutes) and minutes > 0):
        raise InvalidInput(f"minutes is {minutes:g}, must be a finite number greater than 0")
    kind = device or ("cpu" if task.topology.device == "cpu" else "cuda")
    check_device(kind)
    machine = fingerprint(kind, default_backend())
    here = device_type(machine)
    if task.topology.device != here:
        raise InvalidInput(
            f"the task is for {task.topology.device}, and would be tuned on {here}: tune where it is to be trained, on a machine with "
            f"{task.topology.device} devices"
        )
    base = resolve_cost_model(cost_model, task)
    began, tell = monotonic(), progress or (lambda *_: None)
    room = int(_ROOM_SHARE * (available_memory() if kind == "cpu" else device_memory()))
    fitted, note = fitted_task(task, room)
    with calibration_lock(cache_folder()):
        kept = _kept_plan(fitted, machine)
        controls = control_works(kind, task.optimizer)
        clock, measurer = monotonic(), visitor or Measurer(kind, None, max(room, arena_bytes(controls)))
        with SampleStore(cache_folder() / "samples", machine) as store:
            bench = Bench(
                measurer, controls, store, np.random.default_rng([seed, 1]), clock + 60 * minutes,
                lambda: tell(monotonic() - clock, 60 * minutes, run.doing),
            )  # fmt: skip
            run = Tuner(
                fitted, runs_on, base, bench,
                seed=seed, seconds=60 * minutes, keep=lambda best: best.save(kept), earlier=_earlier(kept, fitted),
            )  # fmt: skip
            try:
                run.run()
            finally:
                if isinstance(measurer, Measurer):
                    measurer.close()
            slower = bench.of_controls().slower_than(getattr(base, "metadata", {}))
    first = _for_task(run.first.plan, task, base, None)
    best = first if run.best is run.first else _for_task(run.best.plan, task, base, first)
    return Tuned(
        plan=replace(best, tuning=run.result(), search_s=monotonic() - began),
        first=first,
        model=run.model,
        bound_ms=run.bound_ms,
        slower=slower,
        stopped=run.stopped,
        seconds=monotonic() - began,
        failed=tuple(bench.failed.values()),
        notes=(note,) if note else (),
    )


def _for_task(found: Plan, task: Task, base: CostModel, first: Plan | None) -> Plan:
    """A plan of the task as it was measured, for the task as it is: row blocks are stretched where tables had fewer rows.

    Args:
        found: the plan.
        task: the task.
        base: predicts its cost.
        first: a plan whose bound, by the same model, holds for this one too.
    """
    rows = {table.name: table.rows for table in found.task.tables}
    shards = []
    for shard in found.shards:
        full = task.table_by_name[shard.table].rows
        start, stop = (round(end * full / rows[shard.table]) for end in shard.rows)
        shards.append(
            shard if full == rows[shard.table] else Shard(shard.table, (start, stop), shard.columns, shard.devices)
        )
    result = scored(Plan(task, shards, found.strategy if first is None else "tuned", found.seed), base)
    result.check()
    proof = found if first is None else first
    assert result.cost is not None
    if found.task is task and proof.bound_ms is not None and proof.bound_ms <= result.cost.step_ms:
        result = replace(result, bound_ms=proof.bound_ms, bound_scope=proof.bound_scope)
    return result


def _kept_plan(task: Task, machine: Fingerprint) -> Path:
    """The file of the best plan that tunings of a task on a machine have found; its folder is made.

    Raises:
        InvalidInput: the cache folder cannot be written to.
    """
    told = json.dumps([machine, task_to_dict(task)], sort_keys=True)
    folder = cache_folder() / "tuning"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InvalidInput(
            f"{folder}: cannot be written to ({error.strerror}); name another cache folder with SHARDWRIGHT_CACHE"
        ) from None
    return folder / f"{hashlib.sha256(told.encode()).hexdigest()[:16]}.plan.json"


def _earlier(path: Path, task: Task) -> Plan | None:
    """The best plan of an earlier run; None where there is none that can be read."""
    try:
        found = Plan.load(path)
    except InvalidInput:
        return None
    return replace(found, task=task) if task_to_dict(found.task) == task_to_dict(task) else None
