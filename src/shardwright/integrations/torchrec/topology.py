"""Convert TorchRec's topology to ours, and choose the cost model that goes with it."""

from __future__ import annotations

import math
import reprlib
import warnings
from dataclasses import dataclass, field, replace
from numbers import Real
from pathlib import Path
from types import NoneType
from typing import Any

from torchrec.distributed.planner.constants import (
    BWD_COMPUTE_MULTIPLIER,
    DDR_MEM_BW,
    WEIGHTED_FEATURE_BWD_COMPUTE_MULTIPLIER,
)
from torchrec.distributed.planner.types import BasicCommsBandwidths, CollectiveType, PlannerError, PlannerErrorType
from torchrec.distributed.planner.types import Topology as TorchRecTopology

from shardwright.cost.choice import best_user_model, cost_model_for, gpu_types, resolve_cost_model
from shardwright.cost.files import bundled_models
from shardwright.cost.model import CostModel
from shardwright.cost.published import GPUS, PublishedModel
from shardwright.errors import InvalidInput
from shardwright.task.link_files import load_links
from shardwright.task.links import LINK_CLASSES, TORCHREC_CALLS, Collective, Links, LinkSpeed
from shardwright.task.quantities import listed
from shardwright.task.task import Task
from shardwright.task.topology import Topology

_PER_SECOND = 1000.0  # TorchRec's bandwidths are bytes per ms
_SAME = 0.01  # bandwidths that differ by less (relatively) are of one GPU


@dataclass(frozen=True)
class KnownLinks:
    """Properties of links that TorchRec's topology lacks.

    Attributes:
        links: speeds of single collectives; None for those that TorchRec's topology states.
        latencies_ms: fixed cost of a collective inside a host and between hosts; None for the usual ones.
    """

    links: Links = field(default_factory=Links)
    latencies_ms: tuple[float, float] | None = None

    @classmethod
    def of(
        cls, links: Links | str | Path | None, latencies_ms: tuple[float, float] | None, given: TorchRecTopology
    ) -> KnownLinks:
        """Links that a user states, or a file of `shardwright calibrate --links`, and latencies.

        Raises:
            InvalidInput: the file cannot be read, or is of another cluster, or an argument is of another type.
        """
        if latencies_ms is not None and len(listed(latencies_ms) or ()) != len(LINK_CLASSES):
            raise InvalidInput(
                f"latencies_ms is {reprlib.repr(latencies_ms)}, must be two numbers: ms inside a host and between hosts, as in (0.02, 0.05)"
            )
        if not isinstance(links, (Links, str, Path, NoneType)):
            raise InvalidInput(
                f"links is {reprlib.repr(links)}, must be shardwright.task.Links or a file of shardwright calibrate --links"
            )
        if isinstance(links, Links) or links is None:
            return cls(links or Links(), latencies_ms)
        measured = load_links(links)
        hosts, per_host = _hosts_of(given)
        # TorchRec does not name the GPU, so that of the file is taken.
        named = "cpu" not in (given.compute_device, measured.cluster.device)
        device = measured.cluster.device if named else given.compute_device
        measured.check_cluster(Topology(hosts, per_host, device, links=measured.links), str(links))
        return cls(measured.links, latencies_ms)


def topology_of(given: TorchRecTopology, reserved: TorchRecTopology, known: KnownLinks | None = None) -> Topology:
    """Convert TorchRec's topology: hosts are groups with fast links (`intra_group_size`), and reserved memory is left out.

    If the last host has fewer ranks than the others, hosts count as parts of one size: 6 ranks on hosts of 4 are three parts of 2. Some
    fast links are then priced as slow ones.

    Args:
        given: devices and bandwidths.
        reserved: the same topology with the storage that is left for embeddings.
        known: links and latencies, which TorchRec's topology cannot state.

    Raises:
        PlannerError: no device has memory left, or a bandwidth is no finite number above 0.
    """
    hosts, per_host = _hosts_of(given)
    known = known or KnownLinks()
    topology = Topology(
        hosts=hosts,
        devices_per_host=per_host,
        device=given.compute_device,
        memory=device_memory(reserved, given.compute_device),
        intra_bandwidth=_per_second(given.intra_host_bw, "intra_host_bw"),
        inter_bandwidth=_per_second(given.inter_host_bw, "inter_host_bw"),
    )
    if known.latencies_ms is not None:
        intra_ms, inter_ms = known.latencies_ms
        topology = replace(topology, intra_latency_ms=intra_ms, inter_latency_ms=inter_ms)
    speeds: dict[str, Any] = {name: _speeds(name, given, topology, known) for name in TORCHREC_CALLS}
    links = Links(**speeds, modules=known.links.modules)
    return topology if links == Links() else replace(topology, links=links)


def _per_second(bandwidth: object, name: str) -> float:
    """A bandwidth of TorchRec's topology in bytes per second.

    Raises:
        PlannerError: it is no finite number above 0.
    """
    if not isinstance(bandwidth, Real) or not 0 < float(bandwidth) < math.inf:
        raise PlannerError(
            f"topology: {name} is {bandwidth!r}, must be a finite number of bytes per ms above 0; leave it out for TorchRec's usual one",
            PlannerErrorType.INPUT_VALIDATION,
        )
    return float(bandwidth) * _PER_SECOND


_MULTIPLIERS: dict[str, float] = {
    "bwd_compute_multiplier": BWD_COMPUTE_MULTIPLIER,
    "weighted_feature_bwd_compute_multiplier": WEIGHTED_FEATURE_BWD_COMPUTE_MULTIPLIER,
    "uneven_sharding_perf_multiplier": 1.0,
}


def warn_of_multipliers(given: TorchRecTopology) -> None:
    """Warn once of changed fields of a topology that only TorchRec's estimates of times use."""
    usual = _MULTIPLIERS | ({"ddr_mem_bw": DDR_MEM_BW} if given.compute_device == "cpu" else {})
    changed = [f"{name} {getattr(given, name):g}" for name, value in usual.items() if getattr(given, name) != value]
    if changed:
        warnings.warn(
            f"topology: {', '.join(changed)}: used by TorchRec's estimates alone, without effect on Shardwright's cost model, which prices "
            "backward passes, weights and blocks itself; pass a measured one as cost_model",
            stacklevel=3,
        )


def _hosts_of(given: TorchRecTopology) -> tuple[int, int]:
    """Hosts, and devices of each."""
    per_host = math.gcd(given.world_size, min(given.intra_group_size, given.world_size))
    return given.world_size // per_host, per_host


def _speeds(
    collective: Collective, given: TorchRecTopology, topology: Topology, known: KnownLinks
) -> tuple[LinkSpeed | None, LinkSpeed | None]:
    """Known speeds of a collective, else those by TorchRec's bandwidths by collective; None if the topology's own count.

    `BasicCommsBandwidths` knows intra_host_bw and inter_host_bw alone, which the topology has. Other classes give bandwidths by collective.
    TorchRec divides a rank's whole buffer by a bandwidth. In all collectives but all-to-alls, the devices of a host share the bytes to
    other hosts, so each needs only its part of the bandwidth.
    """
    asked: list[LinkSpeed | None] = [None, None]
    bandwidths = given.comms_bandwidths
    if type(bandwidths) is not BasicCommsBandwidths:
        local = topology.devices_per_host
        for link, world in enumerate((local, topology.devices)):
            if world > (1, local)[link]:
                given_bw = bandwidths.get_bw(local, world, CollectiveType(collective))
                stated = _per_second(given_bw, f"get_bw({local}, {world}, {collective}) of {type(bandwidths).__name__}")
                speed = stated / local if link and collective != "all_to_all" else stated
                if not math.isclose(speed, topology.link_bandwidth[link]):
                    asked[link] = LinkSpeed(topology.link_latency_ms[link], speed)
    intra, inter = known.links.of(collective)
    return intra or asked[0], inter or asked[1]


def device_memory(reserved: TorchRecTopology, compute_device: str) -> tuple[int, ...]:
    """`(devices,)` bytes for embeddings on each device: DDR if the devices are CPUs, else HBM.

    A device without memory gets one byte, for our topologies have no smaller one. No shard fits there.

    Raises:
        PlannerError: no device has memory left.
    """
    tier = "ddr" if compute_device == "cpu" else "hbm"
    memory = [int(getattr(device.storage, tier)) for device in reserved.devices]
    if max(memory) < 1:
        raise PlannerError(
            f"topology: rank 0 has {memory[0]} bytes of {tier} for embeddings after the storage reservation, and no other rank has any: "
            f"set {tier}_cap, or reserve less",
            PlannerErrorType.INSUFFICIENT_STORAGE,
        )
    return tuple(max(size, 1) for size in memory)


def default_cost_model(given: TorchRecTopology, task: Task) -> CostModel:
    """The model that was calibrated here, else the one bundled for such devices, else the published one of that memory bandwidth.

    TorchRec does not name the GPU. It is this machine's, if there is one, or else the one that has this memory bandwidth.

    Raises:
        PlannerError: the GPU's memory has no bandwidth.
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
    return PublishedModel.of_bandwidth(
        given.compute_device, _per_second(given.hbm_mem_bw, "hbm_mem_bw"), task.optimizer
    )
