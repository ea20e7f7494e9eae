import numpy as np
import pytest

pytest.importorskip("torch", reason="the runtime needs torch")

import torch

from shardwright.runtime import ShardedEmbeddings
from shardwright.runtime.storage import UniformRows
from shardwright.sharding.plan import Plan
from shardwright.sharding.shard import Shard
from shardwright.task import Table, Task, Topology

TABLE = Table("t", 400, 16)


def test_weights_depend_on_table_id_and_seed_alone():
    rows = UniformRows(1)(TABLE, np.arange(400))
    some = np.array([399, 7, 7])
    assert (UniformRows(1)(TABLE, some) == rows[some]).all()
    assert (UniformRows(2)(TABLE, some) != rows[some]).any()
    assert (UniformRows(1)(Table("other", 400, 16), some) != rows[some]).any()


def test_weights_are_uniform_over_one_over_the_root_of_the_rows():
    rows = UniformRows()(TABLE, np.arange(400)) * 20
    assert rows.dtype == np.float32
    assert -1 <= rows.min() < -0.99
    assert 0.99 < rows.max() <= 1
    shares = np.histogram(rows, 10, (-1, 1))[0] / rows.size
    assert abs(shares - 0.1).max() < 0.01
    assert np.unique(rows).size > 0.99 * rows.size
    assert abs(np.corrcoef(rows[:, 0], rows[:, 1])[0, 1]) < 0.15


def test_kernels_of_all_widths_learn_at_once_as_they_do_alone():
    tables = [Table(f"t{dim}", 40, dim, 2.0) for dim in (4, 6, 8, 16)]  # FBGEMM does not take 6 columns
    task = Task(tables, Topology(), 4)
    plan = Plan(task, [Shard.whole(table, 0) for table in tables])
    together = ShardedEmbeddings(plan)
    alone = [ShardedEmbeddings(plan, tables=[table.name]) for table in tables]
    ids, lengths = torch.tensor([3, 39, 3, 0, 7, 3]), torch.tensor([3, 0, 1, 2])
    nothing = ids[:0], torch.zeros(4, dtype=torch.int64)
    for without in ("t8", None, "t6"):
        batch = {table.name: nothing if table.name == without else (ids, lengths) for table in tables}
        for modules in ([together], alone):
            outputs = [(table, output) for module in modules for table, output in module(batch).items()]
            gradients = [output.detach() + len(table) for table, output in outputs]
            torch.autograd.backward([output for _, output in outputs], gradients)
    state = together.state_dict()
    for module in alone:
        for name, table in module.state_dict().items():
            assert torch.equal(table.blocks[0].tensor, state[name].blocks[0].tensor)
