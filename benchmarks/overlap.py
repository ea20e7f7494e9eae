"""Public models with dense layers that hide traffic: predicted steps, plans and bounds.

    python -m benchmarks.overlap                     # results/overlap.md
    python -m benchmarks.overlap --models FOLDER     # with task files of further models, NAME.task.yaml

The dense layers' time is assumed: the published step less the predicted embedding part; without a published step, as long as the embedding
part. In the first setting all dense layers wait for embeddings, as in TorchRec's DLRM. In the second, a tenth of their time hides values
and a fifth hides gradients.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import shardwright as sw
from benchmarks import results_table
from benchmarks.program import Journal, options_of
from benchmarks.public_models import MODELS, cases
from shardwright.cost import cost_model_for, score
from shardwright.errors import InfeasibleTask
from shardwright.task import DenseTime

SECONDS = 10.0
JOURNAL = Path("overlap.jsonl")
IDS, ALL = "ids", "all"


def main(arguments: Sequence[str] | None = None) -> None:
    options = options_of(__doc__, arguments, **MODELS, journal=JOURNAL)
    journal, rows = Journal(options.journal, "case"), []
    for name, task, step_ms, _ in cases(options.models):
        if options.only not in name or task.topology.devices == 1:
            continue
        rows.append(journal.kept(name, partial(_outcome, task, step_ms)))
    write(rows, "python -m benchmarks.overlap" + (" --models FOLDER" if options.models else ""))


def _outcome(task: sw.Task, published_ms: float | None) -> dict[str, Any]:
    task = replace(task, exchange=replace(task.exchange, pipeline="sparse_dist"))
    try:
        bare = sw.plan(task, time_limit=SECONDS, runs_on="torchrec")
    except InfeasibleTask as error:
        return {"why": str(error)}
    assert bare.cost is not None
    step = bare.cost.step_ms
    dense = max(published_ms - step, 0.0) if published_ms else step
    row = {"dense": dense, "step": step, "bound": bare.bound_ms, "kernels": bare.cost.compute_ms}
    for setting, hidden in ((IDS, DenseTime(ids=dense)), (ALL, DenseTime(0.1 * dense, 0.7 * dense, 0.2 * dense))):
        beside = replace(task, exchange=replace(task.exchange, dense_ms=hidden))
        model = cost_model_for(task.topology.device, task.optimizer)
        kept = score(beside, bare.shards, model).step_ms
        plan = sw.plan(beside, time_limit=SECONDS, runs_on="torchrec")
        assert plan.cost is not None
        others = [table for table in task.tables if plan.sharding_type(table.name) != bare.sharding_type(table.name)]
        row[setting] = {"kept": kept, "step": plan.cost.step_ms, "bound": plan.bound_ms, "types": len(others)}
    return row


def write(rows: list[dict[str, Any]], command: str) -> None:
    results_table.write_results(
        "overlap",
        "Public models with dense layers: the effect of hidden traffic",
        [
            (
                f"Predicted embedding parts in ms, of plans for TorchRec, `auto` with {SECONDS:g} s, `pipeline: sparse_dist`. The dense "
                "layers' time is assumed: the published step less the embedding part, or as long as the embedding part if no step is "
                "published (*). *Same plan* is the plan made without dense layers, priced with them; *new plan* is searched with "
                "them. The last column counts tables of another sharding type. " + what,
                ("model, GPUs, batch", "dense layers", "without", "gap", "same plan", "new plan", "gain", "bound", "gap with", "kernels",
                 "other types"),
                [_cells(row, setting) for row in rows if "why" not in row],
            )
            for setting, what in (
                (IDS, "Here all dense layers need embeddings, `dense_ms: D`, and hide ids alone."),
                (ALL, "Here a tenth of them hides values, 70% ids and a fifth gradients."),
            )
        ],
        command,
    )  # fmt: skip


def _cells(row: dict[str, Any], setting: str) -> list[str]:
    figures, starred = row[setting], "" if row["dense"] != row["step"] else "*"
    return [
        row["case"], f"{row['dense']:.2f}{starred}", f"{row['step']:.2f}", _gap(row["step"], row["bound"]), f"{figures['kept']:.2f}",
        f"{figures['step']:.2f}", f"{1 - figures['step'] / figures['kept']:.1%}", f"{figures['bound']:.2f}" if figures["bound"] else "–",
        _gap(figures["step"], figures["bound"]), f"{row['kernels']:.2f}", str(figures["types"]),
    ]  # fmt: skip


def _gap(step: float, bound: float | None) -> str:
    return f"{step / bound - 1:.1%}" if bound else "–"


if __name__ == "__main__":
    main()
