"""How far the cost network is off on placements with known costs: what it is trained on, and what is reported.

A device's targets are forward, backward and backward communication; a placement's target is the step time, or the papers' embedding
cost. Errors count relative to the target: tasks of ten tables and of a hundred matter alike.
"""

from __future__ import annotations

import torch
from torch import Tensor

from shardwright.search.dreamshard.buffer import Buffer
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


class CostErrors:
    """Errors of the cost network on placements of a buffer. Where tasks share tables, each is encoded once.

    Args:
        network: the networks.
        batch: the tasks.
        buffer: placements of these tasks.
        objective: what the overall cost is.
    """

    def __init__(self, network: DreamShardNetwork, batch: PlacementBatch, buffer: Buffer, objective: Objective) -> None:
        self._network, self._batch, self._buffer, self._objective = network, batch, buffer, objective
        features, index = torch.unique(batch.features_ebf.flatten(0, 1), dim=0, return_inverse=True)
        self._features, self._index_eb = features, index.view(batch.unit_eb.shape)

    def of(self, index: Tensor) -> list[Tensor]:
        """As `relative_errors`, for placements of the buffer."""
        task_e, assignment_eu = self._buffer.task_m[index], self._buffer.assignment_mu[index]
        batch, network = self._batch, self._network
        if len(self._features) < task_e.numel() * batch.unit_eb.shape[1]:
            encoded_ebh = network.cost.encoder(network.standardised(self._features))[self._index_eb[task_e]]
        else:
            encoded_ebh = network.cost.encoder(network.standardised(batch.features_ebf[task_e]))
        device_eu = torch.nn.functional.pad(
            torch.where(assignment_eu < 0, batch.devices, assignment_eu), (0, 1), value=batch.devices
        )
        device_eb = torch.gather(device_eu, 1, batch.unit_eb[task_e])
        sums_edh = _by_device(encoded_ebh, device_eb, batch.devices)
        held_ed = _by_device(torch.ones(*device_eb.shape, 1), device_eb, batch.devices)[..., 0] > 0
        if batch.fixed_ecd.shape[1]:
            fixed_ech = network.cost.encoder(network.standardised(batch.fixed_ecf[task_e]))
            sums_edh = sums_edh + torch.einsum("ech,ecd->edh", fixed_ech, batch.fixed_ecd[task_e].float())
            held_ed = held_ed | batch.fixed_ecd[task_e].any(dim=1)
        return relative_errors(network.cost, sums_edh, held_ed, self._buffer.phases_mdp[index], self._objective)


def relative_errors(
    cost: CostNetwork, sums_edh: Tensor, held_ed: Tensor, phases_edp: Tensor, objective: Objective
) -> list[Tensor]:
    """(predicted − true) / true.

    Args:
        cost: the network.
        sums_edh: sums of encodings over devices.
        held_ed: devices that hold something; empty ones cost nothing and are left out.
        phases_edp: true costs.
        objective: what the overall cost is.

    Returns:
        Errors of the three heads, `(n,)` each for the n devices that hold something, and `(e,)` of the overall head.
    """
    found_edk, overall_e = cost.device_costs(cost.hidden(sums_edh)), cost.overall_cost(sums_edh)
    true_edk, true_e = targets(phases_edp, objective)
    error_edk = (found_edk - true_edk) / torch.maximum(true_edk, _SMALL * cost.scale[:HEADS])
    heads = [error_edk[..., head][held_ed] for head in range(HEADS)]
    return [*heads, (overall_e - true_e) / torch.maximum(true_e, _SMALL * cost.scale[HEADS])]


def mean_errors(errors: list[Tensor]) -> dict[str, float]:
    """Mean absolute relative error by output."""
    return {name: float(error.abs().mean()) for name, error in zip(OUTPUTS, errors, strict=True)}


def _by_device(values_ebh: Tensor, device_eb: Tensor, devices: int) -> Tensor:
    """`(e, d, h)` sums of what lies on each device."""
    sums = values_ebh.new_zeros(device_eb.shape[0], devices + 1, values_ebh.shape[2])
    return sums.scatter_add(1, device_eb[..., None].expand_as(values_ebh), values_ebh)[:, :-1]
