"""`papers-measured`: plans of the papers' experiments on this machine's kernels, all strategies interleaved, with intervals.

    python -m experiments papers-measured

Calibrate first ('shardwright calibrate'), then run it for some hours on a machine that does nothing else. The same command resumes a
stopped run. It measures 48 tasks of `neuroshard-table` (all widths, four and eight devices), 40 of `dreamshard-tables` (unseen tables), and
16 of the 128 devices of production tasks. `measure/measuring.py` measures all: fresh batches, rounds in random order, a sentinel, control
sets. Several machines may share the tasks; the model of the machine that measures a task also plans it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from itertools import product
from typing import TYPE_CHECKING

import numpy as np

from experiments.dreamshard.tables import QUICK
from experiments.entrants import SORTED, Entrant, Limits, entrant
from experiments.experiment import Page, Piece, ResultTable, Row, Value
from experiments.learned.tasks import draw_task
from experiments.neuroshard.plans_on_kernels import CONTROLS, measured_rows
from experiments.neuroshard.production import production_task
from experiments.neuroshard.table import DEVICES, MAX_DIMS
from experiments.neuroshard.table_page import BATCH_SIZE, SEED
from experiments.neuroshard.worlds import WORLDS
from experiments.outcomes import planned, row_of
from experiments.pages import processor_of
from experiments.rows import HARDWARE
from experiments.summaries import cell, conditions, grouped, in_order, with_interval
from shardwright.cost.choice import resolve_cost_model
from shardwright.errors import MeasurementFailed
from shardwright.task.task import Task

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from shardwright.cost.model import CostModel
    from shardwright.sharding.plan import Plan

TABLE, DREAM, PRODUCTION = "neuroshard-table", "dreamshard-tables", "neuroshard-production"
STRATEGIES = ("random", *SORTED, "greedy", "autoshard", "dreamshard", "neuroshard", "certified")
WHOLE_STRATEGIES = tuple(name for name in STRATEGIES if name != "neuroshard")
"""Strategies on DreamShard's tasks, where every table stays whole."""
TASKS_A_SETTING, DREAM_TASKS, SEEDS, ROUNDS = 4, 10, 3, 2
SLOWEST, AT_RANDOM = 4, 12
"""Numbers of devices of a production plan to measure: those predicted to be slowest, and others drawn at random."""
LIMITS = Limits(seconds=5.0)
MODEL = "model"
"""Column with the name of the cost model that a row was planned by."""
RIVALS = ("random", "greedy", "neuroshard")
"""Strategies by whose times the others' are divided."""


@dataclass(frozen=True)
class PapersMeasured:
    """The experiment `papers-measured`."""

    name: str = "papers-measured"
    about: str = "Plans of the papers' experiments on real kernels: 48, 40 and 3 tasks, all strategies interleaved"

    def pieces(self, quick: bool) -> Sequence[Piece]:
        """One piece for each task, part by part; no pieces if torch is not installed."""
        if find_spec("torch") is None:
            return []
        count, dream, seeds = (1, 1, 0) if quick else (TASKS_A_SETTING, DREAM_TASKS, SEEDS)
        settings = ((4, 32),) if quick else tuple(product(DEVICES, MAX_DIMS))
        keys = [(TABLE, devices, max_dim, number) for number in range(count) for devices, max_dim in settings]
        keys += [
            (DREAM, setting.devices, setting.tables, number)
            for number in range(dream)
            for setting in (QUICK[:1] if quick else QUICK)
        ]
        keys += [(PRODUCTION, 128, 128, seed) for seed in range(seeds)]
        return [
            Piece(dict(zip(("part", "devices", "size", "task"), key, strict=True)), _version(key[0]), alone=True)
            for key in keys
        ]

    def run(self, piece: Piece) -> Sequence[Row]:
        """Plan a task by all strategies, and measure the plans in interleaved rounds."""
        part, number = str(piece.key["part"]), int(piece.key["task"])
        entrants = _entrants(part)
        if part == PRODUCTION:
            task = production_task(WORLDS[0], number)
        else:
            task = _task(part, int(piece.key["devices"]), int(piece.key["size"]), number)
        model = resolve_cost_model(None, task)
        if part == PRODUCTION:
            rows = _sampled(task, entrants, number, model)
        else:
            rows = measured_rows(task, entrants, seed=number, rounds=ROUNDS, model=model)
        return [row | {MODEL: model.name} for row in rows]

    def page(self, rows: Sequence[Row], quick: bool) -> Page:
        """A table for each part."""
        by_part = grouped((row for row in rows if row["measured_ms"] is not None), "part")
        tables = [_table(str(part), own) for (part,), own in by_part.items()]
        why = sorted({str(row["why"]) for row in rows if row["measured_ms"] is None and row["why"]})
        text = [
            "Kernels of the slowest device, measured; links are not. Ratios are to another strategy on the same task: below 1 is faster.",
            "Every task was planned by the cost model of the machine that measured it, calibrated there: "
            + _machines(rows),
        ]
        return Page(
            "The papers' plans on real kernels", [*text, *why], tables, {"": _picture(by_part)}, conditions(rows)
        )


def _entrants(part: str) -> list[Entrant]:
    """The strategies of a part."""
    return [entrant(name, LIMITS) for name in (WHOLE_STRATEGIES if part == DREAM else STRATEGIES)]


@cache
def _version(part: str) -> str:
    return "; ".join([f"{ROUNDS} rounds", *(f"{each.name} {each.version}" for each in _entrants(part))])


@cache
def _task(part: str, devices: int, size: int, number: int) -> Task:
    from shardwright.workload import paper_tasks

    if part == DREAM:
        return draw_task(
            next(setting for setting in QUICK if (setting.devices, setting.tables) == (devices, size)), number
        )
    drawn = paper_tasks(number + 1, devices=devices, max_dim=size, seed=SEED, batch_size=BATCH_SIZE, device="cpu")
    return drawn[number]


def sampled_ranks(plan: Plan, seed: int) -> list[int]:
    """The devices of a large plan to measure: those predicted to be slowest, and others at random."""
    assert plan.cost is not None
    slowest_first = np.argsort([-device.compute_ms for device in plan.cost.devices], kind="stable")
    others = np.random.default_rng(seed).choice(slowest_first[SLOWEST:], AT_RANDOM, replace=False)
    return [*slowest_first[:SLOWEST].tolist(), *others.tolist()]


def _sampled(task: Task, entrants: Sequence[Entrant], seed: int, model: CostModel) -> list[Row]:
    """A production task: some devices of each plan, all interleaved."""
    from shardwright.measure.device_work import device_works
    from shardwright.measure.measuring import measure_works

    plans = [plan for each in entrants if (plan := planned(task, each, seed=seed, model=model)[1]) is not None]
    works = [[device_works(plan, seed)[rank] for rank in sampled_ranks(plan, seed)] for plan in plans]
    try:
        measured = measure_works([work for of_plan in works for work in of_plan], rounds=ROUNDS, seed=seed)
    except MeasurementFailed as error:
        return [row_of(plan) | {"strategy": plan.strategy, "measured_ms": None, "why": str(error)} for plan in plans]
    state = measured.of_controls().slower_than(getattr(model, "metadata", {}))
    return [
        row_of(plan)
        | {
            "strategy": plan.strategy,
            "measured_ms": max(sum(measured.time(work)) for work in of_plan),
            CONTROLS: state,
        }
        for plan, of_plan in zip(plans, works, strict=True)
    ]


def _table(part: str, rows: Sequence[Row]) -> ResultTable:
    """A row for each strategy: measured and predicted kernels, and its measured times over the rivals' on the same task."""
    by_task = [
        {str(row["strategy"]): float(row["measured_ms"] or 0.0) for row in own}
        for own in grouped(rows, "devices", "size", "task").values()
    ]
    cells = []
    for name in in_order((row["strategy"] for row in rows), STRATEGIES):
        own = [row for row in rows if row["strategy"] == name]
        errors = [float(row["measured_ms"] or 0.0) / float(row["compute_ms"] or 1.0) for row in own]
        beyond = [error / float(row[CONTROLS] or 1.0) for error, row in zip(errors, own, strict=True)]
        beside = [_ratios(by_task, name, rival) for rival in RIVALS]
        cells.append(
            (name, len(own), cell(float(np.mean([float(row["measured_ms"] or 0.0) for row in own]))),
             cell(float(np.median(errors)), ".3f"), cell(float(np.median(beyond)), ".3f"),
             *(with_interval(ratios, ".3f") if ratios else "–" for ratios in beside))
        )  # fmt: skip
    sample = (
        f" Of 128 devices {SLOWEST + AT_RANDOM} are measured: those predicted to be the slowest, and others."
        if part == PRODUCTION
        else ""
    )
    caption = (
        f"`{part}`, {len(by_task)} tasks: kernels of the slowest device, ms, {ROUNDS} interleaved rounds. Measured over predicted: median, "
        "also as a ratio to the same of the control sets. Other ratios: means with 95% bootstrap intervals over tasks; intervals that "
        f"contain 1 show no significant difference.{sample}"
    )
    heads = (
        "strategy", "tasks", "measured", "measured / predicted", "beyond the controls", *(f"/ {rival}" for rival in RIVALS),
    )  # fmt: skip
    return ResultTable(caption, heads, cells)


def _machines(rows: Sequence[Row]) -> str:
    """A sentence on how many tasks each machine measured, and with which cost models."""
    counts = []
    for (hardware,), own in grouped(rows, HARDWARE).items():
        models = ", ".join(sorted({str(row[MODEL]) for row in own}))
        counts.append(
            f"{len(grouped(own, 'part', 'devices', 'size', 'task'))} tasks on {processor_of(str(hardware))} ({models})"
        )
    return "; ".join(counts) + "."


def _ratios(by_task: Sequence[dict[str, float]], name: str, rival: str) -> list[float]:
    return [own[name] / own[rival] for own in by_task if name in own and rival in own and name != rival]


def _picture(by_part: Mapping[tuple[Value, ...], Sequence[Row]]) -> Figure:
    """Predicted against measured time of every plan, one panel per part."""
    from experiments.pages import COLOURS, panels

    figure, axes = panels([[str(part) for (part,) in by_part] or ["nothing yet"]])
    for axis, rows in zip(axes[0], by_part.values(), strict=False):
        for (name,), own in grouped(rows, "strategy").items():
            times = np.array([[float(row[column] or 0.0) for column in ("compute_ms", "measured_ms")] for row in own])
            axis.plot(*times.T, ".", markersize=3, color=COLOURS.get(str(name), "#c1440e"), label=str(name))
        axis.set_xlabel("predicted, ms")
    axes[0][0].set_ylabel("measured, ms")
    return figure
