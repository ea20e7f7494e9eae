"""Plans of several strategies for one task on this machine's kernels, and the fit of predictions."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from experiments.entrants import Entrant
from experiments.experiment import ResultTable, Row
from experiments.neuroshard.comparisons import CASE
from experiments.outcomes import planned, row_of
from experiments.pages import processor_of
from experiments.rows import HARDWARE
from experiments.summaries import cell, grouped, in_order
from shardwright.cost.choice import cost_model_for
from shardwright.cost.files import learned_elsewhere
from shardwright.errors import MeasurementFailed
from shardwright.task.task import Task

if TYPE_CHECKING:
    from shardwright.cost.model import CostModel
    from shardwright.measure.measuring import MeasuredPlan

CONTROLS = "controls"
"""Column with the time of the control sets over their time when the cost model was learned; None if unknown."""
NOT_MEASURED = "not measured"
"""Failure of a task whose plans could not be measured on this machine."""


def measured_rows(
    task: Task, entrants: Sequence[Entrant], *, seed: int, rounds: int, model: CostModel | None = None
) -> list[Row]:
    """Plan a task by all strategies and measure the plans in interleaved rounds.

    Args:
        task: the task.
        entrants: the strategies.
        seed: seed of the searches and of the order of visits.
        rounds: number of rounds of visits.
        model: cost model; by default the bundled one.

    Returns:
        For each plan the row of `row_of`, with `strategy`, `CONTROLS` and `measured_ms`: the longest kernels of a device, comparable with
        `compute_ms`. Without a plan, or if this machine cannot run the plans, one row with the failure `NOT_MEASURED`.
    """
    from shardwright.measure.measuring import measure_plans

    plans = [plan for entrant in entrants if (plan := planned(task, entrant, seed=seed, model=model)[1]) is not None]
    nothing: Row = {"strategy": "", "measured_ms": None, CONTROLS: None}
    if not plans:
        return [nothing | _empty(task, "no strategy placed the task")]
    try:
        measured = measure_plans(plans, rounds=rounds, seed=seed)
    except MeasurementFailed as error:
        return [nothing | _empty(task, str(error))]
    return [_row(result, model) for result in measured]


def _row(measured: MeasuredPlan, model: CostModel | None) -> Row:
    own: Row = {"strategy": measured.plan.strategy, "measured_ms": float(measured.device_ms.max())}
    return own | {CONTROLS: measured.controls.slower_than(getattr(model, "metadata", {}))} | row_of(measured.plan)


def _empty(task: Task, why: str) -> Row:
    columns = ("oversize", "cut", "step_ms", "embedding_cost_ms", "compute_ms", "balance", "bound_ms", "search_s")
    return {"tables": len(task.tables)} | dict.fromkeys(columns) | {"failure": NOT_MEASURED, "why": why}


def measured_table(rows: Sequence[Row], names: Sequence[str]) -> ResultTable:
    """A line for each strategy: predicted and measured kernels, and both relative to the first strategy present.

    Args:
        rows: rows measured on one machine; at least one.
        names: the strategies in the order of the lines.
    """
    there = [row for row in rows if row["measured_ms"] is not None]
    by_case = {
        case: {str(row["strategy"]): row for row in of_case} for (case,), of_case in grouped(there, CASE).items()
    }
    order = in_order((row["strategy"] for row in there), names)
    rival = order[0] if order else ""
    cells = []
    for name in order:
        of_task = {case: own[name] for case, own in by_case.items() if name in own}
        pairs = [_times(row) for row in of_task.values()]
        errors = [predicted / measured - 1 for predicted, measured in pairs]
        beside = [
            (_times(row), _times(by_case[case][rival])) for case, row in of_task.items() if rival in by_case[case]
        ]
        ratios = [[own[kind] / other[kind] for own, other in beside] for kind in range(2)]
        cells.append(
            (name, len(pairs), *(cell(float(np.mean(column))) for column in zip(*pairs, strict=True)),
             cell(float(np.mean(np.abs(errors))), ".1%"), cell(float(np.median(errors)), "+.1%"),
             *(cell(float(np.mean(ratio)) if ratio else None, ".3f") for ratio in ratios))
        )  # fmt: skip
    correlations = orders([_times(row) for row in of_case.values()] for of_case in by_case.values())
    said = f"{np.mean(correlations):.2f} on average ({len(correlations)} tasks)" if correlations else "unknown"
    sizes = sorted({int(row["tables"] or 0) for row in there})
    processor = processor_of(str(rows[0][HARDWARE]))
    elsewhere = learned_elsewhere(getattr(cost_model_for("cpu"), "metadata", {}), "cpu", processor)
    caption = (
        f"Measured on the kernels of {processor}, {len(by_case)} tasks of {sizes[0]} to {sizes[-1]} tables: kernels of the slowest "
        f"device, ms (no links). Difference: |predicted / measured − 1|, mean; signed: median. Ratio: to `{rival}` on the same task, "
        f"mean. The rank correlation of predicted and measured times of the strategies within a task is {said}."
        + (f" The cost model {elsewhere}." if elsewhere else "")
    )
    heads = ("strategy", "tasks", "predicted", "measured", "difference", "signed", "predicted ratio", "measured ratio")
    return ResultTable(caption, heads, cells)


def orders(tasks: Iterable[Sequence[tuple[float, float]]]) -> list[float]:
    """The rank correlation of predicted and measured times for each task; tasks with one plan or with equal times are left out."""
    from scipy.stats import spearmanr

    arrays = [np.array(times) for times in tasks if len(times) > 1]
    ordered = [both for both in arrays if np.ptp(both, axis=0).all()]
    return [float(spearmanr(both[:, 0], both[:, 1]).statistic) for both in ordered]


def _times(row: Row) -> tuple[float, float]:
    """Predicted and measured kernels of the slowest device, ms."""
    return float(row["compute_ms"] or 0.0), float(row["measured_ms"] or 0.0)
