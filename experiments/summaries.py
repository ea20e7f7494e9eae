"""Summaries of rows: common tasks of strategies, means with intervals, ratios, cells of tables."""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterable, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from experiments.experiment import Row, Value
from experiments.rows import VERSION

NOTHING = "–"
REDESIGNS = (
    "`autoshard` and `dreamshard` are redesigns of the papers' methods (docs/concepts/learned.md lists the departures), so their figures "
    "are not those of the papers' methods."
)
"""For every page that compares learned strategies with a paper's figures."""
_DRAWS = 2000


def conditions(rows: Sequence[Row], batch: str = "1,024", optimizer: str = "row-wise Adagrad") -> str:
    """A text on how plans were made: batch, optimizer, memory rule, and the score that `neuroshard` searched by (from the rows)."""
    own = {str(row.get(VERSION, "")) for row in rows if "neuroshard" in (row.get("strategy"), row.get("system"))}
    score = "embedding cost" if any("score embedding" in version for version in own) else "step"
    old = {
        row.get("strategy")
        for row in rows
        if row.get("strategy") in ("size", "dim") and "ties by size" not in str(row.get(VERSION, ""))
    }
    ties = (
        " `size` and `dim` broke ties by the order of tables here; broken by size, as in the papers' code, `dim` is stronger."
        if old
        else ""
    )
    searched = f" `neuroshard` searched by the {score}." if own else ""
    return (
        f"Batch {batch} over all devices, {optimizer}. Weights, optimizer state and buffers fit every device.{searched} The papers run "
        f"batch 65,536 with SGD on GPUs, count only weights as memory and score plans by embedding cost.{ties}"
    )


def models_of(rows: Sequence[Row]) -> str:
    """The cost models that priced the rows' plans, for example "model 0123abcd"."""
    return ", ".join(
        sorted({model for row in rows for model in re.findall(r"model [0-9a-f]{8}", str(row.get(VERSION, "")))})
    )


def grouped(rows: Iterable[Row], *columns: str) -> dict[tuple[Value, ...], list[Row]]:
    """Group rows by the values of columns, in order of first appearance."""
    groups: dict[tuple[Value, ...], list[Row]] = {}
    for row in rows:
        groups.setdefault(tuple(row[column] for column in columns), []).append(row)
    return groups


def values_by_task(
    rows: Iterable[Row], column: str, *, task: str = "task", strategy: str = "strategy"
) -> dict[str, dict[Value, float]]:
    """For each strategy the values of a column by task, without rows that lack a value."""
    values: dict[str, dict[Value, float]] = {}
    for row in rows:
        of_task = values.setdefault(str(row[strategy]), {})
        value = row[column]
        if value is not None:
            of_task[row[task]] = float(value)
    return values


def common_tasks(values: Mapping[str, Mapping[Value, float]]) -> list[Value]:
    """Tasks for which all strategies have a value, in the order of the first strategy; empty without strategies."""
    each = list(values.values())
    return [task for task in each[0] if all(task in of_task for of_task in each)] if each else []


def resampled(count: int) -> npt.NDArray[np.int64]:
    """Return `(draws, count)` positions drawn with replacement from so many, reproducibly."""
    return np.random.default_rng(0).integers(count, size=(_DRAWS, count))


def mean_interval(values: Sequence[float]) -> tuple[float, float, float]:
    """Mean and bounds of its 95% bootstrap interval, reproducibly; all three equal for one value, NaN without values."""
    if not len(values):
        return float("nan"), float("nan"), float("nan")
    array = np.asarray(values, dtype=np.float64)
    low, high = np.percentile(array[resampled(len(array))].mean(axis=1), (2.5, 97.5))
    return float(array.mean()), float(low), float(high)


def ratio_of_means(own: Mapping[Value, float], other: Mapping[Value, float], tasks: Iterable[Value]) -> float | None:
    """Mean of one strategy's values divided by the mean of another's, over the same tasks; None without tasks."""
    chosen = list(tasks)
    return sum(own[task] for task in chosen) / sum(other[task] for task in chosen) if chosen else None


def cell(value: float | None, spec: str = ".2f") -> str:
    """A number as text; a dash for None, NaN and infinity."""
    return NOTHING if value is None or not np.isfinite(value) else format(value, spec)


def with_interval(values: Sequence[float], spec: str = ".2f") -> str:
    """Mean and interval, for example "3.21 (3.05 to 3.40)"; without the interval for a single value."""
    mean, low, high = mean_interval(values)
    if len(values) < 2:
        return cell(mean, spec)
    return f"{mean:{spec}} ({low:{spec}} to {high:{spec}})"


def in_order(names: Iterable[Hashable], wanted: Sequence[str]) -> list[str]:
    """The given names in the wanted order; names that `wanted` lacks come last."""
    there = dict.fromkeys(map(str, names))
    return [*(name for name in wanted if name in there), *(name for name in there if name not in wanted)]
