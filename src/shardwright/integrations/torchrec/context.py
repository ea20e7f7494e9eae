"""A hash of what a planner is given: equal in every process, so that a saved plan can be told to be for the same inputs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from enum import Enum
from typing import Any

from torchrec.distributed.planner.types import ParameterConstraints, StorageReservation
from torchrec.distributed.planner.types import Topology as TorchRecTopology

from shardwright.integrations.torchrec.problem import TorchRecProblem

_ROUNDING = 100 * 1024**3  # bytes; as in TorchRec, drivers that leave some GB more or less make no other context


def context_of(
    problem: TorchRecProblem,
    storage_reservation: StorageReservation,
    constraints: Mapping[str, ParameterConstraints] | None,
) -> list[Any]:
    """Topology, batch size, tables with their choices, reservation and constraints, as text and numbers.

    What TorchRec's own hash covers, with the tables in place of its enumerated search space.
    """
    tables = [
        [
            place.fqn,
            tuple(place.found.tensor.shape),
            str(place.found.tensor.dtype),
            place.found.pooled,
            {kind: list(kernels) for kind, kernels in place.kernels.items()},
        ]
        for place in problem.places.values()
    ]
    return [
        _topology(problem.topology),
        problem.batch_size,
        tables,
        type(storage_reservation).__name__,
        _topology(problem.reserved),
        [[name, _plain(given)] for name, given in sorted((constraints or {}).items())],
    ]


def _topology(topology: TorchRecTopology) -> list[Any]:
    storage = [
        [round(size / _ROUNDING) for size in (device.storage.hbm, device.storage.ddr, device.storage.ssd)]
        for device in topology.devices
    ]
    return [
        topology.world_size,
        topology.compute_device,
        topology.local_world_size,
        topology.intra_group_size,
        storage,
        [topology.hbm_mem_bw, topology.ddr_mem_bw, topology.ssd_mem_bw, topology.hbm_to_ddr_mem_bw],
        [topology.intra_host_bw, topology.inter_host_bw],
        [topology.bwd_compute_multiplier, topology.weighted_feature_bwd_compute_multiplier],
        topology.uneven_sharding_perf_multiplier,
    ]


def _plain(value: Any) -> Any:
    """Text and numbers of a value: of an object with fields these, of other objects their type, never an address."""
    if isinstance(value, Enum):
        return f"{type(value).__name__}.{value.name}"
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if hasattr(value, "__dataclass_fields__"):
        return [[field.name, _plain(getattr(value, field.name))] for field in fields(value)]
    return type(value).__qualname__
