"""Tables cut in any way, in one process: they look up and learn as whole ones do."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("torch", reason="the runtime needs torch")

import torch

from shardwright.runtime import ShardedEmbeddings
from shardwright.runtime.lookup import Router
from shardwright.runtime.placement import Placement
from tests.runtime_plans import cut_plans

FEATURES = {"bags": ["left", "right"]}


def initial(table, ids):
    return np.sin(1 + 10 * ids[:, None] + np.arange(table.dim)).astype(np.float32)


def drawn(plan, seed):
    """Ids, lengths and weights of each feature."""
    rng, features = np.random.default_rng(seed), {}
    for table in plan.task.tables:
        for name in FEATURES.get(table.name, [table.name]):
            lengths = rng.integers(0, 4, 3)
            ids = rng.integers(0, table.rows, lengths.sum())
            features[name] = (
                torch.from_numpy(ids),
                torch.from_numpy(lengths),
                torch.from_numpy(rng.random(ids.size).astype(np.float32)),
            )
    return features


@given(cut_plans(), st.data())
def test_a_lookup_finds_the_shard_that_has_its_row_and_columns(plan, data):
    placement = Placement.of(plan, [table.name for table in plan.task.tables])
    router = Router(placement, np.arange(placement.ranges.shape[1]) << 32, torch.device("cpu"))
    covered = dict.fromkeys(plan.by_table, 0)
    for part, start in zip(placement.parts, placement.base, strict=False):
        row = data.draw(st.integers(0, part.table.rows - 1))
        number, place = divmod(int(router.codes(torch.tensor([start + row]))), 2**32)
        found = placement.shards[placement.ranges[0, number]]
        (wanted,) = [
            shard
            for shard in plan.by_table[part.table.name]
            if shard.rows[0] <= row < shard.rows[1] and shard.columns[0] <= part.columns[0] < shard.columns[1]
        ]
        assert (found.devices, found.rows, found.columns) == (wanted.devices, wanted.rows, part.columns)
        assert place == row - wanted.rows[0]
        covered[part.table.name] += part.dim
        for rank in range(plan.task.topology.devices):
            assert placement.nearest(rank)[number] in wanted.devices
    assert covered == {table.name: table.dim for table in plan.task.tables}


@given(cut_plans(devices=1), st.integers(0, 2**16), st.booleans())
@settings(max_examples=40)
def test_any_cut_looks_up_and_learns_as_a_whole_table(plan, seed, exact):
    module = ShardedEmbeddings(plan, features=FEATURES, initial=initial, learning_rate=1.0, exact=exact)
    features = drawn(plan, seed)
    out = module(features)
    values = {name: one if isinstance(one, torch.Tensor) else one.values for name, one in out.items()}
    weights = {
        table.name: torch.from_numpy(initial(table, np.arange(table.rows))).requires_grad_()
        for table in plan.task.tables
    }
    loss = torch.zeros(())
    for name, (ids, lengths, factors) in features.items():
        table = plan.task.table_by_name["bags" if name in FEATURES["bags"] else "rows"]
        rows = weights[table.name][ids] * (factors[:, None] if table.weighted and table.pooled else 1.0)
        if table.pooled:
            sample = torch.repeat_interleave(torch.arange(3), lengths)
            rows = torch.zeros(3, table.dim).index_add(0, sample, rows)
        torch.testing.assert_close(values[name], rows, rtol=1e-5, atol=1e-5)
        loss = loss + rows.square().sum()
    loss.backward()
    sum(one.square().sum() for one in values.values()).backward()
    if plan.task.optimizer != "sgd":
        return  # blocks of columns have states of their own
    for cut in module.storage.cuts():
        part = module.placement.parts[cut.part]
        ids = module.placement.keys(cut.number, cut.start, cut.stop) - module.placement.base[cut.part]
        whole = weights[part.table.name]
        wanted = (whole - whole.grad if whole.grad is not None else whole)[ids][:, slice(*part.columns)]
        found = module.storage.weights[cut.group].detach()[cut.slots]
        torch.testing.assert_close(found, wanted.detach(), rtol=1e-4, atol=1e-4)
