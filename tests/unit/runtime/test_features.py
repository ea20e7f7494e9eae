import pytest

pytest.importorskip("torch", reason="the runtime needs torch")

import torch

from shardwright.errors import InvalidInput
from shardwright.runtime import JaggedRows, ShardedEmbeddings
from shardwright.runtime.features import RankBatch, features_of
from shardwright.runtime.placement import Placement
from shardwright.sharding.plan import Plan
from shardwright.sharding.shard import Shard
from shardwright.task import Table, Task, Topology

CPU = torch.device("cpu")


def read(features, pooled=False, **named):
    """The batch of a module of tables a and b on one device."""
    plan = one_process_plan(pooled)
    placement = Placement.of(plan, ["a", "b"])
    return RankBatch.of(features, features_of(plan.task.tables, named), placement, CPU)


def pair(ids, lengths):
    return torch.tensor(ids, dtype=torch.int64), torch.tensor(lengths, dtype=torch.int64)


def test_a_mapping_is_read_table_after_table():
    batch = read({"b": pair([7], [0, 1]), "a": pair([1, 2], [2, 0]), "other": 3})
    assert batch.ids.tolist() == [1, 2, 7]
    assert batch.counts == [2, 1]
    assert batch.error is None


def test_tables_may_have_different_numbers_of_samples():
    batch = read({"a": pair([1, 2], [2]), "b": pair([3], [0, 1, 0])})
    assert batch.error is None
    assert "add up to 2, but it has 1 ids" in read({"a": pair([1], [2]), "b": pair([], [0, 0])}).error
    assert "negative" in read({"a": pair([1], [2, -1]), "b": pair([], [0])}).error


def test_features_of_one_table_follow_each_other_behind_the_rows():
    batch = read({"x": pair([1, 2], [2, 0]), "b": pair([7], [1]), "y": pair([3], [0, 1])}, True, a=["x", "y"])
    assert batch.error is None
    assert batch.ids.tolist() == [7, 1, 2, 3]
    assert (batch.counts, batch.pieces) == ([1, 3], [[1], [2, 2]])
    assert batch.bags.tolist() == [0, 0, 3]


def test_features_of_one_table_may_have_different_numbers_of_samples():
    module = ShardedEmbeddings(one_process_plan(True), tables=["a"], features={"a": ["x", "y"]}, learning_rate=1.0)
    before = module.storage.weights[0].clone()
    out = module({"x": pair([1, 2, 1], [2, 0, 1]), "y": pair([3], [1])})
    torch.testing.assert_close(out["x"], torch.stack([before[1] + before[2], 0 * before[1], before[1]]))
    torch.testing.assert_close(out["y"], before[3:4])
    (out["x"].sum() + out["y"].sum()).backward()
    learned = before - module.storage.weights[0]
    assert learned.round(decimals=4)[:5, 0].tolist() == [0, 2, 1, 1, 0]


@pytest.mark.parametrize(
    ("named", "text"),
    [
        ({}, "table 'a' serves 2 features and has no names for them"),
        ({"a": ["x"]}, "table 'a' serves 2 features and has 1 names"),
        ({"a": ["x", "x"]}, "feature 'x' is named twice"),
        ({"a": ["x", "b"]}, "feature 'b' is named twice"),
        ({"a": ["x", "y"], "c": ["z"]}, "features are named for 'c', which is not a table of this module"),
    ],
)
def test_names_of_features_must_fit_the_tables(named, text):
    with pytest.raises(InvalidInput, match=text):
        features_of(one_process_plan(True).task.tables, named)


def test_weights_are_one_an_id():
    table = Table("w", 10, 4, 2.0, weighted=True)
    plan = Plan(Task([table], Topology(1, 1, memory="1 GB"), 4, "sgd"), [Shard.whole(table, 0)])
    arguments = features_of([table], None), Placement.of(plan, ["w"]), CPU
    ids, lengths = pair([1, 2], [2])
    assert "(ids, lengths, weights)" in RankBatch.of({"w": (ids, lengths)}, *arguments).error
    assert "weights are torch.int64" in RankBatch.of({"w": (ids, lengths, ids)}, *arguments).error
    assert "has 1 weights and 2 ids" in RankBatch.of({"w": (ids, lengths, torch.ones(1))}, *arguments).error
    assert RankBatch.of({"w": (ids, lengths, torch.ones(2))}, *arguments).weights.tolist() == [1, 1]


def test_int32_ids_are_ids():
    batch = read({"a": pair([1], [1]), "b": (torch.tensor([2], dtype=torch.int32), torch.tensor([1]))})
    assert batch.ids.dtype == torch.int64
    assert batch.ids.tolist() == [1, 2]


@pytest.mark.parametrize(
    "wrong", [5, (torch.zeros(1),), (torch.zeros(1, 1, dtype=torch.int64), torch.zeros(1, dtype=torch.int64))]
)
def test_input_that_is_no_feature_raises(wrong):
    assert read({"a": wrong, "b": pair([], [])}).error.startswith("feature 'a'")


def test_unreadable_tensors_are_reported():
    ids, lengths = pair([1], [1])
    other = pair([2], [1])
    batch = read({"a": (ids.to("meta"), lengths), "b": other})
    assert batch.error == "feature 'a': ids are on meta, must be on cpu; move them there"
    assert "on meta" in read({"a": (ids, lengths), "b": (other[0], lengths.to("meta"))}).error
    assert "torch.sparse_coo" in read({"a": (ids.to_sparse(), lengths), "b": other}).error


def test_whatever_breaks_is_kept_for_all_ranks_to_hear():
    class Broken:
        def keys(self):
            raise OSError("the disk is gone")

        lengths_or_none = None

    batch = read(Broken())
    assert batch.error.startswith("features cannot be read (OSError: the disk is gone); give")
    assert batch.counts == [0, 0]


def one_process_plan(pooled=False):
    tables = [Table("a", 10, 4, [1.0, 1.0] if pooled else 2.0, pooled), Table("b", 20, 8, 2.0, False)]
    return Plan(Task(tables, Topology(1, 1, memory="1 GB"), 4, "sgd"), [Shard.whole(table, 0) for table in tables])


def test_results_come_as_jagged_rows():
    module = ShardedEmbeddings(one_process_plan())
    out = module({"a": pair([3, 3, 1], [1, 2]), "b": pair([19], [1, 0])})
    assert isinstance(out["a"], JaggedRows)
    assert out["a"].lengths.tolist() == [1, 2]
    weights = {4: module.storage.weights[0], 8: module.storage.weights[1]}
    assert torch.equal(out["a"].values, weights[4][[3, 3, 1]])
    assert torch.equal(out["b"].values, weights[8][[19]])


@pytest.mark.torchrec
def test_a_keyed_jagged_tensor_gives_jagged_tensors():
    torchrec = pytest.importorskip("torchrec", reason="compares with TorchRec's own collection")
    module = ShardedEmbeddings(one_process_plan())
    features = torchrec.KeyedJaggedTensor(
        ["x", "b", "a"], torch.tensor([9, 5, 19, 2, 2]), lengths=torch.tensor([1, 0, 0, 2, 1, 1])
    )
    out = module(features)
    assert isinstance(out["a"], torchrec.JaggedTensor)
    for name, rows, dim, group in (("a", 10, 4, 0), ("b", 20, 8, 1)):
        config = torchrec.EmbeddingConfig(num_embeddings=rows, embedding_dim=dim, name=name, feature_names=[name])
        plain = torchrec.EmbeddingCollection([config])
        plain.embeddings[name].weight.data.copy_(module.storage.weights[group])
        wanted = plain(features)[name]
        assert torch.equal(out[name].values(), wanted.values())
        assert torch.equal(out[name].lengths(), wanted.lengths())
        assert torch.equal(out[name].offsets(), wanted.offsets())
