"""Small tasks that together exercise every rule that a strategy must keep."""

from __future__ import annotations

import numpy as np

from shardwright.sharding.memory import shard_bytes
from shardwright.sharding.shard import Shard
from shardwright.task.access import AccessProfile
from shardwright.task.constraints import Constraints, TableConstraint
from shardwright.task.table import Table
from shardwright.task.task import Task
from shardwright.task.topology import Topology

BATCH = 256


def tables(count: int, seed: int = 0) -> tuple[Table, ...]:
    """`count` varied tables; every seventh holds sequences, every fifth has fp16 weights."""
    rng = np.random.default_rng(seed)
    result = []
    for index in range(count):
        rows = int(10 ** rng.uniform(1, 5))
        result.append(
            Table(
                name=f"table_{index}",
                rows=rows,
                dim=int(rng.choice([4, 8, 16, 32, 64, 128])),
                pooling=float(np.round(10 ** rng.uniform(-0.3, 1.5), 3)),
                pooled=index % 7 != 6,
                access=AccessProfile.zipf(rows, float(rng.choice([0.0, 0.8, 1.2]))),
                dtype="fp16" if index % 5 == 4 else "fp32",
            )
        )
    return tuple(result)


def task_of(
    count: int, devices: int, *, hosts: int = 1, memory: object = "4 GB", constraints: Constraints | None = None
) -> Task:
    """A task of varied tables on `hosts` hosts with `devices` devices each."""
    topology = Topology(hosts=hosts, devices_per_host=devices, device="cpu", memory=memory)  # type: ignore[arg-type]
    return Task(tables(count), topology, BATCH, constraints=constraints or Constraints())


def tight_task() -> Task:
    """A task of eight equal tables on four devices; each device holds exactly two of them, to the byte."""
    same = [Table(f"table_{index}", rows=1000, dim=16, pooling=4.0) for index in range(8)]
    roomy = Task(same, Topology(devices_per_host=4), BATCH)
    exactly_two = 2 * shard_bytes(roomy, Shard.whole(same[0], 0))
    return Task(same, Topology(devices_per_host=4, memory=exactly_two), BATCH)


def unequal_memory_task() -> Task:
    """A task on three devices of unequal memory; most tables fit only on the larger ones."""
    return task_of(9, 3, memory=["40 MB", "8 MB", "400 MB"])


def constrained_task() -> Task:
    """A task with pinned, colocated, separated and cut tables together."""
    names = [table.name for table in tables(10)]
    return task_of(
        10,
        4,
        constraints=Constraints(
            tables={
                names[0]: TableConstraint(devices=(1, 2)),
                names[1]: TableConstraint(sharding_types=("column_wise",), max_shards=2),
                names[2]: TableConstraint(sharding_types=("row_wise",)),
                names[3]: TableConstraint(sharding_types=("table_wise", "data_parallel")),
                names[6]: TableConstraint(sharding_types=("table_wise", "column_wise"), equal_columns=True),
            },
            colocate=((names[4], names[5]),),
            apart=((names[7], names[8], names[9]),),
        ),
    )


def constrained_hosts_task() -> Task:
    """A task on two hosts, with tables whose few blocks must lie on both hosts, on one host, or be wide."""
    names = [table.name for table in tables(8)]
    limits = {
        names[0]: TableConstraint(sharding_types=("row_wise",), max_shards=2),
        names[2]: TableConstraint(sharding_types=("column_wise", "table_wise"), min_columns=8),
        names[3]: TableConstraint(sharding_types=("row_wise", "table_wise"), devices=(1, 2)),
        names[6]: TableConstraint(sharding_types=("table_row_wise",)),
    }
    return task_of(8, 2, hosts=2, constraints=Constraints(limits))


def impossible_task() -> Task:
    """A task that cannot be placed: three equal tables that may not be cut, on two devices that hold one and a half each."""
    same = [Table(f"table_{index}", rows=1000, dim=16) for index in range(3)]
    roomy = Task(same, Topology(devices_per_host=2), BATCH)
    one_and_a_half = 3 * shard_bytes(roomy, Shard.whole(same[0], 0)) // 2
    whole_only = {table.name: TableConstraint(sharding_types=("table_wise",)) for table in same}
    return Task(same, Topology(devices_per_host=2, memory=one_and_a_half), BATCH, constraints=Constraints(whole_only))


def conformance_tasks() -> dict[str, Task]:
    """All feasible tasks of the suite, by their purpose."""
    return {
        "several tables on four devices": task_of(12, 4),
        "two hosts": task_of(12, 2, hosts=2),
        "a single table": task_of(1, 4),
        "a single device": task_of(8, 1),
        "more devices than tables": task_of(3, 8),
        "memory that fits to the byte": tight_task(),
        "devices of unequal memory": unequal_memory_task(),
        "constraints of every kind": constrained_task(),
        "constraints on two hosts": constrained_hosts_task(),
    }
