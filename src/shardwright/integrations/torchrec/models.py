"""Turn a task into TorchRec's inputs: modules, sharders, topology, constraints, and batches.

A feature has the name of its table, with a dot and a number if several share the table. All pooled tables form an
`EmbeddingBagCollection`; the sequence tables of each dim form an `EmbeddingCollection`. A batch, and a collection of bags, have weights for
all lookups or for none: for all if one of the tables is weighted.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from fbgemm_gpu.split_embedding_configs import SparseType
from torch import nn
from torchrec import (
    EmbeddingBagCollection,
    EmbeddingBagConfig,
    EmbeddingCollection,
    EmbeddingConfig,
    JaggedTensor,
    KeyedJaggedTensor,
    KeyedTensor,
)
from torchrec.distributed.embedding import EmbeddingCollectionSharder
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.distributed.fbgemm_qcomm_codec import CommType, QCommsConfig, get_qcomm_codecs_registry
from torchrec.distributed.planner.types import CustomTopologyData, ParameterConstraints
from torchrec.distributed.planner.types import Topology as TorchRecTopology
from torchrec.distributed.types import ModuleSharder, QuantizedCommCodecs
from torchrec.modules.embedding_configs import DataType

from shardwright.cost.published import GPUS
from shardwright.errors import InvalidInput
from shardwright.integrations.torchrec.rival import (
    SHARDING_TYPES,
    expressible_types,
    why_not_expressible,
)
from shardwright.measure.fbgemm import OPTIMIZERS
from shardwright.sharding.work import ShardWork
from shardwright.task.table import Table
from shardwright.task.task import Task
from shardwright.task.topology import Exchange, Topology
from shardwright.workload.batches import Batch, Scatter, draw_batch

LEARNING_RATE = 0.01
EPSILON = 1e-8
_DTYPES = {"fp32": DataType.FP32, "fp16": DataType.FP16}


class Lookups(NamedTuple):
    """The result of looking up the tables of a task for S samples.

    Attributes:
        pooled: `(S, sum of dims)` sums; None without pooled tables.
        sequences: `(lookups, dim)` rows of the sequence tables by feature, one mapping per dim.
    """

    pooled: KeyedTensor | None
    sequences: Sequence[Mapping[str, JaggedTensor]]

    def tensors(self) -> list[torch.Tensor]:
        """The values of all tables, after waiting for them."""
        pooled = [] if self.pooled is None else [self.pooled.values()]
        return [*pooled, *(rows.values() for of_dim in self.sequences for rows in of_dim.values())]

    def by_feature(self) -> dict[str, torch.Tensor]:
        """`(S, dim)` sums or `(lookups, dim)` rows of each feature."""
        pooled = {} if self.pooled is None else self.pooled.to_dict()
        return pooled | {name: rows.values() for of_dim in self.sequences for name, rows in of_dim.items()}


class TaskModel(nn.Module):
    """A module that looks up the tables of a task.

    Attributes:
        pooled: the pooled tables, if there are any.
        sequences: the sequence tables by dim, because an `EmbeddingCollection` takes tables of one dim only.
    """

    def __init__(self, tables: Sequence[Table], device: torch.device) -> None:
        super().__init__()
        pooled = [EmbeddingBagConfig(**_fields(table)) for table in tables if table.pooled]
        self._weighted = any(table.weighted for table in tables if table.pooled)
        if pooled:
            self.pooled = EmbeddingBagCollection(tables=pooled, is_weighted=self._weighted, device=device)
        by_dim: dict[str, list[EmbeddingConfig]] = {}
        for table in tables:
            if not table.pooled:
                by_dim.setdefault(f"dim_{table.dim}", []).append(EmbeddingConfig(**_fields(table)))
        self.sequences = nn.ModuleDict(
            {name: EmbeddingCollection(tables=configs, device=device) for name, configs in by_dim.items()}
        )

    def forward(self, features: KeyedJaggedTensor) -> Lookups:
        """Look up a batch. Modules without weighted tables get no weights, which would travel."""
        plain = features
        if features.weights_or_none() is not None:
            plain = KeyedJaggedTensor(
                keys=features.keys(), values=features.values(), lengths=features.lengths(), offsets=features.offsets()
            )
        return Lookups(
            self.pooled(features if self._weighted else plain) if hasattr(self, "pooled") else None,
            [sequences(plain) for sequences in self.sequences.values()],
        )


def why_not_a_module(task: Task) -> str | None:
    """Why the tables of a task cannot be tables of a TorchRec module; None if they can."""
    names = nn.ModuleDict()
    for table in task.tables:
        if "." in table.name or hasattr(names, table.name):
            return f"table '{table.name}' has a name that no module of torch can have; rename it, without dots"
        if table.dtype not in _DTYPES:
            return (
                f"table '{table.name}' has {table.dtype} weights, which TorchRec does not train; make them fp32 or fp16"
            )
    return None


def modules_for(task: Task, device: str | torch.device = "meta") -> TaskModel:
    """Build a module of the tables of a task.

    Args:
        task: the task.
        device: device of the weights; "meta" for none.

    Raises:
        InvalidInput: a table has a name that torch does not take, or weights that TorchRec does not train.
    """
    reason = why_not_a_module(task)
    if reason is not None:
        raise InvalidInput(reason)
    return TaskModel(task.tables, torch.device(device))


def sharders_for(
    task: Task, *, learning_rate: float = LEARNING_RATE, every_type: bool = False, kind: str | None = None
) -> list[ModuleSharder[nn.Module]]:
    """Sharders for the modules of `modules_for`, with the task's optimizer fused into backward and its types on the wire.

    Args:
        task: the task.
        learning_rate: learning rate of the optimizer.
        every_type: offer every sharding type that TorchRec can execute, also those that TorchRec hides from its planner on CPUs.
        kind: "cpu" or "cuda"; by default the type of the task's devices.
    """
    exchange, by_kernel = task.exchange, task.exchange.conversion == "kernel"
    narrow = {"output_dtype": SparseType(exchange.values)} if by_kernel and exchange.values != "fp32" else {}

    def fused() -> dict[str, Any]:  # a new one for each sharder, because TorchRec writes into it
        return {"optimizer": OPTIMIZERS[task.optimizer], "learning_rate": learning_rate, "eps": EPSILON, **narrow}

    codecs = None if by_kernel else _codecs(exchange, kind or task.topology.compute_device)
    if every_type:
        return [_AnyBagSharder(fused(), codecs), _AnySequenceSharder(fused(), codecs)]
    return [EmbeddingBagCollectionSharder(fused(), codecs), EmbeddingCollectionSharder(fused(), codecs)]


def _codecs(exchange: Exchange, kind: str) -> dict[str, QuantizedCommCodecs] | None:
    """Codecs of the types on the wire; None for fp32. TorchRec warns of every type that it replaces by another."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        types = QCommsConfig(CommType(exchange.values), CommType(exchange.gradients))
        codecs: dict[str, QuantizedCommCodecs] | None = get_qcomm_codecs_registry(types, device=torch.device(kind))
        return codecs
    finally:
        logging.disable(before)


class _AnyBagSharder(EmbeddingBagCollectionSharder):
    def sharding_types(self, compute_device_type: str) -> list[str]:
        return [*SHARDING_TYPES.values(), "table_column_wise"]


class _AnySequenceSharder(EmbeddingCollectionSharder):
    def sharding_types(self, compute_device_type: str) -> list[str]:
        types: list[str] = super().sharding_types(compute_device_type)
        # FBGEMM's dense kernel for CPUs sums the rows of a sample even if told not to.
        return [kind for kind in types if kind != "data_parallel" or compute_device_type != "cpu"]


def torchrec_topology(topology: Topology, kind: str | None = None) -> TorchRecTopology:
    """Convert a topology to TorchRec's. All memory is for embeddings; bandwidths are in bytes per ms.

    Args:
        topology: the cluster.
        kind: "cpu" or "cuda"; by default the type of its devices.
    """
    kind = kind or topology.compute_device
    memory = topology.memory_bytes
    place = "ddr_cap" if kind == "cpu" else "hbm_cap"
    equal = len(set(memory)) == 1
    options: dict[str, Any] = {place: memory[0]}
    if not equal:
        options["custom_topology_data"] = CustomTopologyData({place: list(memory)}, topology.devices)
    if topology.device in GPUS:
        options["hbm_mem_bw"] = GPUS[topology.device].bandwidth / 1e3
    intra, inter = topology.link_bandwidth
    return TorchRecTopology(
        world_size=topology.devices,
        compute_device=kind,
        local_world_size=topology.devices_per_host,
        intra_host_bw=intra / 1e3,
        inter_host_bw=inter / 1e3,
        **options,
    )


def local_batch_size(task: Task) -> int:
    """Samples of a step on one device, which is what TorchRec calls batch size."""
    return max(1, -(-task.batch_size // task.topology.devices))


def constraints_for(task: Task, *, statistics: bool = True) -> dict[str, ParameterConstraints]:
    """Convert the task's constraints to TorchRec's, with the task's pooling factors if `statistics`.

    Weights stay on the devices: kernels that keep them in host memory are not allowed. Without statistics, TorchRec takes its default
    pooling factor, 1.

    Raises:
        InvalidInput: a constraint has no counterpart; see `why_not_expressible`.
    """
    reason = why_not_expressible(task)
    if reason is not None:
        raise InvalidInput(f"constraints: {reason}")
    result = {}
    for table in task.tables:
        limits = task.constraints.of(table.name)
        fields: dict[str, Any] = {"compute_kernels": ["dense", "fused"]}
        if task.exchange.conversion == "kernel" and task.exchange.values != "fp32":
            fields["output_dtype"] = DataType(task.exchange.values.upper())
        if limits.sharding_types is not None or limits.max_shards is not None:
            fields["sharding_types"] = [
                SHARDING_TYPES[kind] for kind in expressible_types(table, limits, task.topology)
            ]
        if limits.max_shards is not None:
            fields["min_partition"] = -(-table.dim // limits.max_shards)
        if statistics:
            fields["pooling_factors"] = list(table.poolings)
        result[table.name] = ParameterConstraints(**fields)
    return result


class Batches:
    """Draws batches of a task by the tables' access profiles. Every rank draws its own samples; the same rows are hot on all ranks.

    Args:
        task: the task.
        seed: the same seed gives the same batches.
    """

    def __init__(self, task: Task, seed: int = 0) -> None:
        self._task = task
        self._seed = seed
        self._samples = local_batch_size(task)
        self._scatters = [
            Scatter.draw(table.rows, np.random.default_rng([seed, index])) for index, table in enumerate(task.tables)
        ]

    def draw(self, step: int, rank: int) -> KeyedJaggedTensor:
        """The samples of a rank in a step, on the CPU: one key per feature, in the order of the task's tables; weights of lookups are 1."""
        count = len(self._task.tables)
        drawn = [self._table(index, np.random.default_rng([self._seed, step, rank, index])) for index in range(count)]
        ids = torch.from_numpy(np.concatenate([batch.indices for batch in drawn]))
        return KeyedJaggedTensor.from_lengths_sync(
            keys=[name for table in self._task.tables for name in feature_names(table)],
            values=ids,
            lengths=torch.from_numpy(np.concatenate([np.diff(batch.offsets) for batch in drawn])),
            weights=torch.ones(ids.shape) if any(self._task.weighted) else None,
        )

    def _table(self, index: int, rng: np.random.Generator) -> Batch:
        """The lookups of one table."""
        table, samples = self._task.tables[index], self._samples
        lookups, shares = table.pooling * samples, table.feature_shares
        work = ShardWork(
            table.rows, table.dim, samples, lookups, table.pooled, table.access, table.dtype, feature_shares=shares
        )
        return draw_batch(work, rng, self._scatters[index])


def feature_names(table: Table) -> list[str]:
    """Names of the features that look up a table of `modules_for`."""
    count = len(table.poolings)
    return [table.name] if count == 1 else [f"{table.name}.{number}" for number in range(count)]


def _fields(table: Table) -> dict[str, Any]:
    return {
        "name": table.name,
        "num_embeddings": table.rows,
        "embedding_dim": table.dim,
        "data_type": _DTYPES[table.dtype],
        "feature_names": feature_names(table),
    }
