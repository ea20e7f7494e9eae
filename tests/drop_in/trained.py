"""Trainings on four CPU processes, on plans of either planner, compared with the whole model on one process.

Outputs of two steps are compared, with an update by SGD between them. The processes stand for two hosts of two devices, or for one of four.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torchrec import EmbeddingBagCollection, EmbeddingBagConfig, EmbeddingCollection, EmbeddingConfig, KeyedJaggedTensor
from torchrec.distributed import embedding_tower_sharding
from torchrec.distributed.embedding import EmbeddingCollectionSharder
from torchrec.distributed.embedding_tower_sharding import EmbeddingTowerCollectionSharder, EmbeddingTowerSharder
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.distributed.model_parallel import DistributedModelParallel
from torchrec.distributed.planner.types import ParameterConstraints, Topology
from torchrec.distributed.types import ShardingPlan
from torchrec.modules.embedding_configs import DataType, PoolingType
from torchrec.modules.embedding_tower import EmbeddingTower, EmbeddingTowerCollection
from torchrec.optim.apply_optimizer_in_backward import apply_optimizer_in_backward

from tests.drop_in.situation import PLANNERS, tables_by_name
from tests.gloo import answers_of
from tests.unit.integrations.torchrec.made import AllSequenceTypesSharder, AllTypesSharder

WORLD, BATCH, RATE, ROWS = 4, 6, 0.1, 64


@dataclass(frozen=True)
class Trained:
    """A model that trains.

    Attributes:
        name: name of the model.
        model: makes it, on the CPU.
        kinds: sharding types that its tables may have; None for all.
        per_host: devices of each host.
        weighted: whether the lookups have weights.
        tolerance: largest difference of outputs that rounding explains.
        theirs: whether outputs on TorchRec's plan equal those of the whole model.
        why: why they do not.
    """

    name: str
    model: Callable[[], nn.Module]
    kinds: tuple[str, ...] | None = None
    per_host: int = WORLD
    weighted: bool = False
    tolerance: float = 1e-6
    theirs: bool = True
    why: str = ""


class Layer(nn.Module):
    """The interaction of a tower."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.layer = nn.Linear(width, 8)

    def forward(self, embeddings: Any) -> torch.Tensor:
        return self.layer(embeddings.values())


def pooled(
    name: str = "t", count: int = 3, *, features: int = 1, weighted: bool = False, **fields: Any
) -> EmbeddingBagCollection:
    tables = [
        EmbeddingBagConfig(
            name=f"{name}{i}",
            num_embeddings=ROWS + i,
            embedding_dim=16,
            feature_names=[f"f_{name}{i}" if j == 0 else f"f_{name}{i}_{j}" for j in range(features)],
            **fields,
        )
        for i in range(count)
    ]
    return EmbeddingBagCollection(tables=tables, is_weighted=weighted)


def sequences() -> EmbeddingCollection:
    return EmbeddingCollection(
        tables=[
            EmbeddingConfig(name=f"s{i}", num_embeddings=ROWS + i, embedding_dim=16, feature_names=[f"f_s{i}"])
            for i in range(3)
        ]
    )


def tower(name: str, count: int) -> EmbeddingTower:
    return EmbeddingTower(pooled(name, count), Layer(16 * count))


def collection() -> EmbeddingTowerCollection:
    """Towers that are balanced if the first lies behind the last, which would exchange their outputs."""
    return EmbeddingTowerCollection([tower("b", 2), tower("c", 4)])


TOWERS_PERMUTED = "a sharded collection puts out its towers host by host, and TorchRec's planner may place the first tower on the last host"
TRAINED = [
    Trained("pooled tables", pooled),
    *(Trained(f"pooled tables, {kind}", pooled, (kind,)) for kind in ("table_wise", "column_wise", "row_wise", "data_parallel")),
    Trained("pooled tables on two hosts, table_row_wise", pooled, ("table_row_wise",), 2),
    Trained("pooled tables on two hosts, table_column_wise", pooled, ("table_column_wise",), 2),
    Trained("mean pooling", lambda: pooled(pooling=PoolingType.MEAN)),
    Trained("two features of each table", lambda: pooled(features=2)),
    Trained("weighted lookups", lambda: pooled(weighted=True), weighted=True),
    Trained("fp16 tables", lambda: pooled(data_type=DataType.FP16), tolerance=1e-3),
    Trained("sequence tables", sequences),
    Trained("sequence tables, row_wise", sequences, ("row_wise",)),
    Trained("a tower on two hosts", lambda: tower("a", 3), None, 2),
    Trained("a tower on two hosts, table_row_wise", lambda: tower("a", 3), ("table_row_wise",), 2),
    Trained("a tower on two hosts, table_column_wise", lambda: tower("a", 3), ("table_column_wise",), 2),
    Trained("two towers on two hosts", collection, None, 2, theirs=False, why=TOWERS_PERMUTED),
    Trained("two towers on two hosts, table_row_wise", collection, ("table_row_wise",), 2, theirs=False, why=TOWERS_PERMUTED),
    Trained("two towers on two hosts, table_column_wise", collection, ("table_column_wise",), 2, theirs=False, why=TOWERS_PERMUTED),
]  # fmt: skip
USUAL = [EmbeddingBagCollectionSharder, EmbeddingCollectionSharder, EmbeddingTowerSharder, EmbeddingTowerCollectionSharder]  # fmt: skip
ALL_TYPES = [AllTypesSharder, AllSequenceTypesSharder, *USUAL[2:]]
"""Sharders that offer types on CPUs which TorchRec's own keep for GPUs."""


def differences(rows: Sequence[Trained]) -> dict[str, dict[str, dict[str, Any]]]:
    """Train models on plans of both planners.

    Returns:
        By name of the row and planner: the largest difference of the outputs on any rank, and the hosts of each table.
    """
    largest: dict[str, dict[str, dict[str, Any]]] = {}
    for per_host in sorted({row.per_host for row in rows}):
        with tempfile.TemporaryDirectory() as folder:
            names = [row.name for row in rows if row.per_host == per_host]
            answers = answers_of(_trained_on_both, names, folder=Path(folder), ranks=WORLD, per_host=per_host)
        for name in names:
            largest[name] = {
                whose: {
                    "difference": max(answer[name][whose]["difference"] for answer in answers),
                    "hosts": answers[0][name][whose]["hosts"],
                }
                for whose in PLANNERS
            }
    return largest


def _trained_on_both(rank: int, names: Sequence[str]) -> dict[str, Any]:
    _run_interactions_on_cpus()
    rows = [row for row in TRAINED if row.name in names]
    return {row.name: {whose: _trained(row, whose, rank) for whose in PLANNERS} for row in rows}


def _run_interactions_on_cpus() -> None:
    """TorchRec names the CPU to the DDP module of an interaction, which takes numbers of GPUs only."""
    real = embedding_tower_sharding.DistributedDataParallel
    embedding_tower_sharding.DistributedDataParallel = lambda device_ids, **fields: real(**fields)


def _trained(row: Trained, whose: str, rank: int) -> dict[str, Any]:
    whole, tables = _made(row)
    constraints = {
        name: ParameterConstraints(sharding_types=list(row.kinds) if row.kinds else None, min_partition=4)
        for name in tables
    }
    sharders = [sharder() for sharder in (ALL_TYPES if row.kinds else USUAL)]
    topology = Topology(WORLD, "cpu", local_world_size=row.per_host)
    planner = PLANNERS[whose](topology, BATCH, stats=[], constraints=constraints)
    plan = planner.collective_plan(whole, sharders, dist.group.WORLD)
    hosts = _hosts(plan, row.per_host)  # TorchRec changes the ranks of towers when it shards them
    model, _ = _made(row)
    sharded = DistributedModelParallel(
        model, device=torch.device("cpu"), plan=plan, sharders=sharders, init_parameters=False
    )
    _take_weights(sharded, whole)
    batches = [_batch(whole, row, place) for place in range(WORLD)]
    largest = 0.0
    for _ in range(2):
        expected = [_outputs(whole(batch)) for batch in batches]
        outputs = _outputs(sharded(batches[rank]))
        largest = max(largest, float((outputs - expected[rank]).detach().abs().max()))
        outputs.sum().backward()
        torch.stack([each.sum() for each in expected]).sum().div(WORLD).backward()
        _step_replicas(sharded, plan)
    return {"difference": largest, "hosts": hosts}


def _made(row: Trained) -> tuple[nn.Module, dict[str, nn.Parameter]]:
    """The model, and its tables, which SGD trains in the backward pass."""
    torch.manual_seed(0)
    model = nn.Sequential(row.model())
    tables = {name.split(".")[-2]: weights for name, weights in model.named_parameters() if ".embedding" in name}
    apply_optimizer_in_backward(torch.optim.SGD, tables.values(), {"lr": RATE})
    return model, tables


@torch.no_grad()
def _take_weights(sharded: nn.Module, whole: nn.Module) -> None:
    """Copy the weights of a whole model, since TorchRec draws new ones for sharded modules."""
    given = whole.state_dict()
    for name, weights in sharded.state_dict().items():
        if not hasattr(weights, "local_shards"):
            weights.copy_(given[name])
            continue
        for shard in weights.local_shards():
            (row, column), (rows, columns) = shard.metadata.shard_offsets, shard.metadata.shard_sizes
            shard.tensor.copy_(given[name][row : row + rows, column : column + columns])


@torch.no_grad()
def _step_replicas(sharded: nn.Module, plan: ShardingPlan) -> None:
    """Train replicas as the optimizer in the backward pass would: TorchRec leaves them to the dense optimizer."""
    replicas = {name for name, table in tables_by_name(plan).items() if table.sharding_type == "data_parallel"}
    trained = [weights for name, weights in sharded.named_parameters() if name.split(".")[-2] in replicas]
    for weights in trained:
        weights.sub_(weights.grad, alpha=RATE)
    for weights in trained:  # they share one gradient
        weights.grad = None


def _batch(model: nn.Module, row: Trained, rank: int) -> KeyedJaggedTensor:
    generator = torch.Generator().manual_seed(rank)
    keys = [
        feature
        for module in model.modules()
        for reader in ("embedding_bag_configs", "embedding_configs")
        for config in getattr(module, reader, list)()
        for feature in config.feature_names
    ]
    lengths = torch.randint(0, 4, (len(keys) * BATCH,), generator=generator)
    count = int(lengths.sum())
    values = torch.randint(0, ROWS, (count,), generator=generator)
    weights = torch.rand(count, generator=generator) if row.weighted else None
    return KeyedJaggedTensor(keys=keys, values=values, lengths=lengths, weights=weights)


def _outputs(outputs: Any) -> torch.Tensor:
    if hasattr(outputs, "wait"):
        outputs = outputs.wait()
    if isinstance(outputs, dict):  # of sequences
        return torch.cat([outputs[key].values() for key in sorted(outputs)])
    if isinstance(outputs, torch.Tensor):
        return outputs
    by_feature = outputs.to_dict()
    return torch.cat([by_feature[key] for key in sorted(by_feature)], dim=1)


def _hosts(plan: ShardingPlan, per_host: int) -> dict[str, list[int]]:
    return {
        name: sorted({rank // per_host for rank in table.ranks or ()}) for name, table in tables_by_name(plan).items()
    }
