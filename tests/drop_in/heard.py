"""Requests to TorchRec's planner other than sharding types: towers, fused parameters, codecs, weights, enumerators, odd topologies."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from fbgemm_gpu.split_embedding_configs import EmbOptimType, SparseType
from fbgemm_gpu.split_table_batched_embeddings_ops_common import BoundsCheckMode, CacheAlgorithm
from torch import nn
from torchrec.distributed.embedding_tower_sharding import EmbeddingTowerCollectionSharder, EmbeddingTowerSharder
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.distributed.fbgemm_qcomm_codec import CommType, QCommsConfig, get_qcomm_codecs_registry
from torchrec.distributed.planner.enumerators import EmbeddingEnumerator
from torchrec.distributed.planner.partitioners import MemoryBalancedPartitioner
from torchrec.distributed.planner.proposers import GreedyProposer
from torchrec.distributed.planner.shard_estimators import EmbeddingPerfEstimator, EmbeddingStorageEstimator
from torchrec.distributed.planner.storage_reservations import FixedAbsoluteStorageReservation
from torchrec.distributed.planner.types import (
    CollectiveType,
    CustomTopologyData,
    GeneralizedCommsBandwidth,
    ParameterConstraints,
)
from torchrec.distributed.types import KeyValueParams, PipelineType
from torchrec.distributed.utils import add_params_from_parameter_sharding
from torchrec.modules.embedding_configs import DataType
from torchrec.modules.embedding_modules import EmbeddingBagCollection
from torchrec.modules.embedding_tower import EmbeddingTower, EmbeddingTowerCollection

from tests.drop_in.refused import cached, fused, given, large, on, shared, small
from tests.drop_in.situation import Situation, Tables
from tests.unit.integrations.torchrec.made import GB, Model, bags, topology

PER_HOST = 4


def tower(prefix: str, rows: int = 100_000) -> EmbeddingTower:
    return EmbeddingTower(bags([(rows, 64)] * 3, prefix), nn.Identity())


def towers() -> nn.Module:
    return nn.Sequential(EmbeddingTowerCollection([tower(prefix) for prefix in "abcd"]))


def weighted() -> EmbeddingBagCollection:
    collection = small()
    collection._is_weighted = True
    return collection


def on_one_host(tables: Tables) -> bool:
    """Whether each tower, which is the first letter of its tables' names, lies on one host."""
    hosts: dict[str, set[int]] = {}
    for name, table in tables.items():
        hosts.setdefault(name[0], set()).update(rank // PER_HOST for rank in table.ranks or ())
    return all(len(of_tower) == 1 for of_tower in hosts.values())


def kernel_gets(params: dict[str, Any], **wanted: Any) -> Callable[[Tables], bool]:
    """Whether the kernel of table t0 gets these parameters, if the sharder has some."""

    def check(tables: Tables) -> bool:
        fused_params = add_params_from_parameter_sharding(dict(params), tables["t0"])
        return all(fused_params[name] == value for name, value in wanted.items())

    return check


def kinds_are(kind: str) -> Callable[[Tables], bool]:
    return lambda tables: all(table.sharding_type == kind for table in tables.values())


def t0(**wanted: Any) -> Callable[[Tables], bool]:
    """Whether table t0 is planned with these fields."""
    return lambda tables: all(getattr(tables["t0"], name) == value for name, value in wanted.items())


def never_on(rank: int) -> Callable[[Tables], bool]:
    return lambda tables: all(rank not in (table.ranks or ()) for table in tables.values())


def codecs(kind: CommType) -> Callable[[], list[Any]]:
    def made() -> list[Any]:
        config = QCommsConfig(forward_precision=kind, backward_precision=kind)
        registry = get_qcomm_codecs_registry(config, device=torch.device("cpu"))
        return [EmbeddingBagCollectionSharder(qcomm_codecs_registry=registry)]

    return made


class SlowAllToAll(GeneralizedCommsBandwidth):
    intra_host_bw = property(lambda self: 6e8)
    inter_host_bw = property(lambda self: 6e8)

    def get_bw(self, local_world_size: int, world_size: int, collective_type: CollectiveType) -> float:
        return 1e3 if collective_type == CollectiveType.ALL_TO_ALL else 6e8


class RowsOnly(EmbeddingEnumerator):
    def enumerate(self, module: nn.Module, sharders: list[Any]) -> list[Any]:
        return [option for option in super().enumerate(module, sharders) if option.sharding_type == "row_wise"]


def enumerator(**fields: Any) -> Callable[[], dict[str, Any]]:
    return lambda: {"enumerator": EmbeddingEnumerator(topology(), 64, **fields)}


def piped(kind: PipelineType) -> Callable[[], dict[str, Any]]:
    where = topology()
    estimators = [EmbeddingPerfEstimator(where), EmbeddingStorageEstimator(where, pipeline_type=kind)]
    return enumerator(estimator=estimators)


ROWS_ONLY = {f"t{i}": ParameterConstraints(sharding_types=["row_wise"]) for i in range(2)}
SGD = {"optimizer": EmbOptimType.SGD, "learning_rate": 0.1}
TWO_HOSTS = {"world": 8, "local": PER_HOST}
UVM_CACHED = given(compute_kernels=["fused_uvm_caching"])

TOWERS = [
    Situation("a tower", lambda: nn.Sequential(tower("a")), on(**TWO_HOSTS), sharders=lambda: [EmbeddingTowerSharder()], holds=on_one_host),
    Situation("a collection of towers", towers, on(**TWO_HOSTS), sharders=lambda: [EmbeddingTowerCollectionSharder()], holds=on_one_host),
]  # fmt: skip

FUSED = [
    Situation(
        "fused_params: cache_load_factor",
        small,
        UVM_CACHED,
        sharders=fused(cache_load_factor=0.1),
        holds=kernel_gets({"cache_load_factor": 0.1}, cache_load_factor=0.1),
    ),
    Situation(
        "constraints: load_factor",
        small,
        cached(load_factor=0.3),
        sharders=fused(cache_load_factor=0.1),
        holds=kernel_gets({"cache_load_factor": 0.1}, cache_load_factor=0.3),
    ),
    Situation(
        "fused_params: cache_algorithm",
        small,
        UVM_CACHED,
        sharders=fused(cache_algorithm=CacheAlgorithm.LFU),
        holds=kernel_gets({"cache_algorithm": CacheAlgorithm.LFU}, cache_algorithm=CacheAlgorithm.LFU),
    ),
    Situation(
        "fused_params: cache_precision",
        small,
        UVM_CACHED,
        sharders=fused(cache_precision=DataType.FP32),
        holds=kernel_gets({"cache_precision": DataType.FP32}, cache_precision=DataType.FP32),
    ),
    Situation(
        "fused_params: prefetch_pipeline",
        small,
        UVM_CACHED,
        sharders=fused(prefetch_pipeline=True),
        holds=kernel_gets({"prefetch_pipeline": True}, prefetch_pipeline=True),
    ),
    Situation("constraints: prefetch_pipeline", small, cached(prefetch_pipeline=True), holds=kernel_gets({}, prefetch_pipeline=True)),
    Situation(
        "fused_params: enforce_hbm", small, sharders=fused(enforce_hbm=True), holds=kernel_gets({"enforce_hbm": True}, enforce_hbm=True)
    ),
    Situation(
        "fused_params: stochastic_rounding",
        small,
        sharders=fused(stochastic_rounding=False),
        holds=kernel_gets({"stochastic_rounding": False}, stochastic_rounding=False),
    ),
    Situation(
        "fused_params: bounds_check_mode",
        small,
        sharders=fused(bounds_check_mode=BoundsCheckMode.FATAL),
        holds=kernel_gets({"bounds_check_mode": BoundsCheckMode.FATAL}, bounds_check_mode=BoundsCheckMode.FATAL),
    ),
    Situation(
        "fused_params: output_dtype",
        small,
        sharders=fused(output_dtype=SparseType.FP16),
        holds=kernel_gets({"output_dtype": SparseType.FP16}, output_dtype=SparseType.FP16),
    ),
    Situation("constraints: output_dtype", small, given(output_dtype=DataType.FP16), holds=t0(output_dtype=DataType.FP16)),
    Situation("fused_params: optimizer", small, sharders=fused(**SGD), holds=kernel_gets(SGD, **SGD)),
    Situation(
        "key_value_params",
        large,
        given(compute_kernels=["key_value"], key_value_params=KeyValueParams(max_l1_cache_size=8)),
        holds=t0(key_value_params=KeyValueParams(max_l1_cache_size=8)),
    ),
]  # fmt: skip

WORK = [
    Situation("fp16 codecs", small, sharders=codecs(CommType.FP16)),
    Situation("fp8 codecs", small, sharders=codecs(CommType.FP8)),
    Situation("a weighted module", weighted),
    Situation("is_weighted in constraints", small, given(is_weighted=True)),
    Situation("two features of one table", shared, given(pooling_factors=[1.0, 20.0])),
    Situation(
        "features with batch sizes of their own",
        shared,
        given(pooling_factors=[1.0, 20.0], batch_sizes=[64, 8], num_poolings=[1.0, 2.0]),
    ),
    Situation("pooled and sequence tables", Model),
    Situation("fp16 tables", lambda: bags([(1000, 64)] * 2, data_type=DataType.FP16)),
]

TOPOLOGIES = [
    Situation("bandwidths by collective", small, on(**TWO_HOSTS, generalized_comms_bandwidths=SlowAllToAll())),
    Situation("bwd_compute_multiplier", small, on(bwd_compute_multiplier=10.0)),
    Situation("weighted_feature_bwd_compute_multiplier", weighted, on(weighted_feature_bwd_compute_multiplier=2.0)),
    Situation("uneven_sharding_perf_multiplier", small, on(uneven_sharding_perf_multiplier=2.0)),
    Situation(
        "a rank without memory", small, on(custom_topology_data=CustomTopologyData({"hbm_cap": [GB, GB, GB, 0]}, 4)), holds=never_on(3)
    ),
    Situation(
        "a rank with 1,000 bytes", small, on(custom_topology_data=CustomTopologyData({"hbm_cap": [GB, GB, GB, 1000]}, 4)), holds=never_on(3)
    ),
    Situation(
        "a CPU rank without memory",
        small,
        on(device="cpu", custom_topology_data=CustomTopologyData({"ddr_cap": [GB, 0, GB, GB]}, 4)),
        holds=never_on(1),
    ),
    Situation("pods of two hosts", small, on(world=16, local=4, pod_size=2)),
    Situation("a last host with fewer ranks", small, on(world=6, local=4)),
    Situation("one rank", small, on(world=1)),
    Situation("CPUs", small, on(device="cpu")),
]  # fmt: skip

PARTS = [
    Situation("constraints of the enumerator", small, enumerator(constraints=ROWS_ONLY), holds=kinds_are("row_wise")),
    Situation("an enumerator of the user's class", small, lambda: {"enumerator": RowsOnly(topology(), 64)}, holds=kinds_are("row_wise")),
    Situation("an enumerator with another batch size", small, lambda: {"enumerator": EmbeddingEnumerator(topology(), 128)}),
    Situation("TRAIN_SPARSE_DIST in the storage estimator", small, piped(PipelineType.TRAIN_SPARSE_DIST)),
    Situation("TRAIN_PREFETCH_SPARSE_DIST in the storage estimator", small, piped(PipelineType.TRAIN_PREFETCH_SPARSE_DIST)),
    Situation("a proposer", small, lambda: {"proposer": GreedyProposer()}),
    Situation("a partitioner", small, lambda: {"partitioner": MemoryBalancedPartitioner()}),
    Situation("an absolute reservation", small, lambda: {"storage_reservation": FixedAbsoluteStorageReservation(GB)}),
    Situation(
        "min_partition",
        small,
        given(sharding_types=["column_wise"], min_partition=16),
        holds=lambda tables: all(shard.shard_sizes[1] >= 16 for shard in tables["t0"].sharding_spec.shards),
    ),
]  # fmt: skip

HEARD = [*TOWERS, *FUSED, *WORK, *TOPOLOGIES, *PARTS]
