import pytest

pytest.importorskip("torch", reason="the runtime needs torch")

import torch

from shardwright.runtime import JaggedRows, ShardedEmbeddings
from shardwright.runtime.features import RankBatch
from shardwright.sharding.plan import Plan
from shardwright.sharding.shard import Shard
from shardwright.task import Table, Task, Topology

CPU = torch.device("cpu")
TABLES = ("a", "b")


def pair(ids, lengths):
    return torch.tensor(ids, dtype=torch.int64), torch.tensor(lengths, dtype=torch.int64)


def test_a_mapping_is_read_table_after_table():
    batch = RankBatch.of({"b": pair([7], [0, 1]), "a": pair([1, 2], [2, 0]), "other": 3}, TABLES, CPU)
    assert batch.ids.tolist() == [1, 2, 7]
    assert batch.counts == [2, 1]
    assert batch.error is None


def test_tables_may_have_different_numbers_of_samples():
    batch = RankBatch.of({"a": pair([1, 2], [2]), "b": pair([3], [0, 1, 0])}, TABLES, CPU)
    assert batch.error is None
    assert (
        "add up to 2, but it has 1 ids" in RankBatch.of({"a": pair([1], [2]), "b": pair([], [0, 0])}, TABLES, CPU).error
    )
    assert "negative" in RankBatch.of({"a": pair([1], [2, -1]), "b": pair([], [0])}, TABLES, CPU).error


def test_int32_ids_are_ids():
    batch = RankBatch.of(
        {"a": pair([1], [1]), "b": (torch.tensor([2], dtype=torch.int32), torch.tensor([1]))}, TABLES, CPU
    )
    assert batch.ids.dtype == torch.int64
    assert batch.ids.tolist() == [1, 2]


@pytest.mark.parametrize(
    "wrong", [5, (torch.zeros(1),), (torch.zeros(1, 1, dtype=torch.int64), torch.zeros(1, dtype=torch.int64))]
)
def test_what_is_no_feature_is_said(wrong):
    assert RankBatch.of({"a": wrong, "b": pair([], [])}, TABLES, CPU).error.startswith("table 'a'")


def test_tensors_that_cannot_be_read_are_said():
    ids, lengths = pair([1], [1])
    other = pair([2], [1])
    found = RankBatch.of({"a": (ids.to("meta"), lengths), "b": other}, TABLES, CPU)
    assert found.error == "table 'a': ids are on meta, must be on cpu; move them there"
    assert "on meta" in RankBatch.of({"a": (ids, lengths), "b": (other[0], lengths.to("meta"))}, TABLES, CPU).error
    assert "torch.sparse_coo" in RankBatch.of({"a": (ids.to_sparse(), lengths), "b": other}, TABLES, CPU).error


def test_whatever_breaks_is_kept_for_all_ranks_to_hear():
    class Broken:
        def keys(self):
            raise OSError("the disk is gone")

        lengths_or_none = None

    found = RankBatch.of(Broken(), TABLES, CPU)
    assert found.error.startswith("features cannot be read (OSError: the disk is gone); give")
    assert found.counts == [0, 0]


def one_process_plan():
    tables = [Table("a", 10, 8, 2.0, False), Table("b", 20, 4, 2.0, False)]
    return Plan(Task(tables, Topology(1, 1, memory="1 GB"), 4, "sgd"), [Shard.whole(table, 0) for table in tables])


def test_results_come_as_jagged_rows():
    module = ShardedEmbeddings(one_process_plan())
    out = module({"a": pair([3, 3, 1], [1, 2]), "b": pair([19], [1, 0])})
    assert isinstance(out["a"], JaggedRows)
    assert out["a"].lengths.tolist() == [1, 2]
    weights = {8: module.storage.weights[1], 4: module.storage.weights[0]}
    assert torch.equal(out["a"].values, weights[8][[3, 3, 1]])
    assert torch.equal(out["b"].values, weights[4][[19]])


@pytest.mark.torchrec
def test_a_keyed_jagged_tensor_gives_jagged_tensors():
    torchrec = pytest.importorskip("torchrec", reason="compares with TorchRec's own collection")
    module = ShardedEmbeddings(one_process_plan())
    features = torchrec.KeyedJaggedTensor(
        ["x", "b", "a"], torch.tensor([9, 5, 19, 2, 2]), lengths=torch.tensor([1, 0, 0, 2, 1, 1])
    )
    out = module(features)
    assert isinstance(out["a"], torchrec.JaggedTensor)
    for name, rows, dim, group in (("a", 10, 8, 1), ("b", 20, 4, 0)):
        config = torchrec.EmbeddingConfig(num_embeddings=rows, embedding_dim=dim, name=name, feature_names=[name])
        plain = torchrec.EmbeddingCollection([config])
        plain.embeddings[name].weight.data.copy_(module.storage.weights[group])
        wanted = plain(features)[name]
        assert torch.equal(out[name].values(), wanted.values())
        assert torch.equal(out[name].lengths(), wanted.lengths())
        assert torch.equal(out[name].offsets(), wanted.offsets())
