"""Requests of users other than constraints: fused parameters, enumerators, multipliers of topologies, ranks without memory."""

from dataclasses import fields

import pytest

pytest.importorskip("torchrec")

from fbgemm_gpu.split_embedding_configs import SparseType
from fbgemm_gpu.split_table_batched_embeddings_ops_common import BoundsCheckMode, CacheAlgorithm
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.distributed.planner.enumerators import EmbeddingEnumerator
from torchrec.distributed.planner.shard_estimators import EmbeddingStorageEstimator
from torchrec.distributed.planner.types import CustomTopologyData, GeneralizedCommsBandwidth, ParameterConstraints
from torchrec.distributed.types import CacheParams, KeyValueParams, ParameterSharding, PipelineType
from torchrec.distributed.utils import add_params_from_parameter_sharding
from torchrec.modules.embedding_configs import DataType

import shardwright as sw
from shardwright.integrations.torchrec import ShardwrightPlanner
from shardwright.integrations.torchrec.caching import demanded

from .made import GB, SHARDERS, Model, bags, planner, ranks_of, refused, tables_of, topology

pytestmark = pytest.mark.torchrec

CACHED = {f"t{i}": ParameterConstraints(compute_kernels=["fused_uvm_caching"]) for i in range(3)}
SHAPES = [(400_000, 64), (100_000, 32)]
FUSED = {
    "cache_algorithm": CacheAlgorithm.LFU,
    "cache_load_factor": 0.1,
    "cache_reserved_memory": 0.5,
    "cache_precision": DataType.FP32,
    "prefetch_pipeline": False,
    "multipass_prefetch_config": None,
    "enforce_hbm": True,
    "stochastic_rounding": False,
    "bounds_check_mode": BoundsCheckMode.WARNING,
    "output_dtype": SparseType.FP16,
    "max_l1_cache_size": 3,
}
"""A value of each field that a plan can override."""


def test_fields_that_a_plan_can_override_are_known():
    """A field that TorchRec adds to plans has to be added here."""
    of_plan = (
        "sharding_type compute_kernel ranks sharding_spec cache_params key_value_params enforce_hbm stochastic_rounding"
    )
    assert {field.name for field in fields(ParameterSharding)} == {
        *of_plan.split(),
        "bounds_check_mode",
        "output_dtype",
    }
    of_cache = "algorithm load_factor reserved_memory precision prefetch_pipeline stats multipass_prefetch_config"
    assert {field.name for field in fields(CacheParams)} == set(of_cache.split())


@pytest.mark.parametrize("constraints", [CACHED, None])
def test_fused_parameters_reach_the_kernel_as_the_sharder_has_them(constraints):
    where = topology(2, hbm=GB if constraints else GB // 20)
    plan = planner(where, constraints=constraints).plan(bags(SHAPES), [EmbeddingBagCollectionSharder(dict(FUSED))])
    tables = tables_of(plan).values()
    assert any(table.compute_kernel == "fused_uvm_caching" for table in tables)
    assert all(add_params_from_parameter_sharding(dict(FUSED), table) == FUSED for table in tables)


def test_types_on_the_wire_are_those_of_fused_parameters_too():
    ours = planner()
    ours.plan(bags(SHAPES), [EmbeddingBagCollectionSharder({"output_dtype": SparseType.FP16})])
    assert ours.last_problem.task.exchange.values == "fp16"


def test_caches_of_stores_have_the_size_of_fused_parameters_too():
    def cache(fused, params):
        given = {
            "t0": ParameterConstraints(
                sharding_types=["table_wise"], compute_kernels=["key_value"], key_value_params=params
            )
        }
        ours = planner(topology(2, ssd_cap=GB), constraints=given)
        ours.plan(bags([(4_000_000, 64)]), [EmbeddingBagCollectionSharder(fused)])
        return ours.last_moved.cache_bytes

    assert cache({"max_l1_cache_size": 3}, None) == cache({}, KeyValueParams(max_l1_cache_size=3)) == 3 << 20
    assert cache({"max_l1_cache_size": 3}, KeyValueParams(max_l1_cache_size=5)) == 5 << 20


@pytest.mark.parametrize("by", ["sharder", "constraint", "neither"])
def test_a_prefetched_cache_holds_two_batches(by):
    params = CacheParams(prefetch_pipeline=True) if by == "constraint" else None
    given = {
        "t0": ParameterConstraints(["table_wise"], ["fused_uvm_caching"], pooling_factors=[20.0], cache_params=params)
    }
    sharders = [EmbeddingBagCollectionSharder({"prefetch_pipeline": True} if by == "sharder" else None)]
    ours = planner(topology(2, hbm=GB, ddr_cap=100 * GB), constraints=given, batch_size=20_000)
    ours.plan(bags([(4_000_000, 64)]), sharders)
    distinct = sw.AccessProfile.uniform(4_000_000).distinct_rows(2 * 2 * 20_000 * 20)
    least = demanded(ours.last_problem)["t0"].load_factor
    assert least == pytest.approx(0.01 if by == "neither" else distinct / 4_000_000)
    assert ours.last_problem.task.exchange.pipeline == ("none" if by == "neither" else "prefetch")


def test_a_named_cache_too_small_for_a_prefetching_pipeline_is_kept_and_warned_of():
    given = {"t0": ParameterConstraints(compute_kernels=["fused_uvm_caching"], pooling_factors=[20.0])}
    sharders = [EmbeddingBagCollectionSharder({"prefetch_pipeline": True, "cache_load_factor": 0.02})]
    ours = planner(topology(2, hbm=GB), constraints=given, batch_size=20_000)
    with pytest.warns(UserWarning, match="'t0' has cache_load_factor 0.02, two batches .* look up 0.33 of its rows"):
        plan = ours.plan(bags([(4_000_000, 64)]), sharders)
    assert tables_of(plan)["", "t0"].cache_params is None  # the sharder's counts


def test_the_pipeline_of_the_storage_estimator_counts_its_batches():
    where = topology()
    for kind, name in (
        (PipelineType.TRAIN_SPARSE_DIST, "sparse_dist"),
        (PipelineType.TRAIN_PREFETCH_SPARSE_DIST, "prefetch"),
        (PipelineType.NONE, "none"),
    ):
        enumerator = EmbeddingEnumerator(where, 64, estimator=EmbeddingStorageEstimator(where, pipeline_type=kind))
        ours = planner(where, enumerator=enumerator)
        ours.plan(Model(), SHARDERS)
        assert ours.last_problem.task.exchange.pipeline == name


class RowsOnly(EmbeddingEnumerator):
    def enumerate(self, module, sharders):
        return [option for option in super().enumerate(module, sharders) if option.sharding_type == "row_wise"]


class NothingOfT1(EmbeddingEnumerator):
    def enumerate(self, module, sharders):
        return [option for option in super().enumerate(module, sharders) if option.name != "t1"]


def kinds_of(plan):
    return {name: table.sharding_type for (_, name), table in tables_of(plan).items()}


def test_constraints_of_the_enumerator_count_before_those_of_the_planner():
    where = topology()
    of_enumerator = {f"t{i}": ParameterConstraints(sharding_types=["row_wise"]) for i in range(2)}
    of_planner = {f"t{i}": ParameterConstraints(sharding_types=["column_wise"]) for i in range(1, 3)}
    enumerator = EmbeddingEnumerator(where, 64, constraints=of_enumerator)
    plan = planner(where, enumerator=enumerator, constraints=of_planner).plan(bags([(40_000, 64)] * 3), SHARDERS)
    assert kinds_of(plan) == {"t0": "row_wise", "t1": "row_wise", "t2": "column_wise"}


def test_an_enumerator_of_the_users_is_asked_what_it_allows_in_groups_too():
    where = topology()
    groups = planner(where, enumerator=RowsOnly(where, 64), sharding_group_size=2)
    assert set(kinds_of(groups.plan(bags([(40_000, 64)] * 3), SHARDERS)).values()) == {"row_wise"}


def test_a_table_for_which_an_enumerator_lists_nothing_is_named():
    with refused("STRICT_CONSTRAINTS", r"'\.t1': the enumerator lists nothing"):
        planner(enumerator=NothingOfT1(topology(), 64)).plan(bags([(40_000, 64)] * 3), SHARDERS)


def test_the_batch_size_of_the_enumerator_counts_as_for_torchrec():
    where = topology()
    ours = planner(where, batch_size=None, enumerator=EmbeddingEnumerator(where, 96))  # no warning of a missing one
    ours.plan(Model(), SHARDERS)
    assert ours.last_problem.batch_size == 96
    with pytest.warns(UserWarning, match="batch_size is 64 for the planner and 96 for its enumerator: 96 counts"):
        ours = ShardwrightPlanner(where, 64, enumerator=EmbeddingEnumerator(where, 96), stats=[])
    ours.plan(Model(), SHARDERS)
    assert ours.last_problem.batch_size == 96


class Usual(GeneralizedCommsBandwidth):
    intra_host_bw = property(lambda self: 6e8)
    inter_host_bw = property(lambda self: 1e7)

    def get_bw(self, local_world_size, world_size, collective_type):
        return 1e3


def test_the_bandwidth_of_host_memory_without_effect_on_cpus_is_warned_of():
    with pytest.warns(UserWarning, match=r"ddr_mem_bw 1: .*without effect") as caught:
        ShardwrightPlanner(topology(device="cpu", ddr_mem_bw=1.0), 64, stats=[])
    assert len(caught) == 1


def test_no_warning_for_settings_that_count():
    where = topology(hbm_mem_bw=1e9, hbm_to_ddr_mem_bw=1e7, ssd_mem_bw=1e5, ddr_mem_bw=3e7)
    planner(where)  # fails if anything warns
    planner(topology(generalized_comms_bandwidths=Usual()))


def test_a_rank_with_less_than_no_memory_holds_nothing():
    where = topology(4, custom_topology_data=CustomTopologyData({"hbm_cap": [GB, -5, GB, GB]}, 4))
    tables = tables_of(planner(where).plan(Model(), SHARDERS))
    assert {rank for table in tables.values() for rank in ranks_of(table)} <= {0, 2, 3}
