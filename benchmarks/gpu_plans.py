"""Measure plans of every strategy on one GPU of another machine, device by device, and compare with predictions.

    python -m benchmarks.gpu_plans prepare out/gpu_plans --policies out/policies                     # here
    python -m benchmarks.gpu_plans measure out/gpu_plans --device cuda --seconds 500                 # on the machine with the GPU
    python -m benchmarks.gpu_plans page out/gpu_plans --model model.safetensors                      # here

`measure` needs only torch, FBGEMM and numpy, and resumes where it stopped. It reads requests.json.gz and writes results.jsonl. `page` uses
the given model, else the one that made the plans. Tasks are NeuroShard's (T in [10, 60) on 4 devices), batch 65,536. flexshard and the
strategies it is compared to get as many tasks again, in which a third of the tables are sequence tables.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.plan_requests import load_requests, measure_requests, read_results, requests_of, save_requests
from benchmarks.program import Options, options_of
from shardwright.measure.measuring import Printer
from shardwright.measure.timing import TimingPolicy

if TYPE_CHECKING:
    from benchmarks.measured_tables import Measurement, Rows
    from benchmarks.plan_requests import Requests, Results
    from shardwright.cost.model import CostModel
    from shardwright.search import Strategy
    from shardwright.sharding import Plan
    from shardwright.task import Task

REQUESTS, RESULTS, PLANS = "requests.json.gz", "results.jsonl", "plans"
SEED = 17
LEAST = 20
"""Fewest plans wanted of each strategy."""

BESIDE = "certified, beside"
"""Name of the plans that `certified` finds with another cost model."""

SEQUENCES = "flexshard"
"""The strategy that plans only tasks with sequence tables."""

_RIVALS = ("random", "neuroshard", "certified")
_SEQUENCE_EVERY = 3  # a third of the tables
_SEQUENCE_MEMORY = "24 GB"  # a device; tables take at most 4 GB, and a sequence table outputs every looked-up row


def main(arguments: Sequence[str] | None = None) -> int:
    given = list(sys.argv[1:] if arguments is None else map(str, arguments))
    steps = {"prepare": (prepare, PREPARE), "measure": (measure, MEASURE), "page": (page, PAGE)}
    name = options_of(__doc__, given[:1], step=(str, "", {"positional": True, "choices": list(steps)})).step
    step, wanted = steps[name]
    options = options_of(step.__doc__, given[1:], folder=(Path, "", {"positional": True}), **wanted)
    options.given = " ".join(given)
    return int(step(options) or 0)


# Options of the steps besides the folder.
PREPARE: dict[str, Any] = {
    "tasks": (24, "number of tasks with pooled tables only, and again with sequence tables"),
    "least": (LEAST, "plans that each strategy must have"),
    "devices": 4,
    "batch_size": 65_536,
    "device": ("h200", "device type of the tasks"),
    "scale": (1.0, "factor on the rows of every table"),
    "strategies": (None, "default: all", {"nargs": "+"}),
    "time_limit": (20.0, "seconds a search"),
    "policies": (Path, "folder with dreamshard.safetensors, autoshard.safetensors (default: bundled)"),
    "model": (Path, "cost model to plan with (default: the bundled one of the device)"),
    "sequence_tasks": (int, "number of tasks with sequence tables (default: as --tasks)"),
    "beside": (Path, f"another cost model: '{BESIDE}' are certified's plans with it, for the pooled tables"),
}
MEASURE: dict[str, Any] = {
    "device": ("cuda", "", ("cpu", "cuda")),
    "backend": (None, "", ("fbgemm", "embedding_bag")),
    "rounds": 3,
    "seconds": 500.0,
    "runs": (int, "count exactly this many runs per measurement"),
}
PAGE: dict[str, Any] = {
    "model": (Path, "cost model to predict with (default: the one that made the plans)"),
    "name": ("gpu_plans", "name of the page and the Parquet file"),
}


def prepare(options: Options) -> int:
    """Plan, and write plans and requests; returns 1 if a strategy has fewer plans than wanted."""
    import shardwright as sw
    from shardwright.cost.choice import cost_model_for, given_cost_model
    from shardwright.cost.score import scored
    from shardwright.errors import ShardwrightError

    strategies = tuple(options.strategies or sw.strategy_names())
    entrants = {name: entrant(name, options.policies) for name in strategies}
    model: CostModel = given_cost_model(options.model) if options.model else cost_model_for(options.device)
    folder = options.folder / PLANS
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob("*.json"):
        old.unlink()
    for number, (task, names) in enumerate(matches(options, strategies)):
        for name in names:
            try:
                plan = sw.plan(task, strategy=entrants[name], cost_model=model, time_limit=options.time_limit)
            except ShardwrightError as error:
                print(f"task {number}: {name} has no plan: {error}", file=sys.stderr)
                continue
            plan.save(folder / f"{number:03d}-{name}.json")
        if options.beside and SEQUENCES not in names:
            other = sw.plan(task, cost_model=given_cost_model(options.beside), time_limit=options.time_limit)
            replace(scored(other, model), strategy=BESIDE).save(folder / f"{number:03d}-beside.json")
        print(f"task {number} planned", file=sys.stderr, flush=True)
    plans = [sw.Plan.load(path) for path in sorted(folder.glob("*.json"))]  # in the order of `page`
    requests = requests_of(plans)
    save_requests(requests, options.folder / REQUESTS)
    (options.folder / RESULTS).unlink(missing_ok=True)
    size = (options.folder / REQUESTS).stat().st_size / 1e6
    print(
        f"{len(plans)} plans, {len(requests.works)} different devices to measure, {size:.1f} MB in {options.folder / REQUESTS}"
    )
    return count_plans(plans, strategies, options.least)


def matches(options: Options, strategies: Sequence[str]) -> Iterator[tuple[Task, list[str]]]:
    """Yield each task with the strategies that should plan it."""
    from shardwright.workload import paper_tasks

    settings = {"devices": options.devices, "seed": SEED, "batch_size": options.batch_size, "scale": options.scale}
    tasks = list(paper_tasks(options.tasks, device=options.device, **settings))
    for task in tasks:
        yield task, [name for name in strategies if name != SEQUENCES]
    if SEQUENCES in strategies:
        for task in tasks[: options.sequence_tasks]:
            yield with_sequences(task), [name for name in strategies if name in (SEQUENCES, *_RIVALS)]


def with_sequences(task: Task) -> Task:
    """Return the task with every third table a sequence table, and memory for the outputs of such tables."""
    tables = [replace(table, pooled=place % _SEQUENCE_EVERY > 0) for place, table in enumerate(task.tables)]
    return replace(task, tables=tables, topology=replace(task.topology, memory=_SEQUENCE_MEMORY))


def count_plans(plans: Sequence[Plan], strategies: Sequence[str], least: int) -> int:
    """Print how many plans each strategy has; returns 1 if one has fewer than wanted."""
    counts = Counter(plan.strategy for plan in plans)
    for name in strategies:
        print(f"{name:12} {counts[name]:4} plans")
    few = [f"{name} ({counts[name]})" for name in strategies if counts[name] < least]
    if few:
        print(
            f"error: {', '.join(few)}: fewer plans than {least}, which each strategy must have; raise --tasks, or lower --least to "
            "compare fewer",
            file=sys.stderr,
        )
    return 1 if few else 0


def entrant(name: str, policies: Path | None) -> Strategy:
    """Return a strategy, with its policy from a folder if the folder has one; dreamshard+ uses dreamshard's."""
    from shardwright.search import strategy_named
    from shardwright.search.registry import with_policy

    strategy = strategy_named(name)
    policy = policies / f"{name.removesuffix('+')}.safetensors" if policies else None
    return with_policy(strategy, policy) if policy is not None and policy.exists() else strategy


def measure(options: Options) -> int:
    """Measure, and print the missing measurements; returns 0 even if the time was too short."""
    runs = options.runs
    policy = runs and TimingPolicy(TimingPolicy.of(options.device).statistic, warm_up=1, passes=runs, runs=runs)
    limits = {name: getattr(options, name) for name in ("device", "backend", "rounds", "seconds")}
    requests, file = load_requests(options.folder / REQUESTS), options.folder / RESULTS
    missing = measure_requests(requests, file, **limits, policy=policy, progress=Printer())
    results = read_results(options.folder / RESULTS)
    print(f"\n{len(results.times)} devices measured, {len(results.errors)} failed, {missing} measurements missing")
    for work, error in sorted(results.errors.items()):
        print(f"device {work}: {error}")
    return 0


def page(options: Options) -> None:
    """Write `results/<name>.parquet` with one row per device, and the page."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    from benchmarks import results_table
    from benchmarks.measured_tables import order_of

    results = read_results(options.folder / RESULTS)
    plans = measurements(options.folder, load_requests(options.folder / REQUESTS), results, options.model)
    target = results_table.RESULTS / f"{options.name}.parquet"
    results_table.RESULTS.mkdir(exist_ok=True)
    pq.write_table(pa.Table.from_pylist(device_rows(plans)), target, compression="zstd")
    model, processor = plans[0].result.plan.cost_model, results.hardware["processor"]
    compared = (
        f"Here and below: {len(plans)} plans of {len({measured.number for measured in plans})} tasks on {plans[0].devices} devices, batch "
        f"{plans[0].result.plan.task.batch_size:,}, cost model {model}; slowest forward plus slowest backward kernel, ms, means over the "
        f"tasks that a strategy placed. Each device's shards ran alone on one GPU ({processor}), one device after another, in "
        f"{results.rounds} interleaved rounds; links are not measured. Within a task, predicted and measured order of the strategies "
        f"correlate by {order_of(plans):.3f} (mean). {len(results.errors)} devices could not be measured; their plans are left out."
    )
    tables = [*kind_tables(plans, compared), device_table(plans)]
    results_table.write_results(
        options.name,
        f"Strategies on kernels of {processor}",
        tables,
        f"python -m benchmarks.gpu_plans {options.given}",
        f"{processor}, torch {results.hardware['torch']}, FBGEMM {results.hardware['fbgemm']}",
    )


def kind_tables(plans: Sequence[Measurement], compared: str) -> Iterator[tuple[str, tuple[str, ...], Rows]]:
    """Yield what strategies reach and gain, for each kind of task apart: a mean over both would mix strategies that planned only one."""
    from benchmarks.measured_tables import RIVALS, gain_table, main_table

    gains = (
        "Measured time divided by another strategy's on the same task: under 1 is faster. Faster: share of the tasks. "
        f"'{BESIDE}': plans that certified found with another model, priced by the same model as all others."
    )
    for sequences, kind in ((False, "Tasks of pooled tables."), (True, "Tasks of which a third are sequence tables.")):
        chosen = [plan for plan in plans if has_sequences(plan) is sequences]
        if chosen:
            yield f"{kind} {compared}", *main_table(chosen)
            yield f"{kind} {gains}", *gain_table(chosen, (*RIVALS, BESIDE))
            compared = "As above."


def has_sequences(measured: Measurement) -> bool:
    return any(not table.pooled for table in measured.result.plan.task.tables)


def measurements(folder: Path, requests: Requests, results: Results, model: Path | None) -> list[Measurement]:
    """Return the plans whose devices were all measured, with their times."""
    import numpy as np

    from benchmarks.measured_tables import Measurement
    from shardwright.cost import load_model
    from shardwright.cost.score import scored
    from shardwright.measure.measuring import MeasuredPlan
    from shardwright.sharding import Plan

    loaded = load_model(model) if model else None
    measured_plans = []
    for path, positions in zip(sorted((folder / PLANS).glob("*.json")), requests.plans, strict=True):
        if not {place for place in positions if place is not None} <= results.times.keys():
            continue
        plan = Plan.load(path)
        times = np.array([np.zeros(2) if place is None else results.times[place] for place in positions])
        measured = MeasuredPlan(scored(plan, loaded) if loaded else plan, times[:, 0], times[:, 1], results.rounds)
        measured_plans.append(Measurement(plan.task.topology.devices, int(path.stem.split("-")[0]), measured))
    if not measured_plans:
        sys.exit("no plan has all its devices measured; run 'measure' again with more --seconds")
    return measured_plans


def device_rows(plans: Sequence[Measurement]) -> list[dict[str, object]]:
    """Return a row for each device of each plan."""
    rows: list[dict[str, object]] = []
    for measured in plans:
        plan = measured.result.plan
        assert plan.cost is not None
        for device, shards in zip(plan.cost.devices, plan.by_device, strict=True):
            rows.append(
                {
                    "task": measured.number, "strategy": measured.strategy, "cost_model": plan.cost_model, "rank": device.rank,
                    "shards": len(shards),
                    "predicted_forward_ms": device.forward_ms, "predicted_backward_ms": device.backward_ms,
                    "measured_forward_ms": float(measured.result.forward_ms[device.rank]),
                    "measured_backward_ms": float(measured.result.backward_ms[device.rank]),
                }
            )  # fmt: skip
    return rows


def device_table(plans: Sequence[Measurement]) -> tuple[str, tuple[str, ...], list[tuple[str, ...]]]:
    """Return the errors of single devices, for forward and backward."""
    import numpy as np

    caption = "Single devices that hold shards: predicted / measured − 1."
    rows: list[tuple[str, ...]] = []
    held = [row for row in device_rows(plans) if row["shards"]]
    for phase in ("forward", "backward"):
        predicted, measured = (
            np.array([row[f"{kind}_{phase}_ms"] for row in held]) for kind in ("predicted", "measured")
        )
        error = predicted / measured - 1
        low, middle, high = np.percentile(error, (10, 50, 90))
        rows.append(
            (
                phase, str(len(held)), f"{np.abs(error).mean():.1%}", f"{middle:+.1%}", f"{low:+.1%} to {high:+.1%}",
                f"{measured.min():.3f} to {measured.max():.3f}",
            )
        )  # fmt: skip
    heads = ("phase", "devices", "mean absolute error", "median", "10th to 90th percentile", "measured, ms")
    return caption, heads, rows


if __name__ == "__main__":
    sys.exit(main())
