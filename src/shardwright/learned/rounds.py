"""The state of a training between two rounds: networks, optimizers and buffer, saved to checkpoints and restored from them.

Each strategy adds a `Trainer` with its networks, its buffer and its round; `trainer.learn` makes the rounds.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from shardwright.errors import InfeasibleTask, InvalidInput, ShardwrightError
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
from shardwright.learned.worlds import Placed, World
from shardwright.modelling.fitting import descend
from shardwright.workload.training_tasks import TrainingTasks


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
        buffer: training data of the cost network; None without one.
        round: number of rounds made.
    """

    counter: ClassVar[str]
    network: nn.Module
    optimizers: Mapping[str, torch.optim.Optimizer]
    buffer: Buffer | None = None

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
        state = {**identity, self.counter: self.round, "rng": rng_state(self._rng, self._generator)}
        if self.buffer is not None:
            tensors, state = tensors | self.buffer.tensors(), state | self.buffer.counts()
        save_checkpoint(path, tensors, state)

    def go_on_from(self, path: Path, identity: Mapping[str, Any]) -> bool:
        """Resume from a checkpoint, and return whether the file exists.

        Raises:
            InvalidInput: the file cannot be read, or belongs to another training.
        """
        saved = load_checkpoint(path)
        if saved is None:
            return False
        tensors, state = saved
        check_same_training(path, state, identity)
        with restoring(path):
            restore_network(self.network, tensors)
            for name, optimizer in self.optimizers.items():
                restore_optimizer(optimizer, tensors, f"{name}.")
            if self.buffer is not None:
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


def with_units(tasks: Sequence[PlacementArrays], strategy: str) -> list[PlacementArrays]:
    """The tasks that have something to place; the others teach nothing.

    Raises:
        InvalidInput: no task has anything to place.
    """
    kept = [task for task in tasks if len(task)]
    if not kept:
        raise InvalidInput(
            f"{strategy}: none of the {len(tasks)} training tasks has a table to place; give at least one with tables that may stay whole"
        )
    return kept


def nothing_placed() -> InfeasibleTask:
    """The error of a round whose placements all break memory or constraints."""
    return InfeasibleTask(
        "no placement of the training tasks kept their memory and constraints, so there is nothing to learn from: give their devices more "
        "memory, or drop constraints"
    )


def discounted(gain_te: Tensor, decay: float) -> Tensor:
    """`(t, e)` gains from each step on; those of later steps count by `decay` per step."""
    following_te = gain_te.clone()
    for step in reversed(range(len(gain_te) - 1)):
        following_te[step] += decay * following_te[step + 1]
    return following_te
