"""How often the plan predicted fastest is the one measured fastest, from rows of earlier measurements.

    python -m benchmarks.fastest_of        # results/fastest_of.md, in seconds, without new measurements

The rows are kernel times of `gpu_plans` (H100) and `papers-measured` (CPU), predicted before they were measured, and whole steps of
`steps_measured`. Strategies that ask the predicting model choose plans that it underrates; every second row of the table leaves them out.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import results_table

PUBLISHED = "85% (ml_perf_model, TPDS 2024: whole training steps of DLRMs)"
ASKED = ("certified", "neuroshard", "dreamshard+", "greedy")
"""Strategies that ask the model, with their variants; so do `auto` and its plan with replicas."""
CLOSE = 0.02  # of the faster plan: two measurements closer than this are not told apart

Plans = dict[str, tuple[float, float]]
"""Predicted and measured ms of each strategy's plan for one task."""


def main() -> None:
    sources: dict[str, dict[Any, Plans]] = {
        "H100, kernels": of_gpu(),
        "CPU, kernels": of_papers(),
        "CPUs over gloo, whole steps": of_steps(),
    }
    rows = []
    for hardware, tasks in sources.items():
        for which, keep in (("all", lambda name: True), ("of strategies that do not ask the model", _not_asked)):
            rows.append([hardware, which, *judged(list(tasks.values()), keep)])
    results_table.write_results(
        "fastest_of",
        "Which of these plans is fastest?",
        [
            (
                f"Plans of several strategies for one task: kernel times without links, or whole steps. "
                f"Published for another model: {PUBLISHED}. "
                f"Plans whose measured times differ by less than {CLOSE:.0%} count as equally fast in the last two columns.",
                ("hardware", "plans", "tasks", "plans a task", "names the fastest", "lost by its choice, mean", "most",
                 "names one of the fastest", "right order of two plans"),
                rows,
            )
        ],
        "python -m benchmarks.fastest_of",
        "rows of gpu_plans, papers-measured and steps_measured, whose pages name the hardware",
    )  # fmt: skip


def _not_asked(name: str) -> bool:
    return not name.startswith(ASKED) and name not in ("auto", "replicas")


def of_gpu() -> dict[Any, Plans]:
    """Plans of `gpu_plans.parquet`: the slowest device's forward and backward kernels."""
    devices: dict[tuple[Any, str], list[dict[str, Any]]] = defaultdict(list)
    for row in _rows("gpu_plans.parquet"):
        devices[row["task"], row["strategy"]].append(row)
    tasks: dict[Any, Plans] = defaultdict(dict)
    for (task, strategy), rows in devices.items():
        predicted, measured = (
            sum(max(row[f"{kind}_{way}_ms"] for row in rows) for way in ("forward", "backward"))
            for kind in ("predicted", "measured")
        )
        tasks[task][strategy] = predicted, measured
    return tasks


def of_papers() -> dict[Any, Plans]:
    """Plans of `papers-measured.parquet` that were measured."""
    tasks: dict[Any, Plans] = defaultdict(dict)
    for row in _rows("papers-measured.parquet"):
        if row["measured_ms"] is not None and row["compute_ms"] is not None:
            key = tuple(row[name] for name in ("part", "devices", "size", "task"))
            tasks[key][row["strategy"]] = row["compute_ms"], row["measured_ms"]
    return tasks


def of_steps() -> dict[Any, Plans]:
    """Plans of `steps_measured.parquet`: steps of TorchRec over links of a limited rate."""
    tasks: dict[Any, Plans] = defaultdict(dict)
    for row in _rows("steps_measured.parquet"):
        tasks[row["bed"], row["rate"], row["model"]][row["plan"]] = row["predicted_ms"], row["measured_ms"]
    return tasks


def _rows(name: str) -> list[dict[str, Any]]:
    import pyarrow.parquet as pq

    rows: list[dict[str, Any]] = pq.read_table(Path(__file__).parent / "results" / name).to_pylist()
    return rows


def judged(tasks: Sequence[Plans], keep: Callable[[str], bool]) -> list[str]:
    """Return a row: tasks, plans a task, hits, mean and largest loss of the choice, near hits, and pairs in the right order."""
    chosen: list[tuple[bool, float]] = []
    counts, ordered = [], []
    for plans in tasks:
        pairs = np.array([times for name, times in plans.items() if keep(name)])
        if len(pairs) < 2:
            continue
        predicted, measured = pairs.T
        lost = measured[predicted.argmin()] / measured.min() - 1
        chosen.append((bool(lost == 0), float(lost)))
        counts.append(len(pairs))
        for a, b in itertools.combinations(range(len(pairs)), 2):
            if abs(measured[a] - measured[b]) >= CLOSE * min(measured[a], measured[b]):
                ordered.append((predicted[a] < predicted[b]) == (measured[a] < measured[b]))
    lost_all = np.array([lost for _, lost in chosen])
    return [
        str(len(chosen)), f"{min(counts)} to {max(counts)}", f"{np.mean([right for right, _ in chosen]):.0%}", f"{lost_all.mean():.1%}",
        f"{lost_all.max():.1%}", f"{(lost_all < CLOSE).mean():.0%}", f"{np.mean(ordered):.1%} of {len(ordered):,}",
    ]  # fmt: skip


if __name__ == "__main__":
    main()
