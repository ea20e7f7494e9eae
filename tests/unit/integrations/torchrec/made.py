"""Models, topologies and planners for the tests of the TorchRec integration; nothing here runs on more than one process."""

import warnings
from contextlib import contextmanager

import pytest
import torch
from fbgemm_gpu.split_embedding_configs import EmbOptimType
from torch import nn
from torchrec.distributed.embedding import EmbeddingCollectionSharder
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.distributed.planner.storage_reservations import FixedPercentageStorageReservation
from torchrec.distributed.planner.types import PlannerError, Topology
from torchrec.distributed.types import ShardingType
from torchrec.modules.embedding_configs import EmbeddingBagConfig, EmbeddingConfig
from torchrec.modules.embedding_modules import EmbeddingBagCollection, EmbeddingCollection

from shardwright.integrations.torchrec import ShardwrightPlanner

META = torch.device("meta")
GB = 1 << 30


class AllTypesSharder(EmbeddingBagCollectionSharder):
    """Offers every sharding type on every device, as users' own sharders may."""

    def sharding_types(self, compute_device_type):
        return [kind.value for kind in ShardingType]


class AllSequenceTypesSharder(EmbeddingCollectionSharder):
    """The same for sequences."""

    def sharding_types(self, compute_device_type):
        return [kind.value for kind in ShardingType]


SHARDERS = [AllTypesSharder(), AllSequenceTypesSharder()]


def with_optimizer(optimizer=EmbOptimType.EXACT_ADAGRAD):
    """The same sharders, which name the optimizer of the tables."""
    return [type(sharder)(fused_params={"optimizer": optimizer}) for sharder in SHARDERS]


def bags(shapes, prefix="t", device=META, **fields):
    """An EmbeddingBagCollection with a table of each `(rows, dim)`; table t3 is looked up by feature f_t3."""
    return EmbeddingBagCollection(
        device=device,
        tables=[
            EmbeddingBagConfig(
                name=f"{prefix}{i}", num_embeddings=rows, embedding_dim=dim, feature_names=[f"f_{prefix}{i}"], **fields
            )
            for i, (rows, dim) in enumerate(shapes)
        ],
    )


def sequences(rows, dim, prefix="s", device=META):
    """An EmbeddingCollection with a table of each number of rows."""
    return EmbeddingCollection(
        device=device,
        tables=[
            EmbeddingConfig(name=f"{prefix}{i}", num_embeddings=n, embedding_dim=dim, feature_names=[f"f_{prefix}{i}"])
            for i, n in enumerate(rows)
        ],
    )


class Model(nn.Module):
    """Pooled and sequence tables under some dense layer."""

    def __init__(self, pooled=((4096, 128), (1000, 64), (100_000, 32)), sequence=(5000, 700), device=META):
        super().__init__()
        self.pooled = bags(pooled, device=device)
        if sequence:
            self.sequence = sequences(sequence, 32, device=device)
        self.over = nn.Linear(8, 8, device=device)


def topology(world=4, local=None, device="cuda", hbm=16 * GB, **fields):
    """A TorchRec topology."""
    return Topology(world_size=world, local_world_size=local or world, compute_device=device, hbm_cap=hbm, **fields)


def planner(where=None, **fields):
    """A planner that logs nothing and reserves nothing."""
    fields = {"stats": [], "storage_reservation": FixedPercentageStorageReservation(0.0), "batch_size": 64} | fields
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return ShardwrightPlanner(where or topology(), **fields)


def tables_of(plan):
    """Every table's sharding by path and name."""
    return {(path, name): table for path, module in plan.plan.items() for name, table in module.items()}


def ranks_of(table):
    """Ranks of a table's shards."""
    return [shard.placement.rank() for shard in table.sharding_spec.shards] if table.sharding_spec else table.ranks


@contextmanager
def refused(kind, said=""):
    """Expects a planner's error of this type, whose message holds the text."""
    with pytest.raises(PlannerError, match=said) as caught:
        yield
    assert caught.value.error_type.name == kind
