"""Every planner on the same tasks and prices: TorchRec's, TorchEasyRec's, HugeCTR's, the papers' strategies, and ours.

    python -m benchmarks.rivals --tasks 100 --models FOLDER       # results/rivals.md
    python -m benchmarks.rivals --tasks 100 --models FOLDER --page

Tasks are public models on H100s, task files in FOLDER if one is named, and synthetic tasks on 4 to 128 H100s: tables of the pool
"dlrm-2021", every other task with a heavy tail. One cost model, the bundled one of the devices, prices all plans; it was none of the
others' when they chose. Plans are for TorchRec, but for HugeCTR's, which it cannot run and which may use any blocks. Each finished task is
a line of a journal, so a stopped run can go on.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import geometric_mean
from typing import Any

import numpy as np

import shardwright as sw
from benchmarks import results_table
from benchmarks.cluster_tasks import cluster_task
from benchmarks.program import Journal, options_of
from shardwright.errors import InfeasibleTask, InvalidPlan
from shardwright.search import strategy_named
from shardwright.workload import public_task

OURS = "certified"
RIVALS = ("torchrec", "tzrec", "hugectr", "hugectr_hier", "neuroshard", "dreamshard", "autoshard", "greedy", "row_wise")
OF_HUGECTR = ("hugectr", "hugectr_hier")
SECONDS = {OURS: 10.0, "torchrec": 20.0, "tzrec": 20.0}
"""Time limits; the others have none, and need less."""
HOSTS = {"mlperf-dlrm-dcnv2": (1, 4), "hugectr-180": (1, 4), "hugectr-200": (2, 8), "hugectr-7": (4, 16)}
"""Hosts of 8 H100s for each public model: as many as hold it, and four times as many."""
DEVICES = (4, 8, 16, 32, 64, 128)
JOURNAL = Path("rivals.jsonl")
MADE_UP = "made-up"


def main(arguments: Sequence[str] | None = None) -> None:
    options = options_of(
        __doc__, arguments, tasks=(100, "made-up tasks"),
        models=(Path, "task files of further models, NAME.task.yaml", {"metavar": "FOLDER"}),
        page=(False, "only write the page, of the tasks that are finished"), journal=JOURNAL,
    )  # fmt: skip
    journal = Journal(options.journal, "task")
    for name, task in () if options.page else tasks(options.tasks, options.models):
        journal.kept(name, lambda task=task: outcome(task))
    folder = " --models FOLDER" if options.models or options.page else ""
    write(journal.rows, f"python -m benchmarks.rivals --tasks {options.tasks}{folder}", options.tasks)


def tasks(made_up: int, folder: Path | None) -> Iterator[tuple[str, sw.Task]]:
    """Public models, models of a folder, and synthetic tasks, each with its name."""
    for model, hosts in HOSTS.items():
        for count in hosts:
            yield f"{model}, {8 * count} h100", public_task(model, sw.Topology.preset("h100-8", hosts=count))
    for path in sorted(folder.glob("*.task.yaml")) if folder else ():
        yield path.name.removesuffix(".task.yaml"), sw.Task.load(path)
    for number in range(made_up):
        rng = np.random.default_rng([52, number])
        devices = DEVICES[number % len(DEVICES)]
        tables = int(rng.integers(5 * min(devices, 32), 12 * min(devices, 32)))
        heavy = number // len(DEVICES) % 2 == 1
        size = {"tables": tables, "devices": devices, "batch_size": 4096 * devices}
        yield f"{MADE_UP} {number}", cluster_task(number, **size, device="h100", heavy_tail=heavy)


def outcome(task: sw.Task) -> dict[str, Any]:
    """Size of a task, steps in ms and seconds of every strategy, None if it found no plan, and the bound that ours proves."""
    steps: dict[str, float | None] = {}
    seconds: dict[str, float] = {}
    bound: float | None = None
    for name in (OURS, *RIVALS):
        if strategy_named(name).supports(task) is not None:
            continue
        begin = time.monotonic()
        try:
            runs_on = None if name in OF_HUGECTR else "torchrec"
            plan = sw.plan(task, strategy=name, runs_on=runs_on, time_limit=SECONDS.get(name))
            steps[name] = plan.cost.step_ms if plan.cost else None
            bound = plan.bound_ms if name == OURS else bound
        except (InfeasibleTask, InvalidPlan):
            steps[name] = None
        seconds[name] = time.monotonic() - begin
    size = {"devices": task.topology.devices, "tables": len(task.tables)}
    return {**size, "steps": steps, "seconds": seconds, "bound": bound}


def write(rows: list[dict[str, Any]], command: str, made_up: int) -> None:
    """Write the page of the finished ones of so many synthetic tasks."""
    names = [name for name in RIVALS if any(name in row["steps"] for row in rows)]
    made = [row for row in rows if row["task"].startswith(MADE_UP) and row["steps"][OURS]]
    public = [row for row in rows if not row["task"].startswith(MADE_UP)]
    by_size = [[row for row in made if row["devices"] == devices] for devices in DEVICES]
    groups = [(str(some[0]["devices"]), some) for some in by_size if some] + [("all", made)]
    limits = ", ".join(f"{name} {seconds:g} s" for name, seconds in SECONDS.items())
    results_table.write_results(
        "rivals",
        "Every planner on the same tasks",
        [
            (
                f"{len(made)} of {made_up} synthetic tasks. Step of `{OURS}` over the other planner's, geometric mean over tasks that "
                f"both planned; "
                f"below 1 ours is shorter. All times are predicted by the bundled model of H100s and preset links. Time limits: {limits}.",
                ("devices", "tasks", *names),
                [[label, len(some), *(_mean(some, name) for name in names)] for label, some in groups],
            ),
            (
                "How often the other planner's step was shorter than ours by more than 0.1%, and how often it found no plan: none in its "
                "time, on a machine that other programs shared, or none that fits the memory by our account.",
                ("planner", "shorter than ours", "no plan", "median s", "longest s"),
                [[name, *_counts(rows, name)] for name in (OURS, *names)],
            ),
            (
                "Public models: step in ms, predicted.",
                ("model", "tables", "devices", "bound", OURS, *names),
                [[row["task"], row["tables"], row["devices"], _ms(row["bound"]), *(_ms(row["steps"].get(name)) for name in (OURS, *names))]
                 for row in public],
            ),
        ],
        command,
    )  # fmt: skip


def _mean(rows: list[dict[str, Any]], name: str) -> str:
    ratios = [row["steps"][OURS] / row["steps"][name] for row in rows if row["steps"].get(name)]
    some = f" ({len(ratios)})" if len(ratios) < len(rows) else ""
    return f"{geometric_mean(ratios):.2f}{some}" if ratios else "–"


def _counts(rows: list[dict[str, Any]], name: str) -> list[str]:
    tried = [row for row in rows if name in row["steps"]]
    both = [row for row in tried if row["steps"][name] and row["steps"][OURS]]
    shorter = sum(row["steps"][name] < row["steps"][OURS] * 0.999 for row in both)
    seconds = [row["seconds"][name] for row in tried]
    failed = sum(row["steps"][name] is None for row in tried)
    return [f"{shorter} of {len(both)}", str(failed), f"{np.median(seconds):.1f}", f"{max(seconds):.1f}"]


def _ms(value: float | None) -> str:
    return "–" if value is None else f"{value:.3g}" if value < 100 else f"{value:.0f}"


if __name__ == "__main__":
    main()
