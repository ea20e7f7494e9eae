"""Random tasks and cost models that NeuroShard's search and its oracle are compared on."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from shardwright.cost.neuroshard import CommunicationNetworks
from shardwright.search.units import take_apart
from shardwright.sharding.memory import memory_account, shard_bytes
from shardwright.task import Constraints, Table, TableConstraint, Task, Topology
from shardwright.testing.model import SimpleCostModel
from shardwright.testing.tasks import tables


def random_task(seed: int, count: int, devices: int, *, hosts: int = 1, room: float | None = None) -> Task:
    """Varied tables, some of them twice.

    Args:
        seed: of the draw.
        count: tables.
        devices: on every host.
        hosts: hosts.
        room: memory of a device, as a multiple of an even spread's bytes; None for plenty.
    """
    rng = np.random.default_rng(seed)
    pool = tables(40, seed)
    drawn = [replace(pool[i], name=f"t{n}") for n, i in enumerate(rng.integers(0, 2 * count // 3, count))]
    task = Task(drawn, Topology(hosts=hosts, devices_per_host=devices), batch_size=256)
    return task if room is None else replace(task, topology=replace(task.topology, memory=_even_share(task, room)))


def _even_share(task: Task, room: float) -> int:
    units = take_apart(task)
    need = memory_account(task, units.fixed).total.sum() + sum(unit.bytes for unit in units.free)
    largest = max(shard_bytes(task, block) for unit in units.free for block in unit.blocks)
    return max(int(room * need / task.topology.devices), largest // 2)


def constrained(task: Task, seed: int) -> Task:
    """The task with constraints of every kind on random tables."""
    names = np.random.default_rng(seed).permutation([table.name for table in task.tables]).tolist()
    limits = {
        names[0]: TableConstraint(devices=(0, task.topology.devices - 1)),
        names[1]: TableConstraint(sharding_types=("column_wise",), max_shards=3),
        names[2]: TableConstraint(sharding_types=("row_wise",)),
        names[3]: TableConstraint(sharding_types=("table_wise",)),
        names[4]: TableConstraint(max_shards=2),
        names[5]: TableConstraint(sharding_types=("data_parallel",)),
    }
    wide = [table for table in task.tables if table.name != names[1] or table.dim >= 8]
    if len(wide) < len(task.tables):  # a table that has to be cut into columns needs some
        task = replace(task, tables=tuple(replace(t, dim=32) if t.name == names[1] else t for t in task.tables))
    return replace(task, constraints=Constraints(limits, ((names[6], names[7]),), ((names[8], names[4], names[2]),)))


def equal_tables(count: int, devices: int, dim: int = 32) -> Task:
    """Nothing but ties."""
    same = [Table(f"t{i}", rows=1000, dim=dim, pooling=4.0) for i in range(count)]
    return Task(same, Topology(devices_per_host=devices), batch_size=256)


@dataclass(frozen=True)
class FakeNetworks:
    """Communication that rises with the largest dim sum and with late starts, not the same on every device."""

    def forward_ms(self, dims: np.ndarray, delays: np.ndarray, batch_size: int) -> np.ndarray:
        late = delays.max(axis=-1, keepdims=True) - delays
        return 1e-6 * batch_size * (dims.max(axis=-1, keepdims=True) + dims) + 0.7 * late

    embedding_costs = CommunicationNetworks.embedding_costs

    def backward_ms(self, dims: np.ndarray, batch_size: int) -> np.ndarray:
        return 2e-6 * batch_size * np.sqrt(dims) * dims.mean(axis=-1, keepdims=True)


@dataclass(frozen=True)
class FakeNeuroShardModel(SimpleCostModel):
    """A cost model that brings communication networks along."""

    name: str = "testing/neuroshard"
    communication: FakeNetworks = FakeNetworks()
