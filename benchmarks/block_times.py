"""Block costs of a table: why a gap may be wider than any search can close.

A block's time here is what it adds to an otherwise empty device: forward and backward kernels beyond an empty launch, and its own
bytes over the links in both passes, without latency. A *way* cuts a table into equal blocks: the whole table; columns, halved down to
multiples of 4; 2, 4, 8, … row blocks, up to the number of devices (at least 16); a replica on every device. Constraints and the memory
of the roomiest device limit the ways; replicas must fit the smallest device too. Two facts about a task follow:

- A table *binds* if the block of its finest way takes at least half (`HALF`) of the step. A device then holds at most one such block,
  whatever the search does.
- A table *is costly to cut* if the block of its cheapest way, by the sum over its blocks, takes at least half of the step. The bound
  charges about that sum, but most balanced plans must cut the table further, and pay for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from shardwright.cost import CostModel
from shardwright.cost.score import communication_ms, served_bytes
from shardwright.sharding.memory import shard_bytes
from shardwright.sharding.shard import Shard
from shardwright.sharding.work import ShardWork, shard_work
from shardwright.task import Table, Task

Floats = npt.NDArray[np.float64]

HALF = 0.5  # of the step
_COLUMNS = 4  # a narrower block is not aligned to 16 bytes
_ROW_PARTS = 16
_ROWS_TO_CUT = 64 * _ROW_PARTS  # tables with fewer rows are cut into at most one block a device


@dataclass(frozen=True)
class Heaviest:
    """The table with the heaviest block.

    Attributes:
        table: name of the table.
        ms: time that the block adds to an empty device.
    """

    table: str
    ms: float


def block_ms(task: Task, shards: Sequence[Shard], model: CostModel) -> Floats:
    """Return `(n,)` ms that each shard adds to an empty device."""
    works = [shard_work(task, shard) for shard in shards]
    latents = model.encode(works)
    price = model.pricing.price
    kernels = price(latents).sum(axis=1) - price(np.zeros(latents.shape[1])).sum()
    times: Floats = kernels + [_links_ms(task, shard, work) for shard, work in zip(shards, works, strict=True)]
    return times


def heaviest_blocks(task: Task, model: CostModel) -> tuple[Heaviest, Heaviest]:
    """Return the heaviest block over all tables' finest ways, and the heaviest over their cheapest ways."""
    ways = [(index, shard, count) for index, table in enumerate(task.tables) for shard, count in _ways(task, table)]
    times = block_ms(task, [shard for _, shard, _ in ways], model)
    finest, cheapest = np.full((2, len(task.tables)), np.inf)
    least = np.full(len(task.tables), np.inf)
    for (index, _, count), ms in zip(ways, times, strict=True):
        finest[index] = min(finest[index], ms)
        if count * ms < least[index]:
            least[index], cheapest[index] = count * ms, ms
    return _heaviest(task, finest), _heaviest(task, cheapest)


def _heaviest(task: Task, ms: Floats) -> Heaviest:
    known = np.where(np.isfinite(ms), ms, 0.0)  # a table without any way counts as 0
    return Heaviest(task.tables[int(known.argmax())].name, float(known.max()))


def _ways(task: Task, table: Table) -> list[tuple[Shard, int]]:
    """Return a block of every allowed way of a table, on device 0, and the number of blocks of the way."""
    limits, devices = task.constraints.of(table.name), task.topology.devices
    whole = Shard.whole(table, 0)
    most = limits.max_shards or table.rows * table.dim
    ways = [("table_wise", whole, 1)]
    width, count = table.dim // 2, 2
    while width >= _COLUMNS and width % _COLUMNS == 0:
        ways.append(("column_wise", replace(whole, columns=(0, width)), count))
        width, count = width // 2, 2 * count
    finest = max(_ROW_PARTS, devices) if table.rows >= _ROWS_TO_CUT else min(devices, table.rows)
    counts = sorted({finest, *(2**power for power in range(1, finest.bit_length()))} - {1})
    ways += [("row_wise", replace(whole, rows=(0, -(-table.rows // count))), count) for count in counts]
    if devices > 1:
        ways.append(("data_parallel", replace(whole, devices=tuple(range(devices))), devices))
    return [
        (shard, count)
        for kind, shard, count in ways
        if limits.allows(kind) and (count <= most or kind == "data_parallel") and _fits(task, shard)
    ]


def _fits(task: Task, shard: Shard) -> bool:
    room = task.topology.memory_bytes
    return shard_bytes(task, shard) <= (max(room) if len(shard.devices) == 1 else min(room))


def _links_ms(task: Task, shard: Shard, work: ShardWork) -> float:
    """Return the ms of both passes on the links of the first holder, without latency; see `shardwright.cost.score`."""
    topology = task.topology
    if len(shard.devices) > 1:
        free = replace(task, topology=replace(topology, intra_latency_ms=0.0, inter_latency_ms=0.0))
        return sum(float(times[shard.devices[0]]) for times in communication_ms(free, [shard]))
    values, ids = served_bytes(task, work)
    peers = (topology.devices_per_host - 1, topology.devices - topology.devices_per_host)
    slower = max(count / width for count, width in zip(peers, topology.link_bandwidth, strict=True))
    return float(slower * (max(values, ids) + values) / topology.devices * 1e3)
