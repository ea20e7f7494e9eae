"""AutoShard's learning: the policy places tasks, the world says what that costs, and cost model and policy improve.

The paper's actors are processes that play with the learner's policy of a moment ago, and V-trace corrects for its age. Here they are one
batch of episodes in the same process: at the begin of a round enough are played for `lag` learner steps, so that the learner is up
to `lag` - 1 steps ahead of what it learns from. On one thread the result depends on the seed alone, and a training that goes on from a
checkpoint ends as if it had never stopped.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shardwright.errors import InvalidInput, ShardwrightError
from shardwright.search.autoshard.strategy import NAME, AutoShardOptions
from shardwright.search.learned.arrays import PlacementArrays
from shardwright.search.learned.policy_files import SavedPolicy
from shardwright.search.learned.worlds import World
from shardwright.task.task import Task

if TYPE_CHECKING:
    from shardwright.search.autoshard.training import Training
    from shardwright.search.learned.records import TrainingRecord


SAVED_EVERY = 10  # rounds


def learn_autoshard(
    tasks: Sequence[Task],
    world: World,
    options: AutoShardOptions | None = None,
    *,
    record: TrainingRecord | None = None,
    checkpoint: Path | None = None,
) -> SavedPolicy:
    """Learn a policy.

    Args:
        tasks: what to learn from; tasks without anything to place teach nothing and are left out.
        world: says what placements cost. Only kernel times are used.
        options: how to learn.
        record: takes "reward", "cost_error" (mean relative error of the cost model on devices it has not seen yet), "entropy",
            "value_error" and "latency_ms" (mean of the slowest device's kernel time) of every round.
        checkpoint: where the training is saved now and then, and goes on from if the file is there.

    Raises:
        InvalidInput: there is no task to learn from, or the checkpoint is of another training.
        InfeasibleTask: a table of a task fits no device.
        ShardwrightError: the world failed, or a cost is not a number; the message says where the training was saved.
    """
    from shardwright.search.autoshard.training import Training

    options = options or AutoShardOptions()
    arrays = [found for found in map(PlacementArrays.of, tasks) if len(found)]
    if not arrays:
        raise InvalidInput(
            f"autoshard: none of the {len(tasks)} training tasks has a table to place; give at least one with tables that may stay whole"
        )
    identity = {"strategy": NAME, "options": options.plain(), "tasks": _digest(arrays), "world": world.name}
    training = Training(arrays, world, options)
    if checkpoint is not None:
        training.go_on_from(checkpoint, identity)
    while training.round < options.rounds:
        _make_round(training, identity, record, checkpoint)
    if checkpoint is not None:
        training.save(checkpoint, identity)
    return training.policy(_metadata(arrays, world, options))


def _make_round(
    training: Training, identity: Mapping[str, Any], record: TrainingRecord | None, checkpoint: Path | None
) -> None:
    try:
        figures = training.make_round()
    except ShardwrightError as error:
        kept = "nothing was saved, as no checkpoint was named"
        if checkpoint is not None:
            training.save(checkpoint, identity)
            kept = f"the training up to there is saved in {checkpoint}; the same call goes on from it"
        raise ShardwrightError(f"autoshard: round {training.round + 1} stopped: {error}. {kept}") from error
    total = training.options.rounds
    if record is not None:
        record.step(training.round, total, figures)
    if checkpoint is not None and training.round % SAVED_EVERY == 0:
        training.save(checkpoint, identity)


def _digest(arrays: Sequence[PlacementArrays]) -> str:
    """A text that other tasks do not have."""
    digest = hashlib.sha256()
    for task in arrays:
        for part in (task.features, task.unit_of, task.bytes, task.allowed, task.rivals, task.memory, task.used):
            digest.update(str(part.shape).encode() + part.tobytes())
        digest.update(task.fixed_features.tobytes() + task.fixed_on.tobytes())
    return digest.hexdigest()


def _metadata(arrays: Sequence[PlacementArrays], world: World, options: AutoShardOptions) -> dict[str, str]:
    tables = sorted({len(found.task.tables) for found in arrays})
    devices = sorted({found.devices for found in arrays})
    return {
        "world": world.name,
        "options": json.dumps(options.plain()),
        "tasks": f"{len(arrays)} tasks of {_span(tables)} tables on {_span(devices)} devices, digest {_digest(arrays)[:16]}",
        "seed": str(options.seed),
        "date": datetime.now(UTC).date().isoformat(),
    }


def _span(values: Sequence[int]) -> str:
    return str(values[0]) if len(values) == 1 else f"{values[0]} to {values[-1]}"
