"""Placements whose true costs are known: what the cost network learns from.

Shape suffixes: m placements, u units (padded), d devices (padded), p phases.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from shardwright.search.learned.arrays import Floats
from shardwright.search.learned.checkpoints import check_range, check_tensor
from shardwright.search.learned.environment import UNPLACED

PHASES = 4


class Buffer:
    """Measured placements of training tasks.

    Attributes:
        task_m: index of the task.
        assignment_mu: device of each unit; `UNPLACED` in the padding.
        phases_mdp: ms of forward, forward communication, backward communication and backward; 0 in the padding.
    """

    def __init__(self, units: int, devices: int) -> None:
        self.task_m = torch.zeros(0, dtype=torch.int64)
        self.assignment_mu = torch.zeros(0, units, dtype=torch.int64)
        self.phases_mdp = torch.zeros(0, devices, PHASES)

    def __len__(self) -> int:
        return self.task_m.shape[0]

    def add(self, task_m: Tensor, assignment_mu: Tensor, costs: Sequence[Floats]) -> None:
        """Add placements with their `(devices, 4)` costs."""
        phases = np.zeros((len(costs), *self.phases_mdp.shape[1:]), dtype=np.float32)
        for row, found in zip(phases, costs, strict=True):
            row[: len(found)] = found
        self.task_m = torch.cat([self.task_m, task_m])
        self.assignment_mu = torch.cat([self.assignment_mu, assignment_mu])
        self.phases_mdp = torch.cat([self.phases_mdp, torch.from_numpy(phases)])

    def tensors(self) -> dict[str, Tensor]:
        """Everything in it, for a checkpoint."""
        return {f"buffer.{name}": value for name, value in vars(self).items()}

    def restore(self, tensors: Mapping[str, Tensor], tasks: int) -> None:
        """Take over what `tensors` gave.

        Raises:
            KeyError, ValueError: it is of other tasks or devices, or no buffer.
        """
        found = {name: tensors[f"buffer.{name}"] for name in vars(self)}
        for name, value in found.items():
            check_tensor(f"buffer.{name}", value, getattr(self, name), any_length=True)
            check_range(f"buffer.{name}", value, *self._bounds(tasks)[name])
        if len({len(value) for value in found.values()}) > 1:
            raise ValueError("the buffer's tensors have different lengths")
        vars(self).update(found)

    def _bounds(self, tasks: int) -> dict[str, tuple[float, float]]:
        """Least and largest value of each tensor."""
        return {
            "task_m": (0, tasks - 1),
            "assignment_mu": (UNPLACED, self.phases_mdp.shape[1] - 1),
            "phases_mdp": (0, torch.finfo(torch.float32).max),
        }
