"""Training the cost network on placements with known costs, and how far it is off.

A device's targets are forward, backward and backward communication; a placement's target is the step time, or the papers' embedding
cost. Errors count relative to the target: tasks of ten tables and of a hundred matter alike.
"""

from __future__ import annotations

import torch
from torch import Tensor

from shardwright.search.dreamshard.buffer import Buffer, occupied, rows_of
from shardwright.search.dreamshard.mdp import Encoded, encode
from shardwright.search.dreamshard.network import CostNetwork, DreamShardNetwork
from shardwright.search.dreamshard.weights import HEADS, Objective
from shardwright.search.learned.environment import PlacementBatch
from shardwright.search.learned.worlds import BACKWARD, BACKWARD_COMMUNICATION, FORWARD

OUTPUTS = ("forward", "backward", "backward_communication", "overall")

_PHASE_OF_HEAD = (FORWARD, BACKWARD, BACKWARD_COMMUNICATION)
_SMALL = 0.1
"""Of a head's mean cost: targets below are taken for so much when errors are divided by them."""


def targets(phases_edp: Tensor, objective: Objective) -> tuple[Tensor, Tensor]:
    """`(e, d, k)` costs of devices and `(e,)` overall costs."""
    devices_edk = phases_edp[..., list(_PHASE_OF_HEAD)]
    if objective == "step":
        return devices_edk, phases_edp.amax(dim=1).sum(dim=1)
    return devices_edk, phases_edp.sum(dim=2).amax(dim=1)


def set_scale(cost: CostNetwork, batch: PlacementBatch, buffer: Buffer, objective: Objective) -> None:
    """Set the unit of each head to the mean cost in the buffer, which makes the network's own numbers about 1."""
    devices_edk, overall_e = targets(buffer.phases_mdp, objective)
    exists_ed = batch.device_ed[buffer.task_m]
    mean_k = devices_edk.sum(dim=(0, 1)) / exists_ed.sum()
    found = torch.cat([mean_k, overall_e.mean()[None]])
    cost.scale.copy_(torch.where(found > 0, found, 1.0))


class CostTrainer:
    """Updates of the cost network.

    Args:
        network: its cost part is trained.
        batch: all training tasks.
        buffer: placements to draw from.
        objective: what the overall cost is.
        optimizer: over the cost part's weights.
    """

    def __init__(
        self,
        network: DreamShardNetwork,
        batch: PlacementBatch,
        buffer: Buffer,
        objective: Objective,
        optimizer: torch.optim.Optimizer,
    ) -> None:
        self._network, self._batch, self._buffer = network, batch, buffer
        self._objective, self._optimizer = objective, optimizer

    def update(self, size: int, generator: torch.Generator) -> None:
        """One step on `size` placements drawn from the buffer."""
        index = torch.randint(len(self._buffer), (size,), generator=generator)
        errors = self.errors(index)
        loss = sum((error**2).mean() for error in errors)
        assert isinstance(loss, Tensor)
        self._optimizer.zero_grad()
        loss.backward()
        self._optimizer.step()

    def errors(self, index: Tensor) -> list[Tensor]:
        """Relative errors of the three heads on devices that hold something, and of the overall head, for placements of the buffer."""
        batch = rows_of(self._batch, self._buffer.task_m[index])
        assignment_eu = self._buffer.assignment_mu[index]
        return relative_errors(
            self._network, encode(self._network, batch), assignment_eu, self._buffer.phases_mdp[index], self._objective
        )


def relative_errors(
    network: DreamShardNetwork, encoded: Encoded, assignment_eu: Tensor, phases_edp: Tensor, objective: Objective
) -> list[Tensor]:
    """(predicted − true) / true of the three heads, `(n,)` for the devices that hold something, and `(e,)` of the overall head."""
    cost = network.cost
    sums_edh = encoded.sums(assignment_eu)
    found_edk, overall_e = cost.device_costs(cost.hidden(sums_edh)), cost.overall_cost(sums_edh)
    true_edk, true_e = targets(phases_edp, objective)
    held_ed = occupied(encoded.batch, assignment_eu)
    floor = _SMALL * cost.scale
    heads = [
        ((found_edk[..., k] - true_edk[..., k]) / true_edk[..., k].clamp(min=float(floor[k])))[held_ed]
        for k in range(HEADS)
    ]
    return [*heads, (overall_e - true_e) / true_e.clamp(min=float(floor[HEADS]))]


def mean_errors(errors: list[Tensor]) -> dict[str, float]:
    """Mean absolute relative error by output."""
    return {name: float(error.abs().mean()) for name, error in zip(OUTPUTS, errors, strict=True)}
