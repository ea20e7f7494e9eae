"""Training of policies for experiments; finished policies stay on disk, so that a stopped run resumes."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from experiments.entrants import model_version
from shardwright.cost.choice import cost_model_for
from shardwright.errors import InvalidInput
from shardwright.learned.options import AutoShardOptions, DreamShardOptions, PolicyOptions
from shardwright.learned.policy_files import load_policy, save_policy
from shardwright.learned.worlds import SimulatedWorld
from shardwright.sharding.costs import PlanCost
from shardwright.task.task import Task
from shardwright.threads import one_thread
from shardwright.workload.training_tasks import training_tasks

_SECONDS = "training_s"
"""Metadata entry with the seconds of a training; of a training resumed from a checkpoint, only the last part."""


@dataclass(frozen=True)
class Learner:
    """A strategy that learns.

    Attributes:
        options: type of its options in the paper's training.
        cost: the cost that the paper minimises, from a plan's costs.
        cost_name: that cost in words.
        column: column of that cost in rows of results.
    """

    options: type[AutoShardOptions] | type[DreamShardOptions]
    cost: Callable[[PlanCost], float]
    cost_name: str
    column: str


LEARNERS = {
    "dreamshard": Learner(DreamShardOptions, lambda cost: cost.step_ms, "step", "step_ms"),
    "autoshard": Learner(
        AutoShardOptions,
        lambda cost: max(device.compute_ms for device in cost.devices),
        "slowest device's kernels",
        "compute_ms",
    ),
}
"""Learning strategies by name."""


def options_digest(options: PolicyOptions) -> str:
    """Eight hexadecimal digits that change with any option."""
    return hashlib.sha256(json.dumps(options.plain(), sort_keys=True).encode()).hexdigest()[:8]


def learned(strategy: str, what: str, tasks: Sequence[Task], options: PolicyOptions, folder: Path) -> Path:
    """Return the file of a policy learned on the bundled CPU model; train it if missing, from a checkpoint if one exists.

    Args:
        strategy: name in `LEARNERS`.
        what: name of the training tasks, for the file's name.
        tasks: the training tasks.
        options: options of the training.
        folder: folder of the policies.

    Raises:
        InvalidInput: the folder cannot be made.
    """
    digest = training_tasks(tasks).digest
    about = hashlib.sha256(" ".join([options_digest(options), digest, model_version("cpu")]).encode()).hexdigest()[:12]
    path = folder / f"{strategy}-{what}-{about}.safetensors"
    if path.exists():
        return path
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InvalidInput(f"{folder}: cannot keep policies there ({error}); name another folder") from None
    from shardwright.learned.trainer import learn

    checkpoint = path.with_suffix(".checkpoint")
    begin = time.monotonic()
    with one_thread():
        world = SimulatedWorld(cost_model_for("cpu"))
        policy = learn(tasks, world, options, checkpoint=checkpoint)
    seconds = time.monotonic() - begin
    save_policy(replace(policy, metadata=policy.metadata | {_SECONDS: f"{seconds:.3f}"}), path)
    checkpoint.unlink(missing_ok=True)
    return path


def training_seconds(strategy: str, path: Path) -> float:
    """Training seconds of a policy that `learned` made."""
    return float(load_policy(path, strategy).metadata[_SECONDS])
