"""Public models: predictions for their embedding part, published times of whole steps, and reviews of published plans.

    python -m benchmarks.public_models                     # results/public_models.md
    python -m benchmarks.public_models --models FOLDER     # with task files of further models, NAME.task.yaml, plans of TorchRec's
                                                           # planner for them, NAME.torchrec_plan.json, and logs of it, NAME.log

TorchRec's repository has a log of a production model: `docs/wiki/sharding_stats_example.txt`.

Published steps include dense layers, and are of other plans. So a predicted embedding part must be shorter, and its share should grow with
the tables.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import shardwright as sw
from benchmarks import results_table
from benchmarks.program import Journal, options_of
from shardwright.errors import InfeasibleTask
from shardwright.sharding.stats_table import decoded, read_stats
from shardwright.sharding.torchrec_files import plan_from_sharding_plan
from shardwright.sharding.torchrec_logs import plan_of_stats
from shardwright.task.quantities import format_bytes
from shardwright.workload import public_task

SECONDS = 60.0
REVIEW_SECONDS = 120.0
MOVES = (20 * 10**9, 100 * 10**9, None)
"""Bytes that a better plan than a published one may move; None for any."""
JOURNAL = Path("public_models.jsonl")
MODELS = {
    "models": (Path, "task files of further models, NAME.task.yaml", {"metavar": "FOLDER"}),
    "only": ("", "cases with this in the model's name", {"metavar": "TEXT"}),
}
"""Options that choose cases."""
TASK, PLAN, LOG = ".task.yaml", ".torchrec_plan.json", ".log"
OF_NVIDIA = "whole step, distributed-embeddings on DGX A100, Adagrad"
OF_MLCOMMONS = "whole step, torchrec_dlrm on AWS p4d, from records a second"


@dataclass(frozen=True)
class Published:
    """A model on a cluster, and its published step if there is one.

    Attributes:
        model: name of the public model.
        preset: topology of a host.
        devices: number of devices.
        batch_size: samples a step; None for the published ones.
        memory: bytes of a device for tables; None for the preset's.
        step_ms: the published step; None if none is published.
        what: what that step covers, and where it ran.
    """

    model: str
    preset: str
    devices: int
    batch_size: int | None = None
    memory: str | None = None
    step_ms: float | None = None
    what: str = "–"

    @property
    def task(self) -> sw.Task:
        """The model on its cluster."""
        near = min(self.devices, 8)
        more = {} if self.memory is None else {"memory": self.memory}
        topology = sw.Topology.preset(self.preset, hosts=self.devices // near, devices_per_host=near, **more)
        return public_task(self.model, topology, batch_size=self.batch_size)


STEPS_OF_NVIDIA = {
    "tiny": {1: 24.433, 8: 5.537, 16: 4.867},
    "small": {1: 67.355, 8: 17.203, 16: 12.461, 32: 11.839},
    "medium": {8: 63.393, 16: 46.636, 32: 37.732, 128: 27.329},
    "large": {32: 67.57, 128: 37.934},
    "jumbo": {128: 124.3},
}
"""Steps in ms by GPUs: README of the synthetic models of NVIDIA-Merlin/distributed-embeddings."""

OF_TORCHREC = "TorchRec's own estimate of its plan: sum of maxima in the statistics that its documentation shows"
OF_FOLDER = {"meta_1935_tables_96_gpus": (1469.293, OF_TORCHREC)}
"""Published figures of models in a folder, by file."""

CASES = (
    *(
        Published(f"nvidia-{size}", "a100-8", devices, step_ms=step, what=OF_NVIDIA)
        for size, steps in STEPS_OF_NVIDIA.items()
        for devices, step in steps.items()
    ),
    Published("torchrec-dlrm", "a100-8", 8, 8 * 2048, "34 GB", 9.8, OF_MLCOMMONS),
    Published("torchrec-dlrm", "a100-8", 8, 8 * 8192, "34 GB", 12.2, OF_MLCOMMONS),
    Published("mlperf-dlrm-dcnv2", "h100-8", 8),
    Published("hugectr-180", "h100-8", 8),
    Published("hugectr-200", "h100-8", 16),
    Published("hugectr-7", "h100-8", 32),
)


def main(arguments: Sequence[str] | None = None) -> None:
    options = options_of(__doc__, arguments, **MODELS, journal=JOURNAL)
    journal = Journal(options.journal, "case")
    chosen = [case for case in cases(options.models) if options.only in case[0]]
    rows = [journal.kept(name, partial(_outcome, *case)) for name, *case in chosen]
    plans = [
        path
        for path in (sorted(options.models.iterdir()) if options.models else ())
        if path.name.endswith((PLAN, LOG)) and options.only in path.name
    ]
    reviews = [journal.kept(_review_name(path, most), partial(_review, path, most)) for path in plans for most in MOVES]
    write(rows, reviews, "python -m benchmarks.public_models" + (" --models FOLDER" if options.models else ""))


def cases(folder: Path | None) -> Iterator[tuple[str, sw.Task, float | None, str]]:
    """The cases, each with its name, task, published step and what that covers."""
    for case in CASES:
        task = case.task
        yield f"{case.model}, {case.devices} {task.topology.device}, {task.batch_size:,}", task, case.step_ms, case.what
    for path in sorted(folder.glob("*" + TASK)) if folder else ():
        task = sw.Task.load(path)
        name = path.name.removesuffix(TASK)
        if not name.startswith(("nvidia_synthetic", "torchrec_dlrm")):  # these are above
            step_ms, what = OF_FOLDER.get(name, (None, "–"))
            yield f"{name}, {task.topology.devices} {task.topology.device}, {task.batch_size:,}", task, step_ms, what


def _outcome(task: sw.Task, step_ms: float | None, what: str) -> dict[str, Any]:
    row: dict[str, Any] = {
        "tables": len(task.tables), "weights": sum(table.weight_bytes for table in task.tables),
        "memory": max(task.topology.memory_bytes), "published": step_ms, "what": what, "step": None,
    }  # fmt: skip
    try:
        plan = sw.plan(task, time_limit=SECONDS, runs_on="torchrec")
    except InfeasibleTask as error:
        return {**row, "why": str(error)}
    assert plan.cost is not None
    figures = {"step": plan.cost.step_ms, "kernels": plan.cost.compute_ms, "bound": plan.bound_ms}
    return {**row, **figures, "fullest": int(max(plan.memory.total))}


def _review_name(path: Path, most: int | None) -> str:
    return path.name.removesuffix(PLAN) + (f", {format_bytes(most)}" if most else ", any bytes")


def _given(path: Path) -> sw.Plan:
    """A plan of TorchRec's planner, from its file and a task, or from a log."""
    if path.suffix == LOG:
        (stats,) = read_stats(decoded(path.read_bytes()), path.name)
        return plan_of_stats(stats, path.name).plan
    task = sw.Task.load(path.with_name(path.name.removesuffix(PLAN) + TASK))
    return plan_from_sharding_plan(json.loads(path.read_text(encoding="utf-8")), task, path.name)


def _review(path: Path, most: int | None) -> dict[str, Any]:
    """Review a plan of TorchRec's planner, as `shardwright review PLAN --task TASK [--most-moved SIZE]` does, or `review LOG`."""
    limit = None if most else REVIEW_SECONDS  # searches at prices of moves end by themselves
    reviewed = sw.review(_given(path), most_moved=most, time_limit=limit, runs_on="torchrec")
    moved = reviewed.diff.moved_bytes
    steps = {"theirs": reviewed.step_ms, "ours": reviewed.better_ms, "bound": reviewed.bound_ms}
    return {**steps, "moved": moved, "held": moved + reviewed.diff.kept_bytes}


def write(rows: list[dict[str, Any]], reviews: list[dict[str, Any]], command: str) -> None:
    results_table.write_results(
        "public_models",
        "Public models: predicted embedding part, and published steps",
        [
            (
                f"Plans for TorchRec, `auto` with {SECONDS:g} s. The embedding part is a predicted step: lookups, exchange, gradients and "
                "optimizer of all tables, by the bundled model of the device and preset links; we measured nothing. A name gives GPUs "
                "and samples a step.",
                ("model, GPUs, batch", "tables", "weights, GB", "embedding part, ms", "kernels of it", "bound", "gap", "fullest of, GB",
                 "published, ms", "part of it"),
                [_cells(row) for row in rows],
            ),
            (
                "Published figures.",
                ("model, GPUs, batch", "step, ms", "of what"),
                [[row["case"], f"{row['published']:g}", row["what"]] for row in rows if row["published"]],
            ),
            *([_reviews(reviews)] if reviews else []),
        ],
        command,
    )  # fmt: skip


def _reviews(reviews: list[dict[str, Any]]) -> tuple[str, Sequence[str], list[list[object]]]:
    """The table of reviews."""
    caption = (
        "Reviews of published plans of TorchRec's planner, predicted: our best step within a limit of moved bytes (`review --most-moved`), "
        f"or with any bytes (`review --time-limit {REVIEW_SECONDS:g}`). The bound covers all plans, however much they move, so it proves "
        "nothing about few moves. In a log, features that share a table count each by itself; a task file may add up their lookups."
    )
    heads = ("plan, most bytes moved", "theirs, ms", "ours", "shorter by", "bound", "moved, GB", "of GB")
    return caption, heads, [
        [
            row["case"], f"{row['theirs']:.1f}", f"{row['ours']:.1f}", f"{1 - row['ours'] / row['theirs']:.1%}",
            f"{row['bound']:.1f}" if row["bound"] else "–", f"{row['moved'] / 1e9:.1f}", f"{row['held'] / 1e9:.0f}",
        ]
        for row in reviews
    ]  # fmt: skip


def _cells(row: dict[str, Any]) -> list[str]:
    head = [row["case"], f"{row['tables']:,}", f"{row['weights'] / 1e9:,.0f}"]
    if row["step"] is None:
        return [*head, "no plan", *["–"] * 4, f"{row['published']:g}" if row["published"] else "–", "–"]
    step, bound, published = row["step"], row["bound"], row["published"]
    return [
        *head, f"{step:.2f}", f"{row['kernels']:.2f}", f"{bound:.2f}" if bound else "–", f"{step / bound - 1:.1%}" if bound else "–",
        f"{row['fullest'] / 1e9:.1f} of {row['memory'] / 1e9:.0f}", f"{published:g}" if published else "–",
        f"{step / published:.0%}" if published else "–",
    ]  # fmt: skip


if __name__ == "__main__":
    main()
