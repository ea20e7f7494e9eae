"""`shardwright compare`: all strategies on one task."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import typer
from rich.console import RenderableType

from shardwright.cli.attempts import (
    agreement,
    attempt_dict,
    attempts_table,
    bound_line,
    failures,
    measure_each,
    plan_with_each,
    save_each,
)
from shardwright.cli.checks import make_folder, other_device, require_torch
from shardwright.cli.model_notes import print_hardware_note, print_model_notes
from shardwright.cli.options import AsJson, Device, ModelFile, Rounds, RunsOn, Seed, TaskFile, TimeLimit, option
from shardwright.cli.output import emit, note, progress
from shardwright.cost import resolve_cost_model
from shardwright.schema import Place
from shardwright.search import rival_names, strategy_names
from shardwright.task import Task

if TYPE_CHECKING:
    from shardwright.sharding.runtimes import Runtime


def run(
    *,
    task: TaskFile,
    output: Annotated[Path | None, option("--output", "-o", metavar="FOLDER", text="Save the plans here.")] = None,
    strategies: Annotated[str | None, option("--strategies", metavar="A,B", text="Only these; by default all.")] = None,
    measure: Annotated[bool, typer.Option("--measure", help="Measure the plans' kernels on this machine.")] = False,
    device: Device = "cpu",
    model: ModelFile = None,
    rounds: Rounds = 5,
    seed: Seed = 0,
    time_limit: TimeLimit = None,
    runs_on: RunsOn = "shardwright",
    as_json: AsJson = False,
) -> None:
    """Compare strategies on one task: predicted cost, gap, search time, and measured kernels.

    All gaps are to one bound, the highest that was proven; the line below the table says which plans it speaks of.
    A strategy that finds no plan is listed as failed; the command fails only if all do. TorchRec's planner takes part where it is
    installed, for at most a minute or the time limit.

    Example:
        shardwright compare task.yaml --strategies greedy,dim --measure
    """
    if measure:
        require_torch("measuring", "measure")
    placed = Task.load(task)
    with Place(str(model or task)).naming():
        cost_model = resolve_cost_model(model, placed)
    print_model_notes(cost_model, placed, task)
    names = tuple(dict.fromkeys(strategies.split(","))) if strategies is not None else all_names(placed)
    if output is not None:
        make_folder(output)
    with progress("planning") as report:
        attempts = plan_with_each(
            placed, names, cost_model, report, runs_on=cast("Runtime", runs_on), seed=seed, time_limit=time_limit
        )
    files = save_each(attempts, output) if output is not None else []
    unlike = None
    if measure:
        print_hardware_note(cost_model, device)
        with progress("measuring") as report:
            attempts = measure_each(attempts, rounds, report, device)
        unlike = other_device(placed.topology.device, device)
    document = {
        "task": str(task),
        "cost_model": cost_model.name,
        "note": unlike,
        "strategies": [attempt_dict(attempt) for attempt in attempts],
        "saved": [str(file) for file in files],
    }
    view = attempts_table(f"{task}, cost model {cost_model.name}", attempts)
    saved = [f"saved {file}" for file in files]
    views: list[RenderableType] = [
        view,
        *bound_line(attempts),
        *failures(attempts),
        *agreement(attempts, unlike, getattr(cost_model, "metadata", {})),
        *saved,
    ]
    emit(document, *views, as_json=as_json)
    if not any(attempt.plan for attempt in attempts):
        note(f"error: {task}: no strategy found a plan for this task; the reasons are listed")
        raise typer.Exit(1)


def all_names(task: Task) -> tuple[str, ...]:
    """All strategies, planners of others that are installed, and what is planned by default."""
    return (*strategy_names(), *rival_names(task), "auto")
