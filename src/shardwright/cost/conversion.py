"""The time of codecs, which convert values and gradients for the wire, as a part of kernel time.

TorchRec's `qcomm_codecs_registry` converts the values of collectives by separate kernels. The holder of a block encodes its fp32 outputs
and decodes the gradients of all samples; every device decodes the outputs and encodes the gradients of its own samples. A conversion reads
and writes 4 + v bytes for a value that takes v bytes on the wire, at a share of the bandwidth of the device's memory. The part of a holder
is linear in its blocks. The part of a device's own samples is the same for every plan, so it counts once a device; it includes tables that
a plan replicates, whose outputs do not travel.

Outputs that leave the lookup kernel in the wire's type (TorchRec's `output_dtype`) need no conversion. `Exchange.conversion` chooses
between the two. Devices whose memory bandwidth is unknown, CPUs among them, have no price of conversion.

Source: meta-pytorch/torchrec#4696 (bf16) and #4690 (8-bit rows), measured on H100s.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from shardwright.arrays import Floats
from shardwright.cost.features import WorkArrays
from shardwright.cost.model import CostModel, Pricing, TaskModel
from shardwright.cost.published import GPUS
from shardwright.task.table import Table
from shardwright.task.task import Task
from shardwright.task.topology import VALUE_BYTES, WireType

_SHARES = {1: (0.22, 0.67), 2: (0.37, 0.84)}
"""Shares of the memory's bandwidth at which values of so many bytes on the wire are encoded and decoded."""
_FULL = VALUE_BYTES["fp32"]


def conversion_ms(device: str, wire: WireType) -> tuple[float, float]:
    """Ms that a device of a known type takes to encode a value for the wire, and to decode it; 0 for others, and for fp32."""
    size = VALUE_BYTES[wire]
    if device not in GPUS or size == _FULL:
        return 0.0, 0.0
    encoding, decoding = (1e3 * (_FULL + size) / share / GPUS[device].bandwidth for share in _SHARES[size])
    return encoding, decoding


def converts(task: Task) -> bool:
    """Whether codecs of the task's exchange take time that is known."""
    exchange, topology = task.exchange, task.topology
    by_codec = exchange.conversion == "codec" and exchange.as_torchrec and topology.devices > 1
    return by_codec and any(sum(conversion_ms(topology.device, wire)) for wire in (exchange.values, exchange.gradients))


@dataclass(frozen=True, eq=False)
class ConvertingModel(TaskModel):
    """A cost model that adds the time of codecs to the kernels of a base model.

    Attributes:
        base: the cost model of the kernels.
        task: the task, whose exchange states the types on the wire.
    """

    base: CostModel
    task: Task

    @property
    def superadditive(self) -> CostModel | None:
        """The base model's; it counts no codecs, and so never predicts more."""
        return self.base.superadditive

    @cached_property
    def pricing(self) -> Pricing:
        """The base model's pricing plus the codecs; the values of a device's own samples are converted once, not once per call."""
        encoding, decoding = self._ms
        own = sum(map(_outputs, self.task.tables)) * self.task.batch_size / self.task.topology.devices
        return self.priced(np.ones(2), own * np.array([decoding[0], encoding[1]]))

    @property
    def _ms(self) -> Floats:
        """`(2, 2)` ms of a value: encoding and decoding of values and of gradients."""
        exchange, device = self.task.exchange, self.task.topology.device
        return np.array([conversion_ms(device, wire) for wire in (exchange.values, exchange.gradients)]).T

    def added(self, works: WorkArrays, latents: Floats) -> Floats:
        """`(n, 2)` forward and backward ms to convert the outputs of n shards and their gradients; `latents` have no effect."""
        encoding, decoding = self._ms
        travels = works.samples >= self.task.batch_size  # replicas serve their own samples
        added: Floats = np.outer(works.outputs * works.dim * travels, [encoding[0], decoding[1]])
        return added


def _outputs(table: Table) -> float:
    """Values that a sample gets from a table."""
    rows = len(table.poolings) if table.pooled else table.pooling
    return rows * table.dim
