"""Every check of TorchRec's enumerator, estimators and planner: the requests that it refuses, and the error of our planner.

TorchRec often refuses by assertions and other errors of Python; our error is always a `PlannerError` with a type.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.distributed.planner.types import CustomTopologyData, ParameterConstraints
from torchrec.distributed.types import CacheParams
from torchrec.modules.embedding_configs import EmbeddingBagConfig
from torchrec.modules.embedding_modules import EmbeddingBagCollection

from tests.drop_in.situation import PLANNED, Situation
from tests.unit.integrations.torchrec.made import GB, META, bags, topology


def small() -> EmbeddingBagCollection:
    return bags([(1000, 64), (2000, 64)])


def large() -> EmbeddingBagCollection:
    return bags([(20_000_000, 64)] * 2)


def shared() -> EmbeddingBagCollection:
    """A table that two features look up."""
    one = EmbeddingBagConfig(name="t0", num_embeddings=1000, embedding_dim=64, feature_names=["f", "g"])
    return EmbeddingBagCollection(tables=[one], device=META)


def given(**fields: Any) -> Callable[[], dict[str, Any]]:
    """Constraints on table t0."""
    return lambda: {"constraints": {"t0": ParameterConstraints(**fields)}}


def cached(**params: Any) -> Callable[[], dict[str, Any]]:
    """Table t0 in host memory with a cache."""
    return given(compute_kernels=["fused_uvm_caching"], cache_params=CacheParams(**params))


def on(batch_size: int = 64, constraints: dict[str, Any] | None = None, **fields: Any) -> Callable[[], dict[str, Any]]:
    """A topology, and the same constraints on both tables if any are given."""
    both = {f"t{i}": ParameterConstraints(**constraints) for i in range(2)} if constraints else None
    return lambda: {"topology": topology(**fields), "constraints": both, "batch_size": batch_size}


def changed(change: Callable[[Any], None]) -> Callable[[], dict[str, Any]]:
    """A callback that changes the option of table t0, which is table_wise."""

    def callback(options: list[Any]) -> list[Any]:
        change(next(option for option in options if option.name == "t0"))
        return options

    return lambda: {"callbacks": [callback], **given(sharding_types=["table_wise"])()}


def rank(value: int | None) -> Callable[[Any], None]:
    return lambda option: setattr(option.shards[0], "rank", value)


def fused(**params: Any) -> Callable[[], list[Any]]:
    """A sharder with fused parameters."""
    return lambda: [EmbeddingBagCollectionSharder(dict(params))]


class NothingSharder(EmbeddingBagCollectionSharder):
    def sharding_types(self, compute_device_type: str) -> list[str]:
        return []


class UvmSharder(EmbeddingBagCollectionSharder):
    def compute_kernels(self, sharding_type: str, compute_device_type: str) -> list[str]:
        return ["fused_uvm"]


ASSERTED, VALUE, RUNTIME = "AssertionError", "ValueError", "RuntimeError"
INVALID, KERNEL, STRICT, STORAGE = ("INPUT_VALIDATION", "INVALID_COMPUTE_KERNEL", "STRICT_CONSTRAINTS", "INSUFFICIENT_STORAGE")  # fmt: skip
RANK, MISSING = "INVALID_RANK_ASSIGNMENT", "MISSING_MODULE_IN_PLAN"
ONE_EACH = "one number for each feature, as TorchRec's documentation demands"

LISTS = [
    Situation("2 pooling factors, 1 number of poolings", small, given(pooling_factors=[1.0, 2.0], num_poolings=[1.0]), ASSERTED, INVALID),
    Situation("2 numbers of poolings, 1 feature", small, given(num_poolings=[1.0, 2.0]), ASSERTED, INVALID),
    Situation("2 batch sizes, 1 feature", small, given(batch_sizes=[8, 8]), ASSERTED, INVALID),
    Situation("1 batch size, 2 features", shared, given(pooling_factors=[1.0, 2.0], batch_sizes=[8]), ASSERTED, INVALID),
    Situation("1 pooling factor, 2 batch sizes", shared, given(pooling_factors=[3.0], batch_sizes=[8, 8]), ASSERTED, INVALID),
    Situation(
        "2 batch sizes, the default pooling factor", shared, given(batch_sizes=[8, 8]), ASSERTED, why="the default counts for each feature"
    ),
    Situation("2 pooling factors, 1 feature", small, given(pooling_factors=[1.0, 2.0]), PLANNED, INVALID, why=ONE_EACH),
    Situation("no pooling factors", small, given(pooling_factors=[]), PLANNED, INVALID, why=ONE_EACH),
    Situation("a negative pooling factor", small, given(pooling_factors=[-1.0]), ASSERTED, INVALID),
    Situation("a pooling factor that is no number", small, given(pooling_factors=[float("nan")]), VALUE, INVALID),
    Situation("an infinite pooling factor", small, given(pooling_factors=[float("inf")]), "OverflowError", INVALID),
    Situation("a negative number of poolings", small, given(num_poolings=[-1.0]), ASSERTED, INVALID),
    Situation("a negative batch size of a feature", small, given(batch_sizes=[-8]), ASSERTED, INVALID),
    Situation("a batch size of 0 of a feature", small, given(batch_sizes=[0])),
]  # fmt: skip

KERNELS = [
    Situation("load factor 0", small, cached(load_factor=0.0), KERNEL, KERNEL),
    Situation("load factor 1", small, cached(load_factor=1.0), KERNEL, KERNEL),
    Situation("load factor 1.5", small, cached(load_factor=1.5), KERNEL, KERNEL),
    Situation("load factor −0.1", small, cached(load_factor=-0.1), ASSERTED, KERNEL),
    Situation("load factor 1.5 of a table that is not cached", small, given(cache_params=CacheParams(load_factor=1.5))),
    Situation("load factor 1.5 in fused_params", small, cached(), sharders=fused(cache_load_factor=1.5)),
    Situation("an unknown sharding type", small, given(sharding_types=["no_such_type"]), RUNTIME, STRICT),
    Situation("an unknown compute kernel", small, given(compute_kernels=["no_such_kernel"]), RUNTIME, STRICT),
    Situation(
        "data_parallel by a fused kernel", small, given(sharding_types=["data_parallel"], compute_kernels=["fused"]), RUNTIME, STRICT
    ),
    Situation("table_wise by a dense kernel", small, given(sharding_types=["table_wise"], compute_kernels=["dense"]), RUNTIME, STRICT),
    Situation("key_value without an SSD", small, on(constraints={"compute_kernels": ["key_value"]}, ssd_cap=0), RUNTIME, STRICT),
    Situation("fused_uvm on CPUs", small, on(device="cpu"), VALUE, STRICT, sharders=lambda: [UvmSharder()]),
    Situation("a sharder without sharding types", small, dict, RUNTIME, STRICT, sharders=lambda: [NothingSharder()]),
    Situation("min_partition 0", small, given(sharding_types=["column_wise"], min_partition=0)),
    Situation("min_partition above the dim", small, given(sharding_types=["column_wise"], min_partition=100)),
    Situation("min_partition that does not divide the dim", small, given(sharding_types=["column_wise"], min_partition=24)),
    Situation("min_partition −4", small, given(sharding_types=["column_wise"], min_partition=-4), VALUE, INVALID),
]  # fmt: skip

WHOLE = {"compute_kernels": ["fused"], "sharding_types": ["table_wise"]}
UVM, CACHED, STORED = ({"compute_kernels": [kernel]} for kernel in ("fused_uvm", "fused_uvm_caching", "key_value"))
LEFT_OUT = {"hbm_cap": [GB, GB, GB, 0]}
ROOM = [
    Situation("a model beyond all memory", large, on(hbm=GB, ddr_cap=GB), STORAGE, STORAGE),
    Situation("a batch beyond device memory", small, on(10_000_000, world=1, hbm=GB), STORAGE, STORAGE),
    Situation("pooling factors beyond device memory", small, on(1 << 20, {"pooling_factors": [5000.0]}, hbm=GB), STORAGE, STORAGE),
    Situation("table_wise, too large for a device", large, on(constraints=WHOLE, hbm=4 * GB), STRICT, STRICT),
    Situation("replicas beyond device memory", large, on(constraints={"sharding_types": ["data_parallel"]}, hbm=4 * GB), STORAGE, STORAGE),
    Situation("fused kernels beyond device memory", large, on(constraints={"compute_kernels": ["fused"]}, hbm=GB), STORAGE, STORAGE),
    Situation("UVM beyond host memory", large, on(constraints=UVM, ddr_cap=GB), STORAGE, STORAGE),
    Situation(
        "UVM beyond host memory, less than device memory", large, on(64, UVM, world=1, hbm=80 * GB, ddr_cap=8 * GB), STORAGE, STORAGE
    ),
    Situation("cached tables beyond host memory", large, on(constraints=CACHED, ddr_cap=GB), STORAGE, STORAGE),
    Situation("key_value beyond the SSDs", large, on(constraints=STORED, ssd_cap=GB), STORAGE, STORAGE),
    Situation("no memory on any rank", small, on(hbm=0), STORAGE, STORAGE),
    Situation(
        "row_wise, and a rank without memory",
        small,
        on(constraints={"sharding_types": ["row_wise"]}, custom_topology_data=CustomTopologyData(LEFT_OUT, 4)),
        STRICT,
        STRICT,
    ),
]  # fmt: skip

UVM_CACHED = cached()()
OTHERS = [
    Situation("a timeout of −1 s", small, lambda: {"timeout_seconds": -1}, ASSERTED, INVALID),
    Situation("a callback puts a shard on rank −1", small, changed(rank(-1)), VALUE, RANK),
    Situation("a callback puts a shard on no rank", small, changed(rank(None)), "TypeError", RANK),
    Situation("a callback puts a shard on rank 99 of 4", small, changed(rank(99)), VALUE, RANK),
    Situation(
        "a callback names an unknown kernel", small, changed(lambda one: setattr(one, "compute_kernel", "no_such_kernel")), KERNEL, KERNEL
    ),
    Situation("a callback makes table_wise dense", small, changed(lambda one: setattr(one, "compute_kernel", "dense")), KERNEL, KERNEL),
    Situation(
        "a callback sets a load factor of 1.5",
        small,
        lambda: changed(lambda one: setattr(one, "cache_params", CacheParams(load_factor=1.5)))() | UVM_CACHED,
        KERNEL,
        KERNEL,
    ),
    Situation("a callback loses all tables", small, lambda: {"callbacks": [lambda options: []]}, MISSING, MISSING),
    Situation("no sharders", small, sharders=list),
    Situation(
        "tables of another device group",
        small,
        lambda: {"constraints": {f"t{i}": ParameterConstraints(device_group="cpu") for i in (0, 1)}},
    ),
    Situation("constraints of a table that the model lacks", small, lambda: {"constraints": {"x": ParameterConstraints()}}),
]  # fmt: skip

REFUSED = [*LISTS, *KERNELS, *ROOM, *OTHERS]
