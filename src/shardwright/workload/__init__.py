"""Sources of tables and tasks: synthetic pools, the papers' generators, public models, dlrm_datasets files, training logs."""

from shardwright.workload.dlrm_datasets import iter_tables, read_tables
from shardwright.workload.generators import (
    POOLS,
    PUBLIC_MODELS,
    paper_tasks,
    public_model,
    public_task,
    random_task,
    split_pool,
    table_pool,
)

__all__ = [
    "POOLS",
    "PUBLIC_MODELS",
    "iter_tables",
    "paper_tasks",
    "public_model",
    "public_task",
    "random_task",
    "read_tables",
    "split_pool",
    "table_pool",
]
