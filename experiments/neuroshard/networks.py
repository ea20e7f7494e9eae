"""NeuroShard's three networks: training on measured kernels and collectives, rows of their errors and of their plans."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from experiments.entrants import Entrant
from experiments.experiment import Row
from experiments.outcomes import planned
from shardwright.cost.choice import cost_model_for
from shardwright.cost.neuroshard import NeuroShardModel
from shardwright.cost.score import compute_ms, score
from shardwright.search.neuroshard import NeuroShard
from shardwright.sharding.plan import Plan
from shardwright.task.task import Task

if TYPE_CHECKING:
    import pyarrow as pa

    from shardwright.modelling.accuracy import Accuracy
    from shardwright.modelling.neuroshard_collectives import PassErrors

KERNELS = Path(__file__).parents[2] / "data" / "costs" / "amd-epyc-25-17" / "fbgemm.parquet"
COLLECTIVES, EPOCHS = 600, 200
OURS, THEIRS = "bundled model", "three networks"
"""The cost models that price the plans."""
NOT_OF_NETWORKS: Row = dict.fromkeys(
    ("network", "samples", "mean_error", "median_error", "repeat_error", "judged_networks_ms", "plan_of")
)
"""Columns that only the rows of the networks fill; None in all other rows."""


def network_rows(tasks: Sequence[Task], search: NeuroShard) -> list[Row]:
    """A row for each network's errors; then two rows for each task: the plan priced by our model, and the plan priced by the networks.

    Args:
        tasks: tasks on 4 devices, all with the same batch size.
        search: the strategy, with NeuroShard's score.
    """
    model, errors = trained(tasks[0].topology.devices, tasks[0].batch_size)
    rows = list(errors)
    for number, task in enumerate(tasks):
        for name, priced_by in ((OURS, cost_model_for("cpu")), (THEIRS, model)):
            row, plan = planned(task, Entrant(search), seed=number, model=priced_by)
            if plan is not None:
                row |= judged(plan, model)
            rows.append(_nothing() | {"strategy": name, "plan_of": number} | row)
    return rows


def judged(plan: Plan, networks: NeuroShardModel) -> Row:
    """The costs of a plan by our model, and its embedding cost by the networks."""
    columns = [sum(shard.dim for shard in held) for held in plan.by_device]
    times = compute_ms(plan.task, plan.shards, networks)
    ours = score(plan.task, plan.shards, cost_model_for("cpu"))
    assert networks.communication is not None
    theirs = networks.communication.embedding_costs(times[None], np.array([columns]), plan.task.batch_size).max()
    return {
        "embedding_cost_ms": ours.embedding_cost_ms,
        "step_ms": ours.step_ms,
        "compute_ms": max(device.compute_ms for device in ours.devices),
        "judged_networks_ms": float(theirs),
    }


def trained(devices: int, batch_size: int) -> tuple[NeuroShardModel, list[Row]]:
    """Measure collectives, train the three networks, and return them with a row of errors for each."""
    from shardwright.measure.collectives.collect import collect_collectives, new_collection, read_collectives
    from shardwright.measure.samples import read_parquet
    from shardwright.modelling.dataset import samples_of
    from shardwright.modelling.neuroshard_collectives import collectives_of
    from shardwright.modelling.neuroshard_training import NeuroShardOptions, train_communication, train_compute

    options = NeuroShardOptions(epochs=EPOCHS)
    kernels = samples_of(of_batch(read_parquet(KERNELS)[1], batch_size))
    model, compute = train_compute(kernels, options)
    with tempfile.TemporaryDirectory() as folder:
        wanted = new_collection(folder, samples=COLLECTIVES, world=devices, batch_sizes=[batch_size])
        collect_collectives(wanted)
        parts = collectives_of([read_collectives(folder)])
    communication = train_communication(parts, options)
    (passes,) = communication.errors.values()
    errors: list[tuple[str, int, Accuracy | PassErrors]] = [("compute", compute.sets, compute)]
    errors += [(name, off.devices, off) for name, off in passes.items()]
    rows: list[Row] = [
        _nothing()
        | {"strategy": "", "network": name, "samples": count, "mean_error": off.mean_error}
        | {"median_error": off.median_error, "repeat_error": off.repeat_error}
        for name, count, off in errors
    ]
    return replace(model, communication=communication.networks), rows


def of_batch(table: pa.Table, batch_size: int) -> pa.Table:
    """The sets of tables with this batch size; the paper's networks do not get the batch size as a feature."""
    return table.filter(np.asarray(table["batch_size"]) == batch_size)


def _nothing() -> Row:
    columns = (
        "tables", "oversize", "cut", "step_ms", "embedding_cost_ms", "compute_ms", "balance", "bound_ms", "search_s",
    )  # fmt: skip
    return {**dict.fromkeys((*columns, "failure", "why")), **NOT_OF_NETWORKS}
