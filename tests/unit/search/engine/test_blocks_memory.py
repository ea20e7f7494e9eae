"""The compiled search's copy of the memory account against the account."""

import numpy as np
import pytest

from shardwright.cost.published import PublishedModel
from shardwright.search.engine.blocks import Blocks, Tables
from shardwright.sharding import Shard, shard_bytes
from shardwright.task import OPTIMIZERS, Exchange, Table, Task, Topology


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("way", ["whole", "touched", "cheaper"])
def test_blocks_and_replicas_of_every_type_take_the_bytes_of_the_account(optimizer, way):
    kinds = [(dtype, pooled) for dtype in ("fp32", "fp16", "int8") for pooled in (True, False)]
    tables = [Table(f"{dtype} {pooled}", 800, 16, 3.0, pooled, dtype=dtype) for dtype, pooled in kinds]
    task = Task(tables, Topology(1, 4), 64, optimizer, exchange=Exchange(replica_gradients=way))
    cases = [
        (index, rows, dim, copies)
        for index in range(6)
        for rows, dim, copies in ((800, 16, 1), (200, 8, 1), (800, 16, 4))
    ]
    found = Tables(task, PublishedModel("h100")).costs(Blocks(*np.array(cases).T)).bytes
    shards = [
        Shard(tables[index].name, (0, rows), (0, dim), tuple(range(copies))) for index, rows, dim, copies in cases
    ]
    assert found.tolist() == [shard_bytes(task, shard) for shard in shards]
