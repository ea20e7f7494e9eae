"""`shardwright verify --steps`: train some steps on a plan by TorchRec or the runtime, and compare their times with the prediction."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from shardwright.cli.checks import check_same_task
from shardwright.cli.output import emit, ms, percent, signed, table
from shardwright.errors import InfeasibleTask
from shardwright.task.quantities import format_bytes

if TYPE_CHECKING:
    import rich.table

    from shardwright.cli.documents import measuring
    from shardwright.integrations.torchrec.steps.run import Steps
    from shardwright.measure.collectives.rank import PlaceInGroup
    from shardwright.sharding import Plan

TORCHREC = "torchrec"
_CAPTION = (
    "ms of the slowest rank, medians over the rounds · phases: each run to its end, ids and values in the forward communication · "
    "step: at full speed; predicted, it is the sum of the phases"
)


def run_steps(
    file: Path,
    plan: Plan,
    *,
    against: str | None,
    rounds: int,
    device: str,
    timeout_s: float,
    unlike: str | None,
    as_json: bool,
) -> float | None:
    """Measure whole steps of a plan and print them.

    Args:
        file: file of the plan.
        plan: the plan.
        against: "torchrec", or the file of another plan of the task, to measure in turns with the first.
        rounds: rounds that measure every plan once.
        device: "cpu" or "cuda".
        timeout_s: longest time of the rounds.
        unlike: why predictions cannot be compared with this machine's times; None if they can.
        as_json: whether to print one JSON document.

    Returns:
        Measured / predicted step of the plan − 1; None if they cannot be compared, and on ranks other than the first.

    Raises:
        InvalidInput: the other plan is for another task, or torchrun started another number of ranks.
        InvalidPlan: neither TorchRec nor `shardwright.runtime` runs a plan.
        MeasurementFailed: a rank ended or hung, or this machine lacks memory or GPUs.
        MissingDependency: TorchRec is missing.
    """
    from shardwright.integrations.torchrec.requirements import require_torchrec
    from shardwright.measure.collectives.group import place_of_this_process

    require_torchrec()
    logging.getLogger("torchrec").setLevel(logging.ERROR)  # TorchRec warns about topologies not from its factory
    from shardwright.integrations.torchrec.steps.rank import Rounds
    from shardwright.integrations.torchrec.steps.run import ranks
    from shardwright.sharding.runtimes import training_runtime

    if training_runtime(plan) == "shardwright" and plan.task.exchange.collectives != "shared":
        unlike = unlike or (
            "the prediction counts TorchRec's collectives; with exchange: {collectives: shared} in the task it counts the runtime's"
        )

    place, names, plans = place_of_this_process(), ["plan"], [plan]
    where, wanted = where_ranks_run(plan.task.topology.devices, place, device), Rounds(rounds=rounds)
    if against is not None and (place is None or place.rank == 0):
        names, plans = [*names, against], [*plans, _other(against, plan)]
    with ranks(plans, plan.task.topology.devices, place, device=device, timeout_s=timeout_s) as measure:
        measured = measure(plans, wanted)
    if place is not None and place.rank:
        return None
    named = list(zip(names, measured, strict=True))
    document: measuring.VerifySteps = {
        "plan": str(file),
        "ranks_on": where,
        "notes": [unlike] if unlike else [],
        "plans": _plans(named),
    }
    emit(document, _view(document["plans"]), *_sentences(named, where, unlike), as_json=as_json)
    return _off(measured[0], unlike)


def _other(against: str, plan: Plan) -> Plan:
    """The plan to compare with, priced by the cost model of the first."""
    import shardwright as sw
    from shardwright.cost.choice import model_behind
    from shardwright.cost.score import scored
    from shardwright.files import parse_document
    from shardwright.search.registry import strategy_named
    from shardwright.sharding import Plan
    from shardwright.sharding.runtimes import as_torchrec_exchanges
    from shardwright.sharding.torchrec_files import is_sharding_plan, plan_from_sharding_plan

    model, task = model_behind(plan), as_torchrec_exchanges(plan.task)
    if against == TORCHREC:
        if reason := strategy_named(TORCHREC).supports(task):
            raise InfeasibleTask(f"--against torchrec: {reason}")
        return sw.plan(task, strategy=TORCHREC, cost_model=model, runs_on="torchrec")
    document = parse_document(Path(against), "plan file")
    if is_sharding_plan(document):
        assert isinstance(document, dict)
        other = plan_from_sharding_plan(document, task, against)
    else:
        other = Plan.load(Path(against))
        runtimes = {
            name: getattr(other.task.exchange, name) for name in ("collectives", "deduplicate", "replica_gradients")
        }
        alike = replace(plan.task, exchange=replace(plan.task.exchange, **runtimes))
        check_same_task(other, against, alike, "the first plan's")
    other.check()
    return scored(other, model)


def where_ranks_run(world: int, place: PlaceInGroup | None, device: str) -> str:
    """The machines of the ranks in words."""
    if place is not None and place.hosts > 1:
        return f"{world} ranks on {place.hosts} hosts"
    cores = len(os.sched_getaffinity(0))
    if device == "cpu" and world > cores:
        return f"{world} ranks on this machine, which share its {cores} cores by turns"
    return f"{world} ranks on this machine, each on a {'core' if device == 'cpu' else 'GPU'} of its own"


def _off(steps: Steps, unlike: str | None) -> float | None:
    predicted = steps.predicted("step")
    return steps.step_ms / predicted - 1 if predicted and not unlike else None


def _plans(named: Sequence[tuple[str, Steps]]) -> list[measuring.PlanOfSteps]:
    from shardwright.integrations.torchrec.steps.run import PHASES, STEP
    from shardwright.sharding.runtimes import training_runtime

    return [
        {
            "name": name,
            "runs_on": training_runtime(steps.plan),
            "step_ms": steps.step_ms,
            "predicted_step_ms": steps.predicted("step"),
            "spread": steps.spread,
            "phases": {
                phase: {
                    "predicted_ms": steps.predicted(phase),
                    "measured_ms": steps.measured(phase),
                    "rounds_ms": steps.rounds(phase),
                }
                for phase in (*PHASES, STEP)
            },
            "ranks": [
                {
                    "rank": rank,
                    "weights_bytes": report.weights_bytes,
                    "account_weights_bytes": int(steps.plan.memory.weights[rank]),
                    "optimizer_bytes": report.optimizer_bytes,
                    "account_optimizer_bytes": int(steps.plan.memory.optimizer[rank]),
                }
                for rank, report in enumerate(steps.reports[-1])
            ],
        }
        for name, steps in named
    ]


def _view(plans: Sequence[measuring.PlanOfSteps]) -> rich.table.Table:
    columns = ["phase", *(f"{plan['name']} {what}" for plan in plans for what in ("predicted", "measured"))]
    rows = []
    for phase in plans[0]["phases"]:
        times = [plan["phases"][phase] for plan in plans]
        rows.append([phase, *(ms(value) for of in times for value in (of["predicted_ms"], of["measured_ms"]))])
    return table("a step, phase by phase", columns, rows, _CAPTION)


def _trained_by(named: Sequence[tuple[str, Steps]]) -> list[str]:
    """What trained the plans, unless TorchRec trained all of them."""
    from shardwright.sharding.runtimes import training_runtime

    ours = [name for name, steps in named if training_runtime(steps.plan) == "shardwright"]
    return [f"trained by shardwright.runtime: {', '.join(ours)}"] if ours else []


def _sentences(named: Sequence[tuple[str, Steps]], where: str, unlike: str | None) -> list[str]:
    (_, first), *others = named
    compared = unlike or signed(_off(first, unlike))
    held = max(report.weights_bytes + report.optimizer_bytes for report in first.reports[-1])
    memory = first.plan.memory
    account = int((memory.weights + memory.optimizer).max())
    said = [
        *_trained_by(named),
        f"step: predicted {ms(first.predicted('step'))} ms, measured {ms(first.step_ms)} ms ({compared}); {where}; rounds differ by "
        f"{percent(first.spread)}",
        f"weights and optimizer state of the fullest rank: {format_bytes(held)} allocated, {format_bytes(account)} in the account",
    ]
    for name, other in others:
        pairs = ((first.predicted("step"), other.predicted("step")), (first.step_ms, other.step_ms))
        predicted, measured = (signed(mine / theirs - 1) if mine and theirs else signed(None) for mine, theirs in pairs)
        noise = percent(max(first.spread, other.spread))
        said.append(f"step against {name}: predicted {predicted}, measured {measured}; rounds differ by up to {noise}")
    return said
