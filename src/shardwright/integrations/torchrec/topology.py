"""TorchRec's topology as ours, and the cost model that goes with it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from torchrec.distributed.planner.types import PlannerError, PlannerErrorType
from torchrec.distributed.planner.types import Topology as TorchRecTopology

from shardwright.cost.analytic import MEMORY_BANDWIDTH, AnalyticModel
from shardwright.cost.choice import resolve_cost_model
from shardwright.cost.features import WorkArrays
from shardwright.cost.model import CostModel
from shardwright.cost.pricing import Floats, Pricing
from shardwright.cost.user_models import best_user_model, gpu_types
from shardwright.sharding.work import ShardWork
from shardwright.task.task import Task
from shardwright.task.topology import Topology

_PER_SECOND = 1000.0  # TorchRec's bandwidths are bytes per ms
_REFERENCE = "h100"


@dataclass(frozen=True)
class BandwidthModel:
    """The analytic model of a device of which only the memory bandwidth is known; see `cost.analytic`.

    Attributes:
        device: name of the device type.
        bandwidth: bytes per second of its memory.
    """

    device: str
    bandwidth: float

    @property
    def name(self) -> str:
        """As in "cuda at 963 GB/s/analytic"."""
        return f"{self.device} at {self.bandwidth / 1e9:.0f} GB/s/analytic"

    @property
    def pricing(self) -> Pricing:
        """The sums themselves, and one launch each way."""
        return AnalyticModel(_REFERENCE).pricing

    def encode(self, works: Sequence[ShardWork]) -> Floats:
        """`(n, 2)` forward and backward ms of each shard, launches aside."""
        return AnalyticModel(_REFERENCE).encode(works) * self._slower

    def encode_arrays(self, works: WorkArrays) -> Floats:
        """`(n, 2)` likewise, of n shards given as columns."""
        return AnalyticModel(_REFERENCE).encode_arrays(works) * self._slower

    @property
    def _slower(self) -> float:
        return MEMORY_BANDWIDTH[_REFERENCE] / self.bandwidth


def topology_of(given: TorchRecTopology, reserved: TorchRecTopology) -> Topology:
    """TorchRec's topology as ours: hosts are groups with fast links (`intra_group_size`), memory is what the reservation leaves.

    Where the last host has fewer ranks than the others, hosts count as parts of one size: 6 ranks on hosts of 4 are three parts of 2, so
    that some fast links are priced as slow ones.

    Args:
        given: devices and bandwidths.
        reserved: the same with the storage that is left for embeddings.

    Raises:
        PlannerError: a device has no memory left.
    """
    near = math.gcd(given.world_size, min(given.intra_group_size, given.world_size))
    return Topology(
        hosts=given.world_size // near,
        devices_per_host=near,
        device=given.compute_device,
        memory=device_memory(reserved, given.compute_device),
        intra_bandwidth=given.intra_host_bw * _PER_SECOND,
        inter_bandwidth=given.inter_host_bw * _PER_SECOND,
    )


def device_memory(reserved: TorchRecTopology, compute_device: str) -> tuple[int, ...]:
    """`(devices,)` bytes for embeddings on each device: HBM, or DDR where the devices are CPUs.

    Raises:
        PlannerError: a device has none.
    """
    tier = "ddr" if compute_device == "cpu" else "hbm"
    memory = tuple(int(getattr(device.storage, tier)) for device in reserved.devices)
    for rank, size in enumerate(memory):
        if size < 1:
            raise PlannerError(
                f"topology: rank {rank} has {size} bytes of {tier} for embeddings after the storage reservation; every device needs a "
                f"memory limit above 0: set {tier}_cap, or reserve less",
                PlannerErrorType.INSUFFICIENT_STORAGE,
            )
    return memory


def default_cost_model(given: TorchRecTopology, task: Task) -> CostModel:
    """The model that was calibrated here; else the bundled one for CPUs, and for all else bytes over the topology's memory bandwidth."""
    if given.compute_device == "cpu":
        return resolve_cost_model(None, replace(task, topology=replace(task.topology, device="cpu")))
    for device in gpu_types():
        own = best_user_model(replace(task, topology=replace(task.topology, device=device)))
        if own is not None:
            return own[1]
    return BandwidthModel(given.compute_device, given.hbm_mem_bw * _PER_SECOND)
