"""Quality of the bundled policies, by device and cost model: writes results/learned_quality.md.

    python -m benchmarks.learned_quality --processor MODEL --other MODEL [--tasks 12]

Tasks consist of tables that no policy learned from; every table stays whole. The cost model that plans a task also predicts its costs.
*Closed* is the share of the gap between the best of four sorted heuristics and `certified` that a strategy closes: the sum over tasks of
log(heuristic / strategy) over that of log(heuristic / certified), of steps.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import geometric_mean

import numpy as np
from experiments.entrants import SORTED, digest
from experiments.learned.tasks import whole

from benchmarks.program import options_of
from benchmarks.results_table import command_of, write_results
from shardwright.cost.files import bundled_models, load_model
from shardwright.cost.model import CostModel
from shardwright.cost.published import PublishedModel
from shardwright.errors import InfeasibleTask
from shardwright.learned.arrays import PlacementArrays
from shardwright.learned.policy_files import bundled_policy, load_policy
from shardwright.learned.priced.placing import copies_for, placements
from shardwright.learned.priced.policy import FIRST_GAIN, SHAPES, PricedPolicy
from shardwright.learned.priced.task import PricedTask
from shardwright.search.solve import plan
from shardwright.task import Task, Topology
from shardwright.workload import random_task, split_pool

NAME = "learned_quality"
RULE = "first rule"
"""The policy before training: its first term alone."""
ASKED = ("greedy", "neuroshard", RULE, "autoshard", "dreamshard", "certified")
DIMS = ((16,), (32,), (64,), (16, 32, 64), (4, 8, 16, 32, 64, 128), (32, 64, 128, 256))
SIZES = ((10, 2), (30, 4), (60, 8), (100, 8), (120, 16), (200, 16), (200, 32))
LARGE = ((1000, 128),)


@dataclass(frozen=True)
class World:
    """A device and the cost model that prices it.

    Attributes:
        name: its name on the page.
        device: device type, whose usual links the tasks have.
        model: the cost model.
        learned: whether the policies learned from it.
    """

    name: str
    device: str
    model: CostModel
    learned: bool


@dataclass(frozen=True)
class Placed:
    """The result of a strategy on a task: predicted ms of the step, and seconds of the call."""

    step_ms: float
    seconds: float


def main(arguments: Sequence[str] | None = None) -> None:
    options = options_of(
        __doc__, arguments, processor=(Path, "cost model of the processor that the policies learned from"),
        other=(Path, "cost model of a processor that they did not learn from"), tasks=(12, "tasks in each world"),
        large=(2, "tasks of each large size"), time_limit=(5.0, "seconds of certified and neuroshard"),
    )  # fmt: skip
    by_world = {
        world.name: [placed(drawn(world, number), world, options.time_limit) for number in range(options.tasks)]
        for world in worlds(options.processor, options.other)
    }
    large = {
        f"{tables} × {devices}, {world.name}": [
            placed(drawn(world, number, (tables, devices)), world, options.time_limit)
            for number in range(options.large)
        ]
        for tables, devices in LARGE
        for world in worlds(None, None)
        if options.large and world.name in ("H100, learned model", "h200, published")
    }
    learned = load_policy(bundled_policy("dreamshard"), "dreamshard").metadata
    versions = ", ".join(f"{name} {digest(bundled_policy(name))}" for name in ("autoshard", "dreamshard"))
    caption = (
        f"Part of the gap to `certified` closed, by world; {options.tasks} tasks each of {SIZES[0][0]} to {SIZES[-1][0]} tables of the "
        f"unseen half on "
        f"{SIZES[0][1]} to {SIZES[-1][1]} devices, whole tables. 100% is `certified` with {options.time_limit:g} s; {RULE} is a policy "
        f"before training. Policies {versions}, which learned from {learned['world'].removeprefix('simulated: ')}."
    )
    heads = ("world", "learned from", "heuristic / certified", *(f"{name}, closed" for name in ASKED[:-1]))
    rows = [row(world, by_world[world.name]) for world in worlds(options.processor, options.other)]
    unseen = [
        each for world in worlds(options.processor, options.other) if not world.learned for each in by_world[world.name]
    ]
    every = [each for several in by_world.values() for each in several]
    rows += [("unseen worlds", "no", *cells(unseen)), ("all worlds", "", *cells(every))]
    speed = (
        "The same tasks: geometric mean of the step over `certified`'s, and planning time of a task in ms, median and largest; one "
        "process.",
        ("strategy", "step / certified", "median, ms", "largest, ms"),
        [speed_row(name, every) for name in ASKED],
    )
    tables = [(caption, heads, rows), speed]
    if large:
        tables.append((
            f"Large tasks, {options.large} each: part of the gap closed, and milliseconds of a call in brackets.",
            ("task", "heuristic / certified", *ASKED[:-1], "certified"),
            [(what, *large_cells(several)) for what, several in large.items()],
        ))  # fmt: skip
    write_results(NAME, "Learned policies by device and cost model", tables, command_of(NAME, arguments))


def worlds(processor: Path | None, other: Path | None) -> list[World]:
    """Return the worlds to place in; processors only if their models are given."""
    bundled = {name: load_model(path) for name, path in bundled_models().items()}
    named = ((processor, "a processor", True), (other, "another processor", False))
    return [
        *(World(name, "cpu", load_model(path), learned) for path, name, learned in named if path is not None),
        World("H100, learned model", "h100", bundled["h100"], False), World("a100, published", "a100", PublishedModel("a100"), False),
        World("h200, published", "h200", PublishedModel("h200"), True), World("mi300, published", "mi300", PublishedModel("mi300"), True),
    ]  # fmt: skip


def drawn(world: World, number: int, size: tuple[int, int] | None = None) -> Task:
    """Return a task of the world: of the n-th size, with the n-th dims, on hosts of eight devices."""
    tables, devices = size or SIZES[number % len(SIZES)]
    seed = [2026, sum(world.name.encode()), number, tables]
    pool = split_pool(("dlrm-2021", "dlrm-2022")[number % 2], 0.5)[1]
    task = random_task(
        np.random.default_rng(seed), pool=pool, tables=tables, devices=devices, dims=DIMS[number % len(DIMS)], memory="64 GB",
        batch_size=4096 if world.device == "cpu" else 65_536, device=world.device, fill=None,
    )  # fmt: skip
    hosts = max(1, devices // 8)
    topology = Topology(hosts=hosts, devices_per_host=devices // hosts, device=world.device, memory="64 GB")
    return whole(replace(task, topology=topology))


def placed(task: Task, world: World, limit: float) -> Mapping[str, Placed]:
    """Place a task by every strategy; a strategy that fails counts as the best heuristic."""
    results = {}
    for name in (*SORTED, *ASKED):
        begin = time.perf_counter()
        try:
            if name == RULE:
                step = by_rule(task, world.model)
            else:
                seconds = limit if name in ("neuroshard", "certified") else None
                step = plan(task, strategy=name, cost_model=world.model, time_limit=seconds).cost.step_ms  # type: ignore[union-attr]
        except InfeasibleTask:
            step = np.inf
        results[name] = Placed(step, time.perf_counter() - begin)
    best = min(results[name].step_ms for name in SORTED)
    return {name: each if np.isfinite(each.step_ms) else Placed(best, each.seconds) for name, each in results.items()}


def by_rule(task: Task, model: CostModel) -> float:
    """Return the step of a placement by the policy before training."""
    from shardwright.learned.worlds import SimulatedWorld, step_ms

    weights = {name: np.zeros(shape, dtype=np.float32) for name, shape in SHAPES.items()}
    weights["gain"] = np.full(1, FIRST_GAIN, dtype=np.float32)
    policy = PricedPolicy(replace(load_policy(bundled_policy("dreamshard"), "dreamshard"), weights=weights))
    arrays = PlacementArrays.of(task, features=False)
    best = placements(policy, PricedTask.of(arrays, model), copies_for(arrays), 0, None)[0]
    return step_ms(SimulatedWorld(model).costs([(arrays, best)])[0])


def heuristic(each: Mapping[str, Placed]) -> float:
    return min(each[name].step_ms for name in SORTED)


def closed(name: str, several: Sequence[Mapping[str, Placed]]) -> float:
    """Return the share of the gap that a strategy closes."""
    ways = [np.log(heuristic(each) / each["certified"].step_ms) for each in several]
    gone = [np.log(heuristic(each) / each[name].step_ms) for each in several]
    return float(np.sum(gone) / np.sum(ways))


def cells(several: Sequence[Mapping[str, Placed]]) -> tuple[str, ...]:
    over = geometric_mean(heuristic(each) / each["certified"].step_ms for each in several)
    return f"{over:.3f}", *(f"{closed(name, several):.0%}" for name in ASKED[:-1])


def row(world: World, several: Sequence[Mapping[str, Placed]]) -> tuple[str, ...]:
    return world.name, "yes" if world.learned else "no", *cells(several)


def speed_row(name: str, several: Sequence[Mapping[str, Placed]]) -> tuple[str, ...]:
    ms = [1e3 * each[name].seconds for each in several]
    over = geometric_mean(each[name].step_ms / each["certified"].step_ms for each in several)
    return name, f"{over:.3f}", f"{np.median(ms):.1f}", f"{max(ms):.0f}"


def large_cells(several: Sequence[Mapping[str, Placed]]) -> tuple[str, ...]:
    first, *others = cells(several)
    ms = [f"{np.median([1e3 * each[name].seconds for each in several]):.0f} ms" for name in ASKED]
    return first, *(f"{part} ({took})" for part, took in zip([*others, "100%"], ms, strict=True))


if __name__ == "__main__":
    main()
