"""`shardwright plan`: task file in, plan file out."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from shardwright.cli.options import AsJson, ModelFile, Seed, TaskFile, TimeLimit, option
from shardwright.cli.output import emit, saved
from shardwright.cli.progress import progress
from shardwright.cli.targets import check_target


def run(
    *,
    task: TaskFile,
    output: Annotated[
        Path | None, option("--output", "-o", metavar="FILE", text="Save the plan here, as JSON.")
    ] = None,
    strategy: Annotated[
        str, typer.Option("--strategy", metavar="NAME", help="Strategy; 'auto' is the best there is.")
    ] = "auto",
    model: ModelFile = None,
    seed: Seed = 0,
    time_limit: TimeLimit = None,
    as_json: AsJson = False,
) -> None:
    """Find, check and score a plan.

    With --json the document is the plan file itself.

    Example:
        shardwright plan task.yaml -o plan.json
    """
    import shardwright as sw
    from shardwright.cli.model_notes import print_model_notes
    from shardwright.cli.summary import device_table, headline
    from shardwright.cost import resolve_cost_model
    from shardwright.sharding.files import plan_to_dict

    check_target(output)
    placed = sw.Task.load(task)
    cost_model = resolve_cost_model(model, placed.topology.device)
    print_model_notes(cost_model, placed)
    with progress("searching"):
        found = sw.plan(placed, strategy=strategy, cost_model=cost_model, seed=seed, time_limit=time_limit)
    if output is not None:
        found.save(output)
    emit(plan_to_dict(found), device_table(found), headline(found), saved(output), as_json=as_json)
