"""Worlds and tasks whose best plans are known."""

from dataclasses import dataclass, field

import numpy as np

from shardwright.learned.arrays import PlacementArrays
from shardwright.task import Constraints, Table, TableConstraint, Task, Topology


def equal_tables(count: int, devices: int, memory: object = "4 GB") -> Task:
    """Tables that differ in their pooling factors alone, and stay whole."""
    tables = [Table(f"t{i}", rows=1000, dim=16, pooling=1.0 + i) for i in range(count)]
    whole = {table.name: TableConstraint(("table_wise",)) for table in tables}
    topology = Topology(devices_per_host=devices, device="cpu", memory=memory)
    return Task(tables, topology, 64, constraints=Constraints(whole))


@dataclass
class LoadWorld:
    """Forward time is the sum of the pooling factors on a device; nothing else takes time."""

    asked: list[tuple[int, ...]] = field(default_factory=list)
    result: float | None = None
    name: str = "load"

    def costs(self, placed):
        costs = []
        for arrays, assignment in placed:
            self.asked.append(tuple(assignment.tolist()))
            phases = np.zeros((arrays.devices, 4))
            np.add.at(phases[:, 0], assignment, pooling_of(arrays))
            costs.append(phases if self.result is None else np.full_like(phases, self.result))
        return costs


def pooling_of(arrays: PlacementArrays) -> np.ndarray:
    tables = arrays.task.table_by_name
    return np.array([sum(tables[name].pooling for name in unit.tables) for unit in arrays.units.free])
