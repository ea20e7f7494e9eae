"""`shardwright compare`: plan one task with all strategies, measure the plans if asked, and show them together."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import numpy as np
import typer
from rich.table import Table

from shardwright.cli.checks import make_folder, other_device
from shardwright.cli.clusters import task_on_cluster
from shardwright.cli.model_notes import print_hardware_note, print_model_notes
from shardwright.cli.options import (
    AsJson,
    Device,
    ModelFile,
    OnRuntime,
    Rounds,
    Seed,
    TaskFile,
    TimeLimit,
    cost_model_for,
    option,
)
from shardwright.cli.output import Report, emit, ms, note, percent, progress, saved, seconds, signed, table
from shardwright.cost import CostModel
from shardwright.errors import InfeasibleTask, InvalidPlan, MissingDependency, require
from shardwright.hardware import check_device
from shardwright.questions.review import elsewhere_line, plan_elsewhere
from shardwright.search import plan, rival_names, strategy_named, strategy_names
from shardwright.sharding import BOUND_SCOPES, Plan
from shardwright.sharding.runtimes import other_runtime, preferred_runtimes, task_for
from shardwright.task import Task

if TYPE_CHECKING:
    from shardwright.cli.documents import planning
    from shardwright.measure.measuring import MeasuredPlan
    from shardwright.search import Strategy
    from shardwright.sharding.runtimes import RunsOn, Runtime

_COLUMNS = ("strategy", "predicted ms", "measured ms", "step ms", "embedding cost", "gap", "search s")
CAPTION = (
    "predicted, measured: the slowest forward plus the slowest backward kernel over the devices · step: with the links, predicted · "
    "gap: (step − bound) / bound, – without a bound of kernels and links"
)


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
    runs_on: OnRuntime = "auto",
    as_json: AsJson = False,
) -> None:
    """Compare strategies on one task: predicted cost, gap, search time, and measured kernels.

    All gaps are to one bound, the highest that was proven; the line below the table names the plans that it covers.
    A strategy that finds no plan is listed as failed, one that lacks a policy or a package as not available; the command fails only if
    no strategy finds a plan. TorchRec's planner takes part if it is installed, for at most a minute or the time limit.

    Example:
        shardwright compare task.yaml --strategies greedy,dim --measure
    """
    if measure:
        require("measure", "measuring")
        check_device(device)
    placed = task_on_cluster(task)
    cost_model = cost_model_for(model, placed, task)
    print_model_notes(cost_model, placed, task)
    names = tuple(dict.fromkeys(strategies.split(","))) if strategies is not None else all_names(placed)
    if output is not None:
        make_folder(output, [f"{strategy_named(name).name}.json" for name in names], [task, model])
    with progress("planning") as report:
        attempts = plan_with_each(
            placed, names, cost_model, report, runs_on=cast("RunsOn", runs_on), seed=seed, time_limit=time_limit
        )
        planned = [attempt.plan for attempt in attempts if attempt.plan is not None and attempt.plan.cost is not None]
        best = min(planned, key=lambda candidate: candidate.cost.step_ms if candidate.cost else math.inf, default=None)
        elsewhere = plan_elsewhere(best, cost_model=cost_model, seed=seed, time_limit=time_limit) if best else None
    files = save_each(attempts, output) if output is not None else []
    unlike = None
    if measure:
        print_hardware_note(cost_model, device)
        with progress("measuring") as report:
            attempts = measure_each(attempts, rounds, report, device)
        unlike = other_device(placed.topology.device, device)
    document: planning.Compare = {
        "task": str(task),
        "cost_model": cost_model.name,
        "notes": [unlike] if unlike else [],
        "strategies": [attempt_document(attempt) for attempt in attempts],
        "elsewhere": elsewhere_document(elsewhere, best),
    }
    emit(
        document,
        attempts_table(f"{task}, cost model {cost_model.name}", attempts),
        _bound_line(attempts),
        elsewhere_line(best, elsewhere) if best else None,
        *failures(attempts),
        agreement(attempts, cost_model.metadata, unlike),
        *(saved(file) for file in files),
        as_json=as_json,
    )
    if not any(attempt.plan for attempt in attempts):
        note(f"error: {task}: no strategy found a plan for this task; the reasons are listed")
        raise typer.Exit(1)


def all_names(task: Task) -> tuple[str, ...]:
    """Names of all strategies that can plan such a task, of the installed planners of other projects, and "auto"."""
    return (*strategy_names(task), *rival_names(task), "auto")


@dataclass(frozen=True)
class Attempt:
    """The result of one strategy for a task.

    Attributes:
        strategy: name of the strategy.
        plan: the strategy's plan; None if it found none.
        reason: why the strategy found no plan.
        measured: measured times of the plan, if it was measured.
        available: whether the strategy can plan such tasks here: with its policy, and with the packages that it needs.
    """

    strategy: str
    plan: Plan | None
    reason: str = ""
    measured: MeasuredPlan | None = None
    available: bool = True


def plan_with_each(
    task: Task,
    strategies: Sequence[str],
    cost_model: CostModel,
    report: Report,
    *,
    runs_on: RunsOn = "auto",
    seed: int = 0,
    time_limit: float | None = None,
) -> list[Attempt]:
    """Plan a task with each strategy, for one runtime; return one attempt per strategy, in their order.

    Raises:
        InvalidInput: a strategy is unknown, or an option breaks a rule.
    """
    chosen, attempts = [strategy_named(name) for name in strategies], list[Attempt]()
    for runtime in preferred_runtimes(task, runs_on):
        attempts.clear()
        for done, strategy in enumerate(chosen):
            report(done, len(chosen), strategy.name)
            attempts.append(_attempt(task, strategy, runtime, cost_model=cost_model, seed=seed, time_limit=time_limit))
        if any(attempt.plan is not None for attempt in attempts):
            break
    return _with_common_bound(attempts)


def _attempt(task: Task, strategy: Strategy, runtime: Runtime | None, **options: Any) -> Attempt:
    try:
        return Attempt(strategy.name, plan(task, strategy=strategy, runs_on=runtime, **options))
    except MissingDependency as error:
        return Attempt(strategy.name, None, str(error), available=False)
    except (InfeasibleTask, InvalidPlan) as error:
        why_not = strategy.supports(task_for(task, runtime))
        return Attempt(strategy.name, None, why_not or str(error), available=why_not is None)


def _with_common_bound(attempts: Sequence[Attempt]) -> list[Attempt]:
    """Give all attempts the highest proven bound, which holds for all plans that the task and its runtime allow.

    A plan below that bound uses blocks that the bound does not cover, so it gets none.
    """
    proven = [attempt.plan for attempt in attempts if attempt.plan is not None and attempt.plan.bound_ms is not None]
    if not proven:
        return list(attempts)
    highest = max(proven, key=lambda plan: plan.bound_ms or 0.0)
    return [replace(attempt, plan=_bounded_by(highest, attempt.plan) if attempt.plan else None) for attempt in attempts]


def _bounded_by(proven: Plan, plan: Plan) -> Plan:
    holds = plan.cost is not None and (proven.bound_ms or 0.0) <= plan.cost.step_ms * (1 + 1e-9)
    return replace(plan, bound_ms=proven.bound_ms if holds else None, bound_scope=proven.bound_scope)


def _bound_line(attempts: Sequence[Attempt]) -> str | None:
    """A line with the bound that gaps refer to and the plans that it covers; None without a proven bound."""
    plans = [attempt.plan for attempt in attempts if attempt.plan is not None]
    proven = next((plan for plan in plans if plan.bound_ms is not None), None)
    return f"bound: {ms(proven.bound_ms)} ms, {BOUND_SCOPES[proven.bound_scope]}" if proven else None


def measure_each(
    attempts: Sequence[Attempt], rounds: int, report: Report, device: str = "cpu", seconds: float = math.inf
) -> list[Attempt]:
    """Measure the plans of the attempts in interleaved rounds; no round begins after `seconds`.

    Raises:
        MeasurementFailed: the plans cannot be measured on this machine.
    """
    from shardwright.measure.measuring import measure_plans

    plans = [attempt.plan for attempt in attempts if attempt.plan is not None]
    if not plans:
        return list(attempts)
    measured = iter(measure_plans(plans, rounds=rounds, device=device, seconds=seconds, progress=report))
    return [replace(attempt, measured=next(measured)) if attempt.plan else attempt for attempt in attempts]


def save_each(attempts: Sequence[Attempt], folder: Path) -> list[Path]:
    """Save the plans as STRATEGY.json in an existing folder; return the files."""
    files = []
    for attempt in attempts:
        if attempt.plan is not None:
            files.append(folder / f"{attempt.strategy}.json")
            attempt.plan.save(files[-1])
    return files


def attempts_table(title: str, attempts: Sequence[Attempt], caption: str = CAPTION) -> Table:
    """A table with a row per strategy."""
    return table(title, _COLUMNS, [_row(attempt_document(attempt)) for attempt in attempts], caption)


def failures(attempts: Sequence[Attempt]) -> list[str]:
    """A line for each reason why strategies are not available, and one for each strategy that found no plan."""
    lacking: dict[str, list[str]] = {}
    for attempt in attempts:
        if not attempt.available:
            reason = attempt.reason.replace(f"learn {attempt.strategy.rstrip('+')}'", "learn NAME'")
            lacking.setdefault(reason, []).append(attempt.strategy)
    lines = [f"not available: {', '.join(names)}: {reason}" for reason, names in lacking.items()]
    failed = [attempt for attempt in attempts if attempt.available and attempt.plan is None]
    return [*lines, *(f"{attempt.strategy} failed: {attempt.reason}" for attempt in failed)]


def agreement(attempts: Sequence[Attempt], metadata: Mapping[str, str], unlike: str | None = None) -> str | None:
    """A line that compares measured with predicted times, or the reason why it cannot; None without measurements.

    Args:
        attempts: the planned and measured attempts.
        metadata: metadata of the cost model that predicted the times.
        unlike: why measured and predicted times cannot be compared; None if they can.
    """
    measured = [attempt.measured for attempt in attempts if attempt.measured and attempt.measured.plan.cost]
    return (unlike or truth_line("plans", measured, metadata)) if measured else None


def truth_line(what: str, measured: Sequence[MeasuredPlan], metadata: Mapping[str, str]) -> str:
    """A line that compares measured with predicted times and, by the controls, separates the machine's state from model error.

    It also states the error to expect: a step waits for the device whose time the model underrates most.

    Args:
        what: name of the measured things, such as "plans".
        measured: plans measured together; at least one has a predicted cost.
        metadata: metadata of the cost model.
    """
    pairs = [(of_plan.compute_ms, of_plan.plan.cost) for of_plan in measured if of_plan.plan.cost]
    off, state = (
        float(np.median([took / cost.compute_ms for took, cost in pairs])),
        measured[0].controls.slower_than(metadata),
    )
    text = f"{what} {signed(off - 1)} against prediction{' (median)' if len(pairs) > 1 else ''}"
    if state is None:
        return f"{text}; the controls' time when the model was learned is unknown here"
    machine = f"machine {'slower' if state >= 1 else 'faster'}"
    text += f", controls {signed(state - 1)} ({machine}): model error {signed(off / state - 1)}"
    if "mean_error" not in metadata:
        return text
    error = float(metadata["mean_error"])
    usual = float(np.median([cost.expected_compute_ms(error) / cost.compute_ms for _, cost in pairs])) - 1
    return f"{text} (with an error of {percent(error)} a device, {signed(usual)} is expected of the slowest)"


def attempt_document(attempt: Attempt) -> planning.Attempt:
    """An attempt as a part of JSON documents."""
    made = attempt.plan
    cost = made.cost if made else None
    return {
        "strategy": attempt.strategy,
        "available": attempt.available,
        "failed": attempt.reason or None,
        "predicted_compute_ms": cost.compute_ms if cost else None,
        "measured_compute_ms": attempt.measured.compute_ms if attempt.measured else None,
        "step_ms": cost.step_ms if cost else None,
        "embedding_cost_ms": cost.embedding_cost_ms if cost else None,
        "bound_ms": made.bound_ms if made else None,
        "bound_scope": made.bound_scope if made and made.bound_ms is not None else None,
        "gap": made.gap if made else None,
        "runs_on": list(made.runs_on) if made else None,
        "search_s": made.search_s if made else None,
    }


def elsewhere_document(elsewhere: Plan | None, best: Plan | None) -> planning.Elsewhere | None:
    """The plan for the other runtime than that of `best` as a part of JSON documents; None if there is none."""
    if elsewhere is None or best is None or elsewhere.cost is None:
        return None
    bound_ms, scope = elsewhere.bound_ms, elsewhere.bound_scope
    return {
        "runs_on": other_runtime(best),
        "step_ms": elsewhere.cost.step_ms,
        "bound_ms": bound_ms,
        "bound_scope": scope if bound_ms is not None else None,
    }


def _row(attempt: planning.Attempt) -> list[str]:
    failed = "failed" if attempt["available"] else "not available"
    return [
        attempt["strategy"],
        failed if attempt["step_ms"] is None else ms(attempt["predicted_compute_ms"]),
        ms(attempt["measured_compute_ms"]),
        ms(attempt["step_ms"]),
        ms(attempt["embedding_cost_ms"]),
        percent(attempt["gap"]),
        seconds(attempt["search_s"]),
    ]
