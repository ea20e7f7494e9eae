"""Policies that figures about learned placement train for themselves: kept on disk, so that a run that is stopped goes on."""

from __future__ import annotations

import hashlib
import json
import sys
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from learned_strategies import SORTED, model_version, with_policy

import shardwright as sw
from shardwright.cli.learn_options import options_from_texts
from shardwright.cost import CostModel, cost_model_for
from shardwright.errors import InfeasibleTask
from shardwright.search.autoshard.learner import learn_autoshard
from shardwright.search.autoshard.options import AutoShardOptions
from shardwright.search.dreamshard.learner import learn_dreamshard
from shardwright.search.dreamshard.options import DreamShardOptions
from shardwright.search.learned.policy_files import SavedPolicy, load_policy, save_policy
from shardwright.search.learned.worlds import SimulatedWorld
from shardwright.sharding.costs import PlanCost
from shardwright.task import Task
from shardwright.workload.training_tasks import training_tasks

FOLDER = Path(__file__).parents[1] / "out" / "learned"
SECONDS = "training_s"
"""Name of the training's seconds in a policy's metadata, its own part only if it went on from a checkpoint."""


@dataclass(frozen=True)
class Learner:
    """A strategy that learns.

    Attributes:
        options: its options.
        learn: learns a policy.
        cost: what it makes small.
        cost_name: that in words.
    """

    options: type[DreamShardOptions | AutoShardOptions]
    learn: Callable[..., SavedPolicy]
    cost: Callable[[PlanCost], float]
    cost_name: str


LEARNERS = {
    "dreamshard": Learner(DreamShardOptions, learn_dreamshard, lambda cost: cost.step_ms, "step"),
    "autoshard": Learner(
        AutoShardOptions,
        learn_autoshard,
        lambda cost: max(device.compute_ms for device in cost.devices),
        "slowest device's kernels",
    ),
}


def add_training_options(parser: ArgumentParser) -> None:
    """Options of programs that train policies."""
    parser.add_argument("--strategies", nargs="+", default=list(LEARNERS), choices=list(LEARNERS))
    parser.add_argument("--seeds", type=int, default=1, help="trainings of each policy, with seeds 0, 1, …")
    for name in LEARNERS:
        parser.add_argument(
            f"--{name}-option", action="append", default=[], metavar="NAME=VALUE", help=f"how {name} learns"
        )


def options_of(strategy: str, seed: int, options: Namespace) -> Any:
    """The training's options."""
    return options_from_texts(LEARNERS[strategy].options, {"seed": seed}, getattr(options, f"{strategy}_option"))


def learned(strategy: str, what: str, tasks: Sequence[Task], options: Any, folder: Path) -> Path:
    """The file of a policy learned on the bundled CPU model; learned if it is not there yet.

    Args:
        strategy: of `LEARNERS`.
        what: what it is learned on, for the file's name.
        tasks: the training tasks.
        options: the training's options.
        folder: where policies lie.
    """
    model = cost_model_for("cpu")
    about = [strategy, asdict(options), training_tasks(tasks).digest, model_version()]
    digest = hashlib.sha256(json.dumps(about, sort_keys=True).encode()).hexdigest()[:12]
    path = folder / f"{strategy}-{what}-{digest}.safetensors"
    if path.exists():
        return path
    folder.mkdir(parents=True, exist_ok=True)
    checkpoint = path.with_suffix(".checkpoint")
    begin = time.monotonic()
    policy = LEARNERS[strategy].learn(tasks, SimulatedWorld(model), options, checkpoint=checkpoint)
    seconds = time.monotonic() - begin
    save_policy(replace(policy, metadata=policy.metadata | {SECONDS: f"{seconds:.1f}"}), path)
    checkpoint.unlink(missing_ok=True)
    print(f"{strategy} on {what}, seed {options.seed}: learned in {seconds:.0f} s", file=sys.stderr, flush=True)
    return path


def training_seconds(strategy: str, path: Path) -> float:
    """How long a policy of `learned` took."""
    return float(load_policy(path, strategy).metadata[SECONDS])


def costs(strategy: str, path: Path, tasks: Sequence[Task], model: CostModel) -> dict[int, float]:
    """What a policy makes of tasks, in its own kind of cost, by the number of the task; without those it could not place."""
    placed = {}
    for number, task in enumerate(tasks):
        try:
            plan = sw.plan(task, strategy=with_policy(strategy, path), cost_model=model)
        except InfeasibleTask:
            continue
        assert plan.cost is not None
        placed[number] = LEARNERS[strategy].cost(plan.cost)
    return placed


def heuristic_ms(strategy: str, tasks: Sequence[Task]) -> float:
    """The lowest mean cost of a heuristic, of the strategy's kind; NaN where each fails on some task."""
    means = []
    for name in SORTED:
        try:
            plans = [sw.plan(task, strategy=name, cost_model=cost_model_for("cpu")) for task in tasks]
        except InfeasibleTask:
            continue
        means.append(float(np.mean([LEARNERS[strategy].cost(plan.cost) for plan in plans if plan.cost])))
    return min(means, default=float("nan"))
