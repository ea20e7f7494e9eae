"""Convert TorchRec's topology to ours, and choose the cost model that goes with it."""

from __future__ import annotations

import math
from dataclasses import replace

from torchrec.distributed.planner.types import PlannerError, PlannerErrorType
from torchrec.distributed.planner.types import Topology as TorchRecTopology

from shardwright.cost.choice import best_user_model, cost_model_for, gpu_types, resolve_cost_model
from shardwright.cost.files import bundled_models
from shardwright.cost.model import CostModel
from shardwright.cost.published import GPUS, PublishedModel
from shardwright.task.task import Task
from shardwright.task.topology import Topology

_PER_SECOND = 1000.0  # TorchRec's bandwidths are bytes per ms
_SAME = 0.01  # bandwidths that differ by less (relatively) are of one GPU


def topology_of(given: TorchRecTopology, reserved: TorchRecTopology) -> Topology:
    """Convert TorchRec's topology to ours: hosts are groups with fast links (`intra_group_size`), memory is what the reservation leaves.

    If the last host has fewer ranks than the others, hosts count as parts of one size: 6 ranks on hosts of 4 are three parts of 2. Some
    fast links are then priced as slow ones.

    Args:
        given: devices and bandwidths.
        reserved: the same topology with the storage that is left for embeddings.

    Raises:
        PlannerError: a device has no memory left.
    """
    per_host = math.gcd(given.world_size, min(given.intra_group_size, given.world_size))
    return Topology(
        hosts=given.world_size // per_host,
        devices_per_host=per_host,
        device=given.compute_device,
        memory=device_memory(reserved, given.compute_device),
        intra_bandwidth=given.intra_host_bw * _PER_SECOND,
        inter_bandwidth=given.inter_host_bw * _PER_SECOND,
    )


def device_memory(reserved: TorchRecTopology, compute_device: str) -> tuple[int, ...]:
    """`(devices,)` bytes for embeddings on each device: DDR if the devices are CPUs, else HBM.

    Raises:
        PlannerError: a device has no memory left.
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
    """The model that was calibrated here, else the one bundled for such devices, else the published one of that memory bandwidth.

    TorchRec does not name the GPU. It is this machine's, if there is one, or else the one that has this memory bandwidth.
    """
    if given.compute_device == "cpu":
        return resolve_cost_model(None, replace(task, topology=replace(task.topology, device="cpu")))
    here, bandwidth = gpu_types(), given.hbm_mem_bw * _PER_SECOND
    for device in here:
        own = best_user_model(replace(task, topology=replace(task.topology, device=device)))
        if own is not None:
            return own[1]
    same = [name for name, gpu in GPUS.items() if math.isclose(gpu.bandwidth, bandwidth, rel_tol=_SAME)]
    for device in here or same:
        if device in bundled_models():
            return cost_model_for(device, task.optimizer)
    return PublishedModel.of_bandwidth(given.compute_device, bandwidth, task.optimizer)
