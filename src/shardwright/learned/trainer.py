"""The training loop of a policy: each round makes placements, prices them, learns from them and saves a checkpoint.

Each strategy adds a `Trainer` with its networks, its buffer and its round. On one thread the policy depends only on the seed, and a
training resumed from a checkpoint ends as if it had never stopped.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, ClassVar, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from shardwright.errors import ShardwrightError
from shardwright.learned.arrays import Floats, PlacementArrays
from shardwright.learned.checkpoints import (
    check_count,
    check_same_training,
    load_checkpoint,
    optimizer_tensors,
    restore_network,
    restore_optimizer,
    restore_rng,
    restoring,
    rng_state,
    save_checkpoint,
)
from shardwright.learned.options import AutoShardOptions, PolicyOptions, PricedOptions
from shardwright.learned.policy_files import INPUTS, PRICES, SavedPolicy
from shardwright.learned.records import TrainingRecord
from shardwright.learned.worlds import Placed, World
from shardwright.modelling.fitting import descend
from shardwright.task.task import Task
from shardwright.workload.training_tasks import TrainingTasks, training_tasks


class Buffer(Protocol):
    """The priced placements that a cost network learns from."""

    def tensors(self) -> dict[str, Tensor]:
        """The buffer's content, for a checkpoint."""
        ...

    def counts(self) -> dict[str, int]:
        """Counters that a checkpoint must hold beside the tensors."""
        ...

    def restore(self, tensors: Mapping[str, Tensor], counts: Mapping[str, Any]) -> None:
        """Replace the buffer's content with that of a checkpoint.

        Raises:
            KeyError, ValueError: the checkpoint holds no buffer, or one of other tasks.
        """
        ...


class Trainer(ABC):
    """The state of a training between two rounds; subclasses define the round.

    Args:
        world: prices placements.
        rng: draws tasks and actions.
        generator: does the same in torch, if the strategy draws there.

    Attributes:
        counter: name under which checkpoints store the number of rounds made.
        network: the networks.
        optimizers: optimizers by their names in checkpoints.
        buffer: training data of the cost network.
        round: number of rounds made.
    """

    counter: ClassVar[str]
    network: nn.Module
    optimizers: Mapping[str, torch.optim.Optimizer]
    buffer: Buffer

    def __init__(self, world: World, rng: np.random.Generator, generator: torch.Generator | None = None) -> None:
        self.round = 0
        self._world, self._rng, self._generator = world, rng, generator

    @abstractmethod
    def make_round(self) -> dict[str, float]:
        """Make placements, price them and learn from them.

        Returns:
            The round's figures by name.

        Raises:
            ShardwrightError: the world failed, or a cost or a reward is not a number.
            InfeasibleTask: placements do not keep memory and constraints.
        """

    def digest(self, known: TrainingTasks) -> str:
        """A digest that differs between trainings on different tasks."""
        return known.digest

    def weights(self) -> dict[str, np.ndarray[tuple[int, ...], np.dtype[np.float32]]]:
        """The weights learned so far, by name."""
        return {name: value.numpy().copy() for name, value in self.network.state_dict().items()}

    def save(self, path: Path, identity: Mapping[str, Any]) -> None:
        """Write a checkpoint; `identity` identifies its training."""
        tensors = {f"network.{name}": value for name, value in self.network.state_dict().items()}
        for name, optimizer in self.optimizers.items():
            tensors |= optimizer_tensors(optimizer, f"{name}.")
        state = {self.counter: self.round, "rng": rng_state(self._rng, self._generator)}
        save_checkpoint(path, tensors | self.buffer.tensors(), {**identity, **state, **self.buffer.counts()})

    def go_on_from(self, path: Path, identity: Mapping[str, Any]) -> bool:
        """Resume from a checkpoint, and return whether the file exists.

        Raises:
            InvalidInput: the file cannot be read, or belongs to another training.
        """
        found = load_checkpoint(path)
        if found is None:
            return False
        tensors, state = found
        check_same_training(path, state, identity)
        with restoring(path):
            restore_network(self.network, tensors)
            for name, optimizer in self.optimizers.items():
                restore_optimizer(optimizer, tensors, f"{name}.")
            self.buffer.restore(tensors, state)
            restore_rng(state["rng"], self._rng, self._generator)
            self.round = check_count(self.counter, state[self.counter])
        return True

    def _priced(self, placed: Sequence[Placed]) -> list[Floats]:
        """The world's `(devices, 4)` ms of each placement, checked to be finite."""
        costs = self._world.costs(placed)
        if not all(np.isfinite(phases).all() for phases in costs):
            raise ShardwrightError(
                f"{self._world.name} returned NaN or infinite ms for a placement, so its reward is no number; costs must be finite: "
                "train the cost model again, or measure again"
            )
        return costs

    def _descend(self, name: str, loss: Tensor, most_norm: float | None = None) -> None:
        """Make one update with the optimizer of that name."""
        descend(self.network, self.optimizers[name], loss, most_norm)

    def _set_rate(self, name: str, rate: float) -> None:
        self.optimizers[name].param_groups[0]["lr"] = rate


def trainer(tasks: Sequence[Task], world: World, options: PolicyOptions) -> Trainer:
    """The trainer for these options, before its first round."""
    if isinstance(options, PricedOptions):
        from shardwright.learned.priced.training import PricedTrainer

        return PricedTrainer([PlacementArrays.of(task, features=False) for task in tasks], world, options)
    arrays = [PlacementArrays.of(task) for task in tasks]
    if isinstance(options, AutoShardOptions):
        from shardwright.learned.autoshard.training import AutoShardTrainer

        return AutoShardTrainer(arrays, world, options)
    from shardwright.learned.dreamshard.training import DreamShardTrainer

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
