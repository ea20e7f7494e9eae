"""Checks that ranks make together: equal plans, valid ids and equal replicas."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict

import numpy as np
import torch

from shardwright.errors import InvalidInput, ShardwrightError
from shardwright.runtime.features import Feature, RankBatch
from shardwright.runtime.optimizers import Optimizer
from shardwright.runtime.placement import ALONE, Placement
from shardwright.runtime.process_groups import Ranks
from shardwright.runtime.storage import Storage
from shardwright.sharding.rank_map import RankMap

_CHUNK = 2**22  # elements


def usable_device(given: torch.device | str | None) -> torch.device:
    """The device that rows shall lie on; the CPU for None.

    Raises:
        InvalidInput: this process cannot use such a device.
    """
    try:
        device = torch.device("cpu" if given is None else given)
        usable = device.type != "meta" and torch.empty(0, device=device) is not None
    except (AssertionError, RuntimeError, TypeError):  # no CUDA in torch, no driver, no such GPU, or no such name
        usable = False
    if not usable:
        raise InvalidInput(
            f"device is {given}, must be one that this process can use: torch is {torch.__version__} and sees "
            f"{torch.cuda.device_count()} GPUs; leave device out for the CPU, or install torch for your GPU"
        )
    return device


def must_be_same_plan(
    ranks: Ranks,
    placement: Placement,
    maps: Mapping[str, RankMap],
    optimizer: Optimizer,
    features: Sequence[Feature],
    flags: Sequence[bool],
) -> None:
    """Raise an error on all ranks if they differ in plan, rank maps, optimizer options, features, or flags of the module.

    Raises:
        InvalidInput: they differ.
    """
    content = [description(placement), json.dumps([asdict(optimizer), *flags]).encode()]
    ranks.must_be_same(
        content, "a plan or options", "give all ranks the same plan file, optimizer options, fused, exact and debug"
    )
    hottest = [maps[part.table.name].hottest.tobytes() for part in placement.parts]
    names = [feature.name.encode() for feature in features]
    ranks.must_be_same(names, "names of features", "give all ranks the same features=, in the same order")
    ranks.must_be_same(hottest, "rank maps", "give all ranks the same rank map files")


def description(placement: Placement) -> bytes:
    """Return everything that decides the places of rows and the messages between ranks; equal for equal plans."""
    task = placement.plan.task
    parts = [[its.name, its.rows, columns, its.poolings, its.weighted] for its, columns in placement.parts]
    shards = [
        [shard.table, shard.rows, shard.columns, shard.devices, shard.row_order, shard.tier]
        for shard in placement.shards
    ]
    cluster = [task.topology.hosts, task.topology.devices_per_host]
    exchanges = [asdict(task.exchange), placement.exchanges.tolist()]
    return json.dumps([parts, placement.groups, shards, cluster, exchanges, task.optimizer]).encode()


def wrong_ids(batch: RankBatch, placement: Placement) -> str:
    """Return a message about ids of a batch that are out of range; empty if there are none."""
    for (table, _), ids in zip(placement.parts, batch.ids.split(batch.counts), strict=True):
        wrong = ids[(ids < 0) | (ids >= table.rows)]
        if wrong.numel():
            return (
                f"table '{table.name}' of {table.rows} rows: {wrong.numel()} ids are out of range, the first is {int(wrong[0])}; "
                f"ids must be from 0 to {table.rows - 1}"
            )
    return ""


def check_replicas(ranks: Ranks, placement: Placement, storage: Storage) -> None:
    """Raise an error on all ranks if replicas of a block differ in a bit of weights or optimizer state. All ranks must call this.

    Raises:
        ShardwrightError: replicas differ.
    """
    if difference := difference_of_replicas(ranks, placement, storage):
        raise ShardwrightError(f"{difference}; load all ranks from one checkpoint")


@torch.no_grad()
def difference_of_replicas(ranks: Ranks, placement: Placement, storage: Storage) -> str:
    """Say which replicas of a block differ in a bit of weights or optimizer state; empty if none do. All ranks must call this."""
    replicated = np.flatnonzero(placement.exchanges != ALONE).tolist()
    if not replicated:
        return ""
    mine = torch.tensor([_checksum(placement, storage, ranks.rank, index) for index in replicated])
    for index, sums in zip(replicated, ranks.gathered(mine).T.tolist(), strict=True):
        shard = placement.shards[index]
        first, *others = shard.devices
        if different := [rank for rank in others if sums[rank] != sums[first]]:
            rows = f"rows [{shard.rows[0]}, {shard.rows[1]})"
            return (
                f"table '{shard.table}': the replicas of {rows} on ranks {different} differ from those on rank {first}"
            )
    return ""


def _checksum(placement: Placement, storage: Storage, rank: int, index: int) -> int:
    """Return a checksum of a shard's rows: its bits as integers, weighted by their position and summed; 0 if the rank holds none."""
    if rank not in placement.shards[index].devices:
        return 0
    group, total = int(placement.group_of[placement.part_of_shard[index]]), 0
    for matrix in storage.matrices(group).values():
        flat = matrix[placement.slots_of_shard(index, rank)].reshape(-1)
        bits = flat.view(torch.int32 if flat.dtype == torch.float32 else torch.int16)
        for begin in range(0, bits.numel(), _CHUNK):
            part = bits[begin : begin + _CHUNK].to(torch.int64)
            weight = torch.arange(begin, begin + part.numel(), device=part.device) * 0x9E3779B97F4A7C1 + 1
            total = (total * 31 + int((part * weight).sum())) % 2**61
    return total
