"""Placements whose true costs are known: what the cost network learns from.

Shape suffixes: m placements, u units (padded), d devices (padded), p phases.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from shardwright.search.learned.arrays import Floats

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

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        """Take over what `tensors` gave."""
        for name in vars(self):
            setattr(self, name, tensors[f"buffer.{name}"])
