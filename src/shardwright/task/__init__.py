"""The placement problem: tables, access profiles, topology, constraints, task files."""

from shardwright.task.access import AccessProfile
from shardwright.task.constraints import SHARDING_TYPES, Constraints, TableConstraint
from shardwright.task.links import Links, LinkSpeed
from shardwright.task.sharding_groups import ShardingGroups
from shardwright.task.table import DTYPE_BYTES, Table
from shardwright.task.task import OPTIMIZERS, Task
from shardwright.task.topology import PRESETS, DenseTime, Exchange, Topology

__all__ = [
    "DTYPE_BYTES",
    "OPTIMIZERS",
    "PRESETS",
    "SHARDING_TYPES",
    "AccessProfile",
    "Constraints",
    "DenseTime",
    "Exchange",
    "LinkSpeed",
    "Links",
    "ShardingGroups",
    "Table",
    "TableConstraint",
    "Task",
    "Topology",
]
