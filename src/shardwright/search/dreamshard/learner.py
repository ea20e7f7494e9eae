"""Learning a DreamShard policy: price some placements, teach the cost network, improve the policy on its estimates alone, and again."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from shardwright.errors import ShardwrightError
from shardwright.search.dreamshard.policy import NAME, DreamShardOptions
from shardwright.search.dreamshard.training import Training
from shardwright.search.learned.arrays import PlacementArrays
from shardwright.search.learned.checkpoints import check_same_training, load_checkpoint, restoring, save_checkpoint
from shardwright.search.learned.policy_files import SavedPolicy
from shardwright.search.learned.records import TrainingRecord
from shardwright.search.learned.worlds import World
from shardwright.task.task import Task
from shardwright.workload.training_tasks import TrainingTasks, training_tasks


def learn_dreamshard(
    tasks: Sequence[Task],
    world: World,
    options: DreamShardOptions | None = None,
    *,
    record: TrainingRecord | None = None,
    checkpoint: Path | None = None,
) -> SavedPolicy:
    """Learn a policy.

    Args:
        tasks: the training tasks, of any numbers of tables and devices.
        world: prices placements.
        options: how to learn.
        record: gets the figures of every iteration: "reward" (minus the predicted cost of sampled placements, ms), "entropy",
            "latency_ms" (their mean cost in the world), "cost_error" and "cost_error_NAME" (mean relative error on placements that the
            cost network has not learned from yet).
        checkpoint: written before the first and after every iteration; where the file exists already, the training goes on from it, to
            the same result, bit by bit, on one thread.

    Raises:
        InvalidInput: there are no tasks, or the checkpoint belongs to another training.
        InfeasibleTask: a training task has a table that fits no device, or memory is too tight for sampled placements.
        ShardwrightError: the world failed or returned costs that are not finite, or the reward became NaN; the state before the
            iteration is in the checkpoint.
    """
    options = options or DreamShardOptions()
    known = training_tasks(tasks)
    training = Training([PlacementArrays.of(task) for task in known.tasks], world, options)
    identity: dict[str, Any] = {
        "strategy": NAME,
        "options": asdict(options),
        "tasks": known.digest,
        "world": world.name,
    }
    if checkpoint is not None:
        _resume(training, checkpoint, identity)
    while training.iteration < options.iterations:
        try:
            figures = training.iterate()
        except ShardwrightError as error:
            where = f"the state before it is in {checkpoint}" if checkpoint else "no checkpoint was asked for"
            raise type(error)(
                f"iteration {training.iteration + 1} of {options.iterations}: {error}; {where}"
            ) from error
        if checkpoint is not None:
            save_checkpoint(checkpoint, training.tensors(), identity | training.state())
        if record is not None:
            record.step(training.iteration, options.iterations, figures)
    return SavedPolicy(NAME, _weights(training), _metadata(known, world, options))


def _resume(training: Training, checkpoint: Path, identity: dict[str, Any]) -> None:
    """Go on from the checkpoint, or write the first one."""
    saved = load_checkpoint(checkpoint)
    if saved is None:
        save_checkpoint(checkpoint, training.tensors(), identity | training.state())
        return
    tensors, state = saved
    check_same_training(checkpoint, state, identity)
    with restoring(checkpoint):
        training.restore(tensors, state)


def _weights(training: Training) -> dict[str, np.ndarray[tuple[int, ...], np.dtype[np.float32]]]:
    return {name: value.numpy().copy() for name, value in training.network.state_dict().items()}


def _metadata(tasks: TrainingTasks, world: World, options: DreamShardOptions) -> dict[str, str]:
    return {
        "world": world.name,
        "options": json.dumps(asdict(options)),
        "objective": options.objective,
        "tasks": tasks.description,
        "seed": str(options.seed),
        "date": datetime.now(UTC).date().isoformat(),
    }
