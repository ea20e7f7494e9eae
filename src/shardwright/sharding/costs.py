"""The predicted cost of a plan, device by device, and what a bound on it means. Pure data: how it is computed is others' business."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

PHASES = ("forward_ms", "forward_communication_ms", "backward_communication_ms", "backward_ms")

BoundScope: TypeAlias = Literal["blocks", "wide", "all", "links"]
BOUND_SCOPES: dict[str, str] = {
    "blocks": "over all plans but grids, replicas on some devices only, and blocks finer than 4 columns or a sixteenth of the rows",
    "wide": "over all plans but grids, replicas on some devices only, and blocks finer than 32 columns or a sixteenth of the rows",
    "all": "over all plans, tiers and replicas included",
    "links": "over all plans, tiers and replicas included, of the links alone",
}
"""Which plans a proven bound holds for, by scope; the proofs are in `search.bound` and `search.flexshard.bound`."""


@dataclass(frozen=True)
class DeviceCost:
    """What one device spends on its part of a plan, per step.

    Attributes:
        rank: the device.
        forward_ms: fused forward lookup.
        forward_communication_ms: collectives of the forward pass.
        backward_communication_ms: collectives of the backward pass.
        backward_ms: fused backward, optimizer included.
        memory_bytes: weights, optimizer state and buffers.
    """

    rank: int
    forward_ms: float
    forward_communication_ms: float
    backward_communication_ms: float
    backward_ms: float
    memory_bytes: int

    @property
    def compute_ms(self) -> float:
        """Forward and backward kernels."""
        return self.forward_ms + self.backward_ms

    @property
    def total_ms(self) -> float:
        """All four phases."""
        return _sum_of_phases(
            self.forward_ms, self.forward_communication_ms, self.backward_communication_ms, self.backward_ms
        )


@dataclass(frozen=True)
class PlanCost:
    """Predicted cost of a plan.

    Attributes:
        devices: `(devices,)` costs in order of rank.
    """

    devices: tuple[DeviceCost, ...]

    def __repr__(self) -> str:
        return f"<PlanCost: step {self.step_ms:.3f} ms, embedding cost {self.embedding_cost_ms:.3f} ms, {len(self.devices)} devices>"

    @property
    def step_ms(self) -> float:
        """Sum over the four phases of the maximum over devices: collectives wait for the slowest."""
        return _sum_of_phases(*(max(float(getattr(device, phase)) for device in self.devices) for phase in PHASES))

    @property
    def embedding_cost_ms(self) -> float:
        """Maximum over devices of the sum of the four phases, as the papers define it; never above `step_ms`."""
        return max(device.total_ms for device in self.devices)

    @property
    def compute_ms(self) -> float:
        """Slowest forward plus slowest backward kernel: the part of a step that runs without any link."""
        return max(device.forward_ms for device in self.devices) + max(device.backward_ms for device in self.devices)


def _sum_of_phases(
    forward: float, forward_communication: float, backward_communication: float, backward: float
) -> float:
    # One order for steps and for devices: a rounded sum never falls when a term grows, but it depends on the order. (From Python 3.12 on,
    # `sum` rounds in another way, which does not promise that.)
    return forward + forward_communication + backward_communication + backward
