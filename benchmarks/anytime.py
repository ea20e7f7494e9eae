"""Step time against search time: the plans that `certified`, NeuroShard's beam and a mixed-integer program find by each time limit.

    python -m benchmarks.anytime [--limits 0.3 1 3 10 60] [--sizes 20x4 50x4 100x8 200x8]

All strategies minimise the step under the learned CPU model. The limit applies to the search itself; a search that ends earlier is not run
again for longer limits. Gaps are relative to the best bound that `certified` proved for the task.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass

import shardwright as sw
from benchmarks.program import options_of
from benchmarks.results_table import command_of, write_results
from shardwright.cost.choice import resolve_cost_model
from shardwright.errors import InfeasibleTask
from shardwright.search.neuroshard import NeuroShard
from shardwright.search.registry import strategy_named
from shardwright.search.strategy import Strategy
from shardwright.task import Task
from shardwright.workload import random_task

SIZES = ("20x4", "50x4", "100x8", "200x8")
LIMITS = (0.3, 1.0, 3.0, 10.0, 60.0)
HEADS = (
    "strategy", "limit, s", "step above the bound, median", "worst", "gap that it proved itself, median", "seconds, median", "no plan",
)  # fmt: skip


@dataclass(frozen=True)
class Outcome:
    """The result of one search.

    Attributes:
        step_ms: step of its plan; infinite without a plan.
        bound_ms: its proven bound; 0 if it proved nothing.
        seconds: duration of the search.
    """

    step_ms: float
    bound_ms: float
    seconds: float


def main(arguments: Sequence[str] | None = None) -> None:
    options = options_of(
        __doc__, arguments, tasks=(3, "tasks a size"), sizes=(list(SIZES), "tables x devices", {"nargs": "*"}),
        limits=(list(LIMITS), "seconds", {"nargs": "*"}),
    )  # fmt: skip
    strategies = [strategy_named("certified"), NeuroShard(score="step"), strategy_named("mip")]
    warm_up(strategies)
    tables = []
    for size in options.sizes:
        count, devices = (int(part) for part in size.split("x"))
        tasks = [
            random_task(seed, tables=count, devices=devices, device="cpu", batch_size=1024 * devices)
            for seed in range(options.tasks)
        ]
        results = {each.name: [searched(task, each, options.limits) for task in tasks] for each in strategies}
        bounds = [max(outcome.bound_ms for outcome in of_task.values()) for of_task in results["certified"]]
        rows = [
            row_of(name, limit, [of_task[limit] for of_task in of_tasks], bounds)
            for name, of_tasks in results.items()
            for limit in options.limits
        ]
        tables.append((f"{count} tables on {devices} devices, {options.tasks} tasks.", HEADS, rows))
        print(tables[-1], flush=True)
    write_results("anytime", "Step time against search time", tables, command_of("anytime", arguments))


def warm_up(strategies: Sequence[Strategy]) -> None:
    """Load the libraries by planning a small task."""
    for strategy in strategies:
        sw.plan(random_task(1, tables=6, devices=2, device="cpu"), strategy=strategy, time_limit=0.3)


def searched(task: Task, strategy: Strategy, limits: Sequence[float]) -> dict[float, Outcome]:
    """Return what a strategy finds within each limit; `certified` uses all of it, unless it proves its plan earlier."""
    model, outcomes = resolve_cost_model(None, task), {}
    for limit in limits:
        began = time.perf_counter()
        try:
            plan = sw.plan(task, strategy=strategy, cost_model=model, time_limit=limit)
        except InfeasibleTask:
            outcomes[limit] = Outcome(math.inf, 0.0, time.perf_counter() - began)
            continue
        seconds = time.perf_counter() - began
        assert plan.cost is not None
        outcomes[limit] = Outcome(plan.cost.step_ms, plan.bound_ms or 0.0, seconds)
        if seconds < 0.9 * limit:  # the search ended by itself
            return dict.fromkeys(limits, outcomes[limit]) | outcomes
    return outcomes


def row_of(name: str, limit: float, outcomes: Sequence[Outcome], bounds: Sequence[float]) -> list[str]:
    gaps = [outcome.step_ms / bound - 1 for outcome, bound in zip(outcomes, bounds, strict=True)]
    placed = [gap for gap in gaps if math.isfinite(gap)]
    cells = [f"{statistics.median(placed):.2%}", f"{max(placed):.2%}"] if placed else ["–", "–"]
    own = [outcome.step_ms / outcome.bound_ms - 1 for outcome in outcomes if outcome.bound_ms]
    proven = f"{statistics.median(own):.2%}" if own else "–"
    seconds = statistics.median(outcome.seconds for outcome in outcomes)
    return [name, f"{limit:g}", *cells, proven, f"{seconds:.2f}", str(len(gaps) - len(placed))]


if __name__ == "__main__":
    main()
