"""Tasks as TorchRec's modules, sharders, topology, constraints and batches."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("torchrec", reason="needs TorchRec")

import torch
from fbgemm_gpu.split_embedding_configs import EmbOptimType

from shardwright.errors import InvalidInput
from shardwright.integrations.torchrec import problem_of
from shardwright.integrations.torchrec.models import (
    Batches,
    constraints_for,
    local_batch_size,
    modules_for,
    sharders_for,
    torchrec_topology,
)
from shardwright.task import OPTIMIZERS, AccessProfile, Constraints, Exchange, Table, TableConstraint, Task, Topology

pytestmark = pytest.mark.torchrec

TABLES = (
    Table("a", 1000, 16, 5.5, access=AccessProfile.zipf(1000, 1.2)),
    Table("b", 200, 8, 0.5, dtype="fp16"),
    Table("s", 300, 8, 4.0, pooled=False),
    Table("w", 50, 4, 1.0, pooled=False),
    Table("p", 60, 8, [1.0, 7.0]),
    Table("q", 60, 8, [2.0, 3.0], pooled=False),
)


def task(optimizer="rowwise_adagrad", **fields):
    where = Topology(hosts=2, devices_per_host=2, memory="64 MB", device="h100")
    return Task(TABLES, where, 250, optimizer, **fields)


def test_the_module_holds_every_table_and_looks_it_up():
    model = modules_for(task(), "cpu")
    shapes = {name: tuple(weights.shape) for name, weights in model.named_parameters()}
    assert {name.split(".")[-2]: shape for name, shape in shapes.items()} == {t.name: (t.rows, t.dim) for t in TABLES}
    batch = Batches(task()).draw(0, 0)
    lengths = batch.length_per_key()
    output_shapes = {name: tuple(rows.shape) for name, rows in model(batch).by_feature().items()}
    samples = local_batch_size(task())
    assert output_shapes == {
        "a": (samples, 16),
        "b": (samples, 8),
        "s": (lengths[2], 8),
        "w": (lengths[3], 4),
        "p.0": (samples, 8),
        "p.1": (samples, 8),
        "q.0": (lengths[6], 8),
        "q.1": (lengths[7], 8),
    }


def test_the_sum_of_a_bag_is_the_sum_of_its_rows():
    model, batch = modules_for(task(), "cpu"), Batches(task()).draw(3, 1)
    weights = dict(model.named_parameters())["pooled.embedding_bags.a.weight"]
    bags = torch.split(batch["a"].values(), batch["a"].lengths().tolist())
    expected = torch.stack([weights[ids].sum(dim=0) for ids in bags])
    torch.testing.assert_close(model(batch).by_feature()["a"], expected)


@pytest.mark.parametrize("pooled", [True, False])
def test_lookups_of_weighted_tables_have_weights(pooled):
    tables = [Table("w", 50, 8, 3.0, pooled, weighted=True), Table("p", 60, 8, 2.0), Table("s", 40, 8, pooled=False)]
    weighted = Task(tables, Topology(), 16)
    model, batch = modules_for(weighted, "cpu"), Batches(weighted).draw(0, 0)
    assert model.pooled.is_weighted() is pooled
    assert batch.weights().shape == batch.values().shape
    read_back = {table.name: table.weighted for table in there_and_back(weighted).tables}
    assert read_back == {"w": pooled, "p": pooled, "s": False}
    bags = torch.split(batch["p"].values(), batch["p"].lengths().tolist())
    rows = dict(model.named_parameters())["pooled.embedding_bags.p.weight"]
    torch.testing.assert_close(model(batch).by_feature()["p"], torch.stack([rows[ids].sum(dim=0) for ids in bags]))


def there_and_back(given):
    """The modules, sharders, topology and constraints of a task, read as a task."""
    where, limits = torchrec_topology(given.topology), constraints_for(given)
    return problem_of(modules_for(given), sharders_for(given), where, local_batch_size(given), limits).task


def test_the_way_there_and_back_gives_the_same_tables():
    given = task("adagrad")
    read_back = there_and_back(given)
    for table in given.tables:
        other = read_back.table_by_name[table.name]
        for field in ("rows", "dim", "poolings", "pooled", "dtype"):
            assert getattr(other, field) == getattr(table, field)
    assert read_back.optimizer == "adagrad"
    assert read_back.topology.memory_bytes == given.topology.memory_bytes
    assert read_back.topology.link_bandwidth == pytest.approx(given.topology.link_bandwidth)
    assert (read_back.topology.hosts, read_back.topology.devices_per_host) == (2, 2)


@pytest.mark.parametrize(
    "exchange",
    [
        Exchange(),
        Exchange(values="fp16", gradients="bf16"),
        Exchange(values="fp16", gradients="fp16", conversion="kernel"),
    ],
)
def test_types_on_the_wire_come_back(exchange):
    read_back = there_and_back(task(exchange=exchange)).exchange
    types = ("values", "gradients", "conversion")
    assert [getattr(read_back, name) for name in types] == [getattr(exchange, name) for name in types]


def test_devices_of_unequal_memory():
    topology = torchrec_topology(Topology(devices_per_host=2, device="cpu", memory=["1 MB", "2 MB"]))
    assert [device.storage.ddr for device in topology.devices] == [1_000_000, 2_000_000]
    assert topology.compute_device == "cpu"


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_every_optimizer_is_fused(optimizer):
    kinds = {sharder.fused_params["optimizer"] for sharder in sharders_for(task(optimizer))}
    (kind,) = kinds
    assert isinstance(kind, EmbOptimType)
    one, other = sharders_for(task(optimizer))
    assert one.fused_params is not other.fused_params  # TorchRec writes into them


def test_statistics_are_pooling_factors_and_nothing_else():
    told, untold = constraints_for(task()), constraints_for(task(), statistics=False)
    assert {name: constraint.pooling_factors for name, constraint in told.items()} == {
        t.name: list(t.poolings) for t in TABLES
    }
    assert all(constraint.pooling_factors == [1.0] for constraint in untold.values())
    limits = Constraints({"a": TableConstraint(("column_wise", "grid"), max_shards=3)})
    limited = constraints_for(task(constraints=limits))["a"]
    assert limited.sharding_types == ["column_wise", "grid_shard"]
    assert limited.min_partition == 6
    assert constraints_for(task())["b"].sharding_types is None


def test_constraints_without_a_word_for_them_are_refused():
    pinned = Constraints({"a": TableConstraint(devices=(0,))})
    with pytest.raises(InvalidInput, match="constraints: table 'a' is pinned"):
        constraints_for(task(constraints=pinned))


@pytest.mark.parametrize(
    ("name", "dtype", "said"),
    [("a.b", "fp32", "rename it"), ("half", "fp32", "rename it"), ("type", "fp32", "rename it"), ("a", "int8", "int8")],
)
def test_names_that_torch_refuses_and_weights_that_torchrec_does_not_train(name, dtype, said):
    with pytest.raises(InvalidInput, match=said):
        modules_for(Task([Table(name, 10, 4, dtype=dtype)], Topology(), 8))


def test_batches_have_the_lookups_and_the_skew_of_the_tables():
    batches, samples = Batches(task(), seed=3), local_batch_size(task())
    drawn = [batches.draw(step, rank) for step in range(10) for rank in range(4)]
    features = [(table, each) for table in TABLES for each in table.poolings]
    for index, (table, pooling) in enumerate(features):
        lookups = np.mean([batch.length_per_key()[index] for batch in drawn]) / samples
        assert lookups == pytest.approx(pooling, rel=0.05)
        assert all(int(batch[batch.keys()[index]].values().max()) < table.rows for batch in drawn)
    assert all(batch.stride() == samples for batch in drawn)
    counts = np.bincount(torch.cat([batch["a"].values() for batch in drawn]).numpy(), minlength=1000)
    share = np.sort(counts)[::-1][:100].sum() / counts.sum()
    assert share == pytest.approx(TABLES[0].access.share_of(0, 100), abs=0.05)


def test_the_same_rows_are_hot_in_all_batches_and_no_two_batches_are_alike():
    batches = Batches(task())
    one, other, again = batches.draw(0, 0), batches.draw(1, 2), Batches(task()).draw(0, 0)
    hottest = [np.bincount(batch["a"].values().numpy()).argmax() for batch in (one, other)]
    assert hottest[0] == hottest[1]
    assert not torch.equal(one["a"].values(), other["a"].values())
    assert torch.equal(one.values(), again.values())
    assert torch.equal(one.lengths(), again.lengths())
