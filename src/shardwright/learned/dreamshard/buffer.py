"""Training data of DreamShard's cost network: placements with known costs, variants of the training tasks, and the network's errors.

A cost network that has seen a few hundred tables is precise on these tables but several per cent off on others. Variants of the tables
teach it how costs depend on the features instead of which table costs what. The world prices variants like any other task. A variant may
hold fewer tables than its task, down to one per device: a policy also needs the costs of devices while they fill up, and of single tables.

The targets of a device are forward, backward and backward communication. The target of a placement is the step time, or the papers'
embedding cost. Errors are relative to the target, so that tasks of ten and of a hundred tables matter alike.

Shape suffixes: m placements, u units (padded), d devices (padded), p phases.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from shardwright.learned.arrays import Floats, PlacementArrays
from shardwright.learned.checkpoints import check_range, check_tensor
from shardwright.learned.dreamshard.network import CostNetwork, DreamShardNetwork
from shardwright.learned.dreamshard.policy import HEADS
from shardwright.learned.environment import UNPLACED, PlacementBatch, summed_at
from shardwright.learned.options import Objective
from shardwright.learned.worlds import BACKWARD, BACKWARD_COMMUNICATION, FORWARD
from shardwright.task.constraints import Constraints
from shardwright.task.table import Table
from shardwright.task.task import Task

_RANGE = 1.0  # largest logarithm of the factor by which rows and pooling factors change, up or down
_BORROWED = 0.5  # probability that a table borrows another table's access profile; likewise for its pooling factor


def variants_of(tasks: Sequence[Task], variants: int, seed: int) -> list[PlacementArrays]:
    """Make this number of variants of each task; a variant with a table that fits no device is left out."""
    rng = np.random.default_rng(seed)
    known = [table for task in tasks for table in task.tables]
    return PlacementArrays.of_placeable(_variant(task, known, rng) for task in tasks for _ in range(variants))


def _variant(task: Task, known: Sequence[Table], rng: np.random.Generator) -> Task:
    """A task with some of the task's tables, each changed at random."""
    few, all_ = min(len(task.tables), task.topology.devices), len(task.tables)
    count = round(few * (all_ / few) ** rng.uniform())
    chosen = [task.tables[index] for index in np.sort(rng.choice(all_, count, replace=False))]
    return replace(
        task,
        tables=tuple(_changed(table, known, rng) for table in chosen),
        constraints=_of_tables(task.constraints, {table.name for table in chosen}),
    )


def _changed(table: Table, known: Sequence[Table], rng: np.random.Generator) -> Table:
    rows, pooling = np.exp(rng.uniform(-_RANGE, _RANGE, 2))
    hot, busy = (known[int(rng.integers(len(known)))] if rng.random() < _BORROWED else table for _ in range(2))
    scaled = hot.scaled_rows(float(rows) * table.rows / hot.rows)
    return replace(table, rows=scaled.rows, access=scaled.access, pooling=busy.pooling * float(pooling))


def _of_tables(constraints: Constraints, names: set[str]) -> Constraints:
    """The constraints, limited to the named tables."""
    together, apart = (
        tuple(kept for group in groups if len(kept := tuple(name for name in group if name in names)) > 1)
        for groups in (constraints.colocate, constraints.apart)
    )
    return Constraints({name: of for name, of in constraints.tables.items() if name in names}, together, apart)


PHASES = 4


class PlacementBuffer:
    """Placements of training tasks with their costs from the world.

    Attributes:
        task_m: index of the placement's task.
        assignment_mu: device of each unit; `UNPLACED` in the padding.
        phases_mdp: ms of forward, forward communication, backward communication and backward; 0 in the padding.
    """

    def __init__(self, batch: PlacementBatch) -> None:
        self._tasks = batch.episodes
        self.task_m = torch.zeros(0, dtype=torch.int64)
        self.assignment_mu = torch.zeros(0, batch.units, dtype=torch.int64)
        self.phases_mdp = torch.zeros(0, batch.devices, PHASES)

    def __len__(self) -> int:
        return self.task_m.shape[0]

    def add(self, task_m: Tensor, assignment_mu: Tensor, costs: Sequence[Floats]) -> None:
        """Add placements with their `(devices, 4)` costs."""
        phases = np.zeros((len(costs), *self.phases_mdp.shape[1:]), dtype=np.float32)
        for row, device_phases in zip(phases, costs, strict=True):
            row[: len(device_phases)] = device_phases
        self.task_m = torch.cat([self.task_m, task_m])
        self.assignment_mu = torch.cat([self.assignment_mu, assignment_mu])
        self.phases_mdp = torch.cat([self.phases_mdp, torch.from_numpy(phases)])

    def tensors(self) -> dict[str, Tensor]:
        """The buffer's content, for a checkpoint."""
        return {f"buffer.{name}": getattr(self, name) for name in ("task_m", "assignment_mu", "phases_mdp")}

    def counts(self) -> dict[str, int]:
        """No counters: the tensors hold everything."""
        return {}

    def restore(self, tensors: Mapping[str, Tensor], counts: Mapping[str, Any]) -> None:
        """Replace the content by the result of an earlier `tensors`.

        Raises:
            KeyError, ValueError: the tensors are of other tasks or devices, or are no buffer.
        """
        largest = (self._tasks - 1, self.phases_mdp.shape[1] - 1, torch.finfo(torch.float32).max)
        bounds = zip((0, UNPLACED, 0), largest, strict=True)
        stored = {name: tensors[name] for name in self.tensors()}
        for (name, own), (low, high) in zip(self.tensors().items(), bounds, strict=True):
            check_tensor(name, stored[name], own, any_length=True)
            check_range(name, stored[name], low, high)
        if len({len(value) for value in stored.values()}) > 1:
            raise ValueError("the buffer's tensors have different lengths")
        vars(self).update({name.removeprefix("buffer."): value for name, value in stored.items()})


OUTPUTS = ("forward", "backward", "backward_communication", "overall")

_PHASE_OF_HEAD = (FORWARD, BACKWARD, BACKWARD_COMMUNICATION)
_SMALL = 0.1
"""Share of a head's mean cost; an error is divided by its target, but by no less than this."""


def targets(phases_edp: Tensor, objective: Objective) -> tuple[Tensor, Tensor]:
    """`(e, d, k)` costs of devices and `(e,)` overall costs, which the cost network learns to predict."""
    devices_edk = phases_edp[..., list(_PHASE_OF_HEAD)]
    if objective == "step":
        return devices_edk, phases_edp.amax(dim=1).sum(dim=1)
    return devices_edk, phases_edp.sum(dim=2).amax(dim=1)


def set_scale(cost: CostNetwork, batch: PlacementBatch, buffer: PlacementBuffer, objective: Objective) -> None:
    """Set the unit of each head to its mean cost in the buffer, so that the network's raw outputs are about 1."""
    devices_edk, overall_e = targets(buffer.phases_mdp, objective)
    exists_ed = batch.device_ed[buffer.task_m]
    mean_k = devices_edk.sum(dim=(0, 1)) / exists_ed.sum()
    mean = torch.cat([mean_k, overall_e.mean()[None]])
    cost.scale.copy_(torch.where(mean > 0, mean, 1.0))


class CostErrors:
    """Errors of the cost network on placements of a buffer. If tasks share tables, each distinct table is encoded only once."""

    def __init__(self, network: DreamShardNetwork, batch: PlacementBatch, buffer: PlacementBuffer) -> None:
        self._network, self._batch, self._buffer = network, batch, buffer
        features, index = torch.unique(batch.features_ebf.flatten(0, 1), dim=0, return_inverse=True)
        self._features, self._index_eb = features, index.view(batch.unit_eb.shape)

    def of(self, index: Tensor, *, relative: bool = True) -> list[Tensor]:
        """Predicted minus true costs of some placements, as a share of the true costs, or in ms as in the paper.

        Args:
            index: numbers of the placements in the buffer.
            relative: whether to divide errors by the true costs.

        Returns:
            Errors of the three heads, `(n,)` each for the n devices that hold something, as empty devices cost nothing; then `(e,)`
            errors of the overall head.
        """
        cost = self._network.cost
        sums_edh, held_ed = self._on_devices(self._buffer.task_m[index], self._buffer.assignment_mu[index])
        outputs = cost.device_costs(cost.hidden(sums_edh)), cost.overall_cost(sums_edh)
        true = targets(self._buffer.phases_mdp[index], self._network.objective)
        least = _SMALL * cost.scale[:HEADS], _SMALL * cost.scale[HEADS]
        error_edk, error_e = (
            (predicted - known) / torch.maximum(known, lowest) if relative else predicted - known
            for predicted, known, lowest in zip(outputs, true, least, strict=True)
        )
        return [*(error_edk[..., head][held_ed] for head in range(HEADS)), error_e]

    def _on_devices(self, task_e: Tensor, assignment_eu: Tensor) -> tuple[Tensor, Tensor]:
        """`(e, d, h)` sums of encodings on each device, and `(e, d)` whether the device holds something."""
        batch, network = self._batch, self._network
        if len(self._features) < task_e.numel() * batch.unit_eb.shape[1]:
            encoded_ebh = network.cost.encoder(network.standardised(self._features))[self._index_eb[task_e]]
        else:
            encoded_ebh = network.cost.encoder(network.standardised(batch.features_ebf[task_e]))
        device_eu = torch.nn.functional.pad(
            torch.where(assignment_eu < 0, batch.devices, assignment_eu), (0, 1), value=batch.devices
        )
        device_eb = torch.gather(device_eu, 1, batch.unit_eb[task_e])
        sums_edh = summed_at(device_eb, encoded_ebh, batch.devices)
        held_ed = summed_at(device_eb, torch.ones(*device_eb.shape, 1), batch.devices)[..., 0] > 0
        if batch.fixed_ecd.shape[1]:
            fixed_ech = network.cost.encoder(network.standardised(batch.fixed_ecf[task_e]))
            sums_edh = sums_edh + torch.einsum("ech,ecd->edh", fixed_ech, batch.fixed_ecd[task_e].float())
            held_ed = held_ed | batch.fixed_ecd[task_e].any(dim=1)
        return sums_edh, held_ed


def mean_errors(errors: list[Tensor]) -> dict[str, float]:
    """Mean absolute error by name of the output."""
    return {name: float(error.abs().mean()) for name, error in zip(OUTPUTS, errors, strict=True)}
