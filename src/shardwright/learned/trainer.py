"""The training loop of a policy: each round makes placements, prices them, learns from them and saves a checkpoint.

On one thread the policy depends only on the seed, and a training resumed from a checkpoint ends as if it had never stopped.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from shardwright.errors import ShardwrightError
from shardwright.learned.arrays import PlacementArrays
from shardwright.learned.autoshard.training import AutoShardTrainer
from shardwright.learned.dreamshard.training import DreamShardTrainer
from shardwright.learned.options import AutoShardOptions, PolicyOptions, PricedOptions
from shardwright.learned.policy_files import INPUTS, PRICES, SavedPolicy
from shardwright.learned.priced.training import PricedTrainer
from shardwright.learned.records import TrainingRecord
from shardwright.learned.rounds import Trainer
from shardwright.learned.worlds import World
from shardwright.task.task import Task
from shardwright.workload.training_tasks import training_tasks


def trainer(tasks: Sequence[Task], world: World, options: PolicyOptions) -> Trainer:
    """The trainer for these options, before its first round."""
    if isinstance(options, PricedOptions):
        return PricedTrainer([PlacementArrays.of(task, features=False) for task in tasks], world, options)
    arrays = [PlacementArrays.of(task) for task in tasks]
    if isinstance(options, AutoShardOptions):
        return AutoShardTrainer(arrays, world, options)
    return DreamShardTrainer(arrays, world, options)


def learn(
    tasks: Sequence[Task],
    world: World,
    options: PolicyOptions,
    *,
    record: TrainingRecord | None = None,
    checkpoint: Path | None = None,
) -> SavedPolicy:
    """Learn the policy of a strategy.

    Args:
        tasks: the training tasks; numbers of tables and devices may differ between them.
        world: prices placements.
        options: how to learn; their type selects the strategy.
        record: receives the figures of every round: "reward" and "entropy"; with cost networks also "latency_ms", "cost_error", and
            AutoShard's "value_error" or DreamShard's "cost_error_NAME" for each output.
        checkpoint: file written before the first round and after every round; if it exists already, the training resumes from it.

    Raises:
        InvalidInput: there is no task to learn from, or the checkpoint belongs to another training.
        InfeasibleTask: a training task has a table that fits no device, or memory is too tight for sampled placements.
        ShardwrightError: the world failed, or a cost or a reward is not a number; the checkpoint holds the state before the round.
    """
    known = training_tasks(tasks)
    training = trainer(known.tasks, world, options)
    identity = {
        "strategy": options.strategy,
        "options": options.plain(),
        "tasks": training.digest(known),
        "world": world.name,
    }
    if checkpoint is not None and not training.go_on_from(checkpoint, identity):
        training.save(checkpoint, identity)
    while training.round < options.rounds:
        try:
            figures = training.make_round()
        except ShardwrightError as error:
            kept = f"the state before it is saved in {checkpoint}; the same call goes on from it"
            where = f"{options.strategy}: {training.counter} {training.round + 1} of {options.rounds} stopped"
            raise type(error)(
                f"{where}: {error}. {kept if checkpoint else 'nothing was saved, as no checkpoint was named'}"
            ) from error
        training.round += 1
        if checkpoint is not None:
            training.save(checkpoint, identity)
        if record is not None:
            record.step(training.round, options.rounds, figures)
    metadata = {
        **({INPUTS: PRICES} if isinstance(options, PricedOptions) else {}),
        "world": world.name,
        "options": json.dumps(options.plain()),
        **{name: str(value) for name, value in options.plain().items() if name in ("objective", "method", "seed")},
        "tasks": known.description,
        "date": datetime.now(UTC).date().isoformat(),
    }
    return SavedPolicy(options.strategy, training.weights(), metadata)
