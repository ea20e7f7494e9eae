"""Where predicted and measured kernel times disagree, by strategy and by what a device holds: tables of `plans_measured.py`."""

from __future__ import annotations

import csv
import io
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
import numpy.typing as npt
from measured_tables import HeadsAndRows, Measurement, Rows

from shardwright.files import write_atomically
from shardwright.measure.groups import kernel_groups
from shardwright.sharding.shard import Shard
from shardwright.sharding.work import shard_work
from shardwright.task import Task

Floats = npt.NDArray[np.float64]

COUNTS = ("shards", "fused calls", "replicas", "row blocks", "column blocks", "narrowest width")
"""Properties in whole numbers."""

_SAME = "fused calls"  # follow from the replicas: a regression cannot tell the two apart
_SEARCHES = ("neuroshard", "certified")


@dataclass(frozen=True)
class DeviceLoad:
    """What a device of a measured plan holds, and how long that takes.

    Attributes:
        strategy: who made the plan.
        task: devices and number of the task.
        predicted_ms: forward plus backward kernels.
        measured_ms: the same.
        slowest: whether it is the plan's slowest device as predicted.
        properties: numbers about the load, by name.
    """

    strategy: str
    task: tuple[int, int]
    predicted_ms: float
    measured_ms: float
    slowest: bool
    properties: dict[str, float]

    @property
    def error(self) -> float:
        """Predicted / measured − 1."""
        return self.predicted_ms / self.measured_ms - 1


def device_loads(found: list[Measurement]) -> list[DeviceLoad]:
    """All devices that hold something."""
    loads = []
    for one in found:
        plan, measured = one.result.plan, one.result.device_ms
        assert plan.cost is not None
        predicted = [device.compute_ms for device in plan.cost.devices]
        for rank, held in enumerate(plan.by_device):
            if held:
                slowest, key = predicted[rank] == max(predicted), (one.devices, one.number)
                facts = properties_of(plan.task, held)
                loads.append(DeviceLoad(plan.strategy, key, predicted[rank], float(measured[rank]), slowest, facts))
    return loads


def properties_of(task: Task, held: list[Shard]) -> dict[str, float]:
    """What a device holds, in numbers that a user can act on."""
    tables = [task.table_by_name[shard.table] for shard in held]
    works = [shard_work(task, shard) for shard in held]
    lookups = np.array([work.lookups for work in works])
    return {
        "shards": len(held),
        "fused calls": len(kernel_groups(works)),
        "replicas": sum(len(shard.devices) > 1 for shard in held),
        "row blocks": sum(shard.row_count < table.rows for shard, table in zip(held, tables, strict=True)),
        "column blocks": sum(shard.dim < table.dim for shard, table in zip(held, tables, strict=True)),
        "narrowest width": min(shard.dim for shard in held),
        "mean width, by lookups": float(np.average([shard.dim for shard in held], weights=lookups)),
        "share of the lookups in one shard": float(lookups.max() / lookups.sum()),
        "rows in use, MB": sum(work.access.distinct_rows(work.lookups) * work.dim * 4 for work in works) / 1e6,
    }


def strategy_errors(loads: list[DeviceLoad]) -> HeadsAndRows:
    """Signed errors of single devices by strategy, and of the slowest of each plan."""
    heads = (
        "strategy", "devices", "signed error, median", "10th to 90th percentile", "mean of |error|", "slowest: median",
        "slowest: 10th to 90th percentile",
    )  # fmt: skip
    rows: Rows = []
    for name in (*dict.fromkeys(load.strategy for load in loads), "all"):
        own = [load for load in loads if name in (load.strategy, "all")]
        errors, slowest = _errors(own), _errors([load for load in own if load.slowest])
        rows.append(
            (name, str(len(own)), *_spread(errors), f"{np.abs(errors).mean():.1%}", *_spread(slowest)),
        )
    return heads, rows


def property_table(loads: list[DeviceLoad]) -> HeadsAndRows:
    """Signed errors by bins of each property."""
    heads = ("property", "from", "to", "devices", "signed error, median", "10th to 90th percentile", *_SEARCHES)
    rows: Rows = []
    for name in loads[0].properties:
        values = np.array([load.properties[name] for load in loads])
        edges = _edges(values, name in COUNTS)
        for low, high in pairwise(edges):
            inside = [
                load for load, value in zip(loads, values, strict=True) if low <= value and (value < high or high == edges[-1])
            ]  # fmt: skip
            if inside:
                found = [load.properties[name] for load in inside]
                of_searches = [
                    _middle(_errors([load for load in inside if load.strategy == search])) for search in _SEARCHES
                ]
                limits = f"{min(found):.3g}", f"{max(found):.3g}"
                rows.append((name, *limits, str(len(inside)), *_spread(_errors(inside)), *of_searches))
    return heads, rows


def regression_table(loads: list[DeviceLoad]) -> HeadsAndRows:
    """Effect of each property on the error, the others and the task held still."""
    heads = ("property", "standard deviation", "effect of one more of it on predicted / measured", "standard error")
    kept = [
        name for name in loads[0].properties if name != _SAME and np.ptp([load.properties[name] for load in loads]) > 0
    ]
    raw = np.array([[load.properties[name] for name in kept] for load in loads])
    columns = _within_task((raw - raw.mean(axis=0)) / raw.std(axis=0), loads)
    target = _within_task(np.log([load.predicted_ms / load.measured_ms for load in loads])[:, None], loads)[:, 0]
    inverse = np.linalg.pinv(columns.T @ columns)
    effect = inverse @ columns.T @ target
    freedom = max(1, len(loads) - len(kept) - len({load.task for load in loads}))
    error = np.sqrt(np.diag(inverse) * np.square(target - columns @ effect).sum() / freedom)
    return heads, [
        (name, f"{deviation:.3g}", f"{np.expm1(change):+.1%}", f"{unsure:.1%}")
        for name, deviation, change, unsure in zip(kept, raw.std(axis=0), effect, error, strict=True)
    ]


def write_csv(path: str, loads: list[DeviceLoad]) -> None:
    """Every device as a row."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    names = list(loads[0].properties)
    writer.writerow(["strategy", "devices", "task", "predicted ms", "measured ms", "slowest", *names])
    for load in loads:
        numbers = [f"{number:.5g}" for number in (load.predicted_ms, load.measured_ms)]
        facts = [f"{load.properties[name]:.4g}" for name in names]
        writer.writerow([load.strategy, *load.task, *numbers, int(load.slowest), *facts])
    write_atomically(Path(path), text.getvalue())


def _within_task(values: Floats, loads: list[DeviceLoad]) -> Floats:
    """Columns without the mean of each task."""
    tasks = [load.task for load in loads]
    group = np.unique([1000 * devices + number for devices, number in tasks], return_inverse=True)[1]
    count = np.bincount(group)
    means = np.array([np.bincount(group, column) / count for column in values.T]).T
    centred: Floats = values - means[group]
    return centred


def _edges(values: Floats, counted: bool) -> list[float]:
    """Powers of two for counts, quarters of the devices for other numbers."""
    if counted:
        return [0.0, 1.0, *(2.0**power for power in range(1, 11)), np.inf]
    return sorted(set(np.percentile(values, (0, 25, 50, 75, 100)).tolist()))


def _errors(loads: list[DeviceLoad]) -> Floats:
    return np.array([load.error for load in loads])


def _spread(errors: Floats) -> tuple[str, str]:
    if not errors.size:
        return "–", "–"
    low, high = np.percentile(errors, (10, 90))
    return _middle(errors), f"{low:+.1%} to {high:+.1%}"


def _middle(errors: Floats) -> str:
    return f"{np.median(errors):+.1%}" if errors.size else "–"
