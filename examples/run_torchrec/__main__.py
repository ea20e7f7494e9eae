"""Train on a plan with TorchRec, and show time, phases and memory beside the prediction."""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from shardwright.cli.checks import other_device
from shardwright.cli.errors import exit_code_of
from shardwright.cli.output import MISSING, emit, ms, percent, table
from shardwright.integrations.torchrec.requirements import require_torchrec
from shardwright.sharding import DeviceCost, Plan
from shardwright.task.units import format_bytes

if TYPE_CHECKING:
    import rich.table

    from .run import PlanRun

_TIMES = ("rank", "step", "ids in", "lookup", "predicted", "values out", "backward", "predicted", "gradients")
_BYTES = ("rank", "weights", "account", "optimizer", "account", "both, relative")
_CAPTION = (
    "ms; step: at full speed, median · the others: phase by phase under the profiler, medians; ids in, values out and gradients hold "
    "the wait for other ranks · backward: with the optimizer · predicted: kernels alone"
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m examples.run_torchrec", description=__doc__)
    parser.add_argument("plan", type=Path, help="plan file")
    parser.add_argument("--sharding-plan", type=Path, help="a saved TorchRec plan to run on the plan's task")
    parser.add_argument("--device", default="cpu", help="cpu (gloo) or cuda (NCCL, a GPU a rank)")
    parser.add_argument("--steps", type=int, default=10, help="steps that are timed (default: %(default)s)")
    parser.add_argument(
        "--timeout", type=float, default=300.0, help="seconds, longest time of the run (default: %(default)s)"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    options = parser.parse_args(arguments)
    return exit_code_of(lambda: _run(options), as_json=options.json)


def _run(options: argparse.Namespace) -> None:
    require_torchrec()
    logging.getLogger("torchrec").setLevel(logging.ERROR)  # TorchRec warns about topologies not from its factory
    from .run import RunOptions, run_plan

    plan, sharding_plan = Plan.load(options.plan), options.sharding_plan
    if sharding_plan is not None:
        plan = _saved(plan, sharding_plan)
    run = run_plan(
        plan, RunOptions(device=options.device, steps=options.steps, timeout_s=options.timeout), sharding_plan
    )
    predicted = plan.cost.step_ms if plan.cost else None
    unlike = other_device(plan.task.topology.device, options.device)
    summary = (
        f"step: predicted {ms(predicted)} ms, run by TorchRec {ms(run.step_ms)} ms (median over {options.steps} steps of the slowest of "
        f"{len(run.ranks)} ranks, all on this machine{f'; {unlike}' if unlike else ''})"
    )
    document = {**_document(options.plan, sharding_plan, run), "note": unlike}
    emit(document, _times(run), _memory(run), summary, as_json=options.json)


def _saved(plan: Plan, file: Path) -> Plan:
    """Return the plan with the shards of a saved TorchRec plan, priced by the plan's cost model."""
    from shardwright.cost.choice import model_behind
    from shardwright.cost.score import scored
    from shardwright.integrations.torchrec.conversion import plan_of
    from shardwright.integrations.torchrec.plan_files import load_sharding_plan

    from .sharded import running_problem

    found = plan_of(load_sharding_plan(file), running_problem(plan.task, "cpu"))
    loaded = replace(plan, shards=found.shards, strategy=file.name, cost=None, bound_ms=None, search_s=None)
    loaded.check()
    return scored(loaded, model_behind(plan))


def _document(file: Path, sharding_plan: Path | None, run: PlanRun) -> dict[str, Any]:
    account, costs = run.plan.memory, _costs(run.plan)
    ranks = [
        {
            "rank": report.rank,
            "step_ms": report.step_ms,
            "phases": report.phases,
            "predicted_forward_ms": cost.forward_ms if cost else None,
            "predicted_backward_ms": cost.backward_ms if cost else None,
            "predicted_forward_communication_ms": cost.forward_communication_ms if cost else None,
            "predicted_backward_communication_ms": cost.backward_communication_ms if cost else None,
            "weights_bytes": report.weights_bytes,
            "account_weights_bytes": int(account.weights[report.rank]),
            "optimizer_bytes": report.optimizer_bytes,
            "account_optimizer_bytes": int(account.optimizer[report.rank]),
        }
        for report, cost in zip(run.ranks, costs, strict=True)
    ]
    return {
        "plan": str(file),
        "sharding_plan": str(sharding_plan) if sharding_plan else None,
        "step_ms": run.step_ms,
        "predicted_step_ms": run.plan.cost.step_ms if run.plan.cost else None,
        "ranks": ranks,
    }


def _times(run: PlanRun) -> rich.table.Table:
    rows = []
    for report, cost in zip(run.ranks, _costs(run.plan), strict=True):
        phases = report.phases
        rows.append(
            [
                str(report.rank),
                ms(median(report.step_ms)),
                ms(phases["input_dist_ms"]),
                ms(phases["lookup_ms"]),
                ms(cost.forward_ms if cost else None),
                ms(phases["output_dist_ms"]),
                ms(phases["backward_ms"]),
                ms(cost.backward_ms if cost else None),
                ms(phases["gradient_dist_ms"]),
            ]
        )
    return table("a step run by TorchRec, rank by rank", _TIMES, rows, _CAPTION)


def _memory(run: PlanRun) -> rich.table.Table:
    rows, account = [], run.plan.memory
    for report in run.ranks:
        weights, optimizer = int(account.weights[report.rank]), int(account.optimizer[report.rank])
        off = (report.weights_bytes + report.optimizer_bytes) / (weights + optimizer) - 1 if weights else None
        rows.append(
            [
                str(report.rank),
                format_bytes(report.weights_bytes),
                format_bytes(weights),
                format_bytes(report.optimizer_bytes),
                format_bytes(optimizer),
                MISSING if off is None else percent(off),
            ]
        )
    return table("bytes allocated, and the memory account", _BYTES, rows)


def _costs(plan: Plan) -> list[DeviceCost | None]:
    return list(plan.cost.devices) if plan.cost else [None] * plan.task.topology.devices


if __name__ == "__main__":
    sys.exit(main())
