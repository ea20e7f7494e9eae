"""Additions of rows of pieces to fused calls."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardwright.cost.blocks import Added, Blocks, Tables, priced
from shardwright.cost.published import PublishedModel
from shardwright.sharding import Shard, shard_bytes, shard_work
from shardwright.task import OPTIMIZERS, AccessProfile, Exchange, Table, Task, Topology
from shardwright.testing.model import SimpleCostModel

CALLS = 3


@given(st.integers(0, 2**31))
def test_rows_keep_their_parts_in_any_order(seed):
    rng = np.random.default_rng(seed)
    call, vectors = rng.integers(0, CALLS, 12), rng.normal(0, 1, (12, 3))
    groups = [rng.choice(12, rng.integers(1, 5), replace=False) for _ in range(6)]
    added = Added.of_groups(call, vectors, groups)
    prices = rng.normal(0, 1, (CALLS, 3))
    by_block = priced(vectors, call, prices)
    np.testing.assert_allclose(by_block, [vectors[i] @ prices[call[i]] for i in range(12)])
    of_rows = np.array([by_block[rows].sum() for rows in groups])
    np.testing.assert_allclose(added.priced(prices), of_rows)
    order = rng.integers(0, 6, 9)
    np.testing.assert_allclose(added.take(order).priced(prices), of_rows[order])
    both = added.then(Added.of(call, vectors))
    np.testing.assert_allclose(both.priced(prices), np.concatenate([of_rows, by_block]))
    for row in range(6):  # one part for each call
        kinds = added.call[added.part[row] : added.part[row + 1]].tolist()
        assert sorted(kinds) == sorted(set(kinds))


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("way", ["whole", "touched", "cheaper"])
def test_blocks_and_replicas_of_every_type_take_the_bytes_of_the_account(optimizer, way):
    kinds = [(dtype, pooled) for dtype in ("fp32", "fp16", "int8") for pooled in (True, False)]
    kinds += [("fp32", True), ("fp32", False)]
    poolings = [[3.0]] * 6 + [[1.0, 2.0]] * 2
    tables = [
        Table(f"{dtype} {pooled} {len(each)}", 800, 16, each, pooled, dtype=dtype)
        for (dtype, pooled), each in zip(kinds, poolings, strict=True)
    ]
    task = Task(tables, Topology(1, 4), 64, optimizer, exchange=Exchange(replica_gradients=way))
    cases = [
        (index, rows, dim, copies)
        for index in range(len(tables))
        for rows, dim, copies in ((800, 16, 1), (200, 8, 1), (800, 16, 4))
    ]
    block_bytes = Tables(task, PublishedModel("h100")).costs(Blocks(*np.array(cases).T)).bytes
    shards = [
        Shard(tables[index].name, (0, rows), (0, dim), tuple(range(copies))) for index, rows, dim, copies in cases
    ]
    assert block_bytes.tolist() == [shard_bytes(task, shard) for shard in shards]


def test_row_blocks_of_ordered_ids_cost_what_their_shards_do():
    access = AccessProfile.zipf(8000, 1.1)
    shares = [0.5, 0.2, 0.2, 0.05, 0.05, 0, 0, 0]
    tables = [Table(f"t{i}", 8000, 16, 30.0, bool(i % 2), access, id_shares=shares if i < 2 else ()) for i in range(4)]
    task, model = Task(tables, Topology(1, 4), 64), SimpleCostModel()
    cases = [(index, rows, 16, 1) for index in range(4) for rows in (8000, 4000, 2000, 700)]
    costs = Tables(task, model).costs(Blocks(*np.array(cases).T))
    shards = [Shard(tables[index].name, (0, rows), (0, 16), (0,)) for index, rows, _, _ in cases]
    latents = model.encode([shard_work(task, shard) for shard in shards])
    into = np.hstack([model.pricing.hidden.T, model.pricing.linear.T])
    np.testing.assert_allclose(costs.vectors, latents @ into, rtol=1e-9)
    assert costs.bytes.tolist() == [shard_bytes(task, shard) for shard in shards]
