"""Tables on SSD, virtual tables and their buckets, against the options, shards and storage of TorchRec's enumerator."""

from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("torchrec")

import torch
from torch import nn
from torchrec.distributed.embedding import EmbeddingCollectionSharder
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.distributed.planner.enumerators import EmbeddingEnumerator
from torchrec.distributed.planner.shard_estimators import EmbeddingStorageEstimator
from torchrec.distributed.planner.types import ParameterConstraints, PlannerError
from torchrec.distributed.planner.utils import build_sharder_data_map, sharder_name
from torchrec.distributed.types import KeyValueParams
from torchrec.modules.embedding_configs import EmbeddingBagConfig, NoEvictionPolicy
from torchrec.modules.embedding_modules import EmbeddingBagCollection

from shardwright.cost.published import PublishedModel
from shardwright.integrations.torchrec import SavedPlanLoader, load_sharding_plan, save_sharding_plan
from shardwright.integrations.torchrec.off_device import STORES
from shardwright.integrations.torchrec.options import sharding_options

from .made import GB, META, bags, planner, refused, sequences, tables_of, topology

pytestmark = pytest.mark.torchrec

FUSED = {"learning_rate": 0.1}
SHARDERS = [EmbeddingBagCollectionSharder(dict(FUSED)), EmbeddingCollectionSharder(dict(FUSED))]
SHAPES = ((400_000, 64), (8_000_000, 64), (1000, 64))
MEGABYTE = 1 << 20
MODEL = PublishedModel("h100")


def stored(kernel, megabytes=None, **fields):
    """Constraints that put table t1 into a key-value store."""
    params = KeyValueParams(max_l1_cache_size=megabytes) if megabytes else None
    return {"t1": ParameterConstraints(compute_kernels=[kernel], key_value_params=params, **fields)}


def virtual(rows, buckets, dim=8):
    """A module with one virtual table, t1."""
    config = EmbeddingBagConfig(
        name="t1",
        num_embeddings=rows,
        embedding_dim=dim,
        feature_names=["f"],
        total_num_buckets=buckets,
        use_virtual_table=True,
        virtual_table_eviction_policy=NoEvictionPolicy(),
    )
    return EmbeddingBagCollection(device=META, tables=[config])


def torchrecs_options(model, where, constraints):
    return EmbeddingEnumerator(where, 64, constraints).enumerate(model, SHARDERS)


def storage_by_rank(our_planner, plan, where, constraints):
    """Storage of each rank under a plan, by TorchRec's estimator."""
    options = sharding_options(plan, our_planner.last_problem, our_planner._cost_model)
    data = build_sharder_data_map({sharder_name(sharder.module_type): sharder for sharder in SHARDERS})
    EmbeddingStorageEstimator(where, constraints).estimate(options, data)
    total = np.zeros((where.world_size, 3))
    for option in options:
        for shard in option.shards:
            total[shard.rank] += (shard.storage.hbm, shard.storage.ddr, shard.storage.ssd)
    return total


@pytest.mark.parametrize("kernel", STORES)
@pytest.mark.parametrize("megabytes", [None, 64])
def test_a_table_in_a_store_is_planned_as_torchrecs_enumerator_offers_it(kernel, megabytes):
    where, given = topology(4, hbm=GB), stored(kernel, megabytes)
    our_planner = planner(where, constraints=given)
    plan = our_planner.plan(bags(SHAPES), SHARDERS)
    tables = tables_of(plan)
    assert tables["", "t1"].compute_kernel == kernel
    assert {tables["", name].compute_kernel for name in ("t0", "t2")} <= {"fused", "dense"}
    offered = [
        option
        for option in torchrecs_options(bags(SHAPES), where, given)
        if (option.name, option.compute_kernel) == ("t1", kernel)
    ]
    assert tables["", "t1"].sharding_type in {option.sharding_type for option in offered}
    limits = [(device.storage.hbm, device.storage.ddr, device.storage.ssd) for device in where.devices]
    assert (storage_by_rank(our_planner, plan, where, given) <= np.array(limits)).all()


def test_caches_in_full_devices_fit_by_torchrecs_estimate_too():
    """FBGEMM's notes, 4 bytes a row and 16 a slot, are included."""
    where = topology(4, hbm=256 * MEGABYTE, ddr_cap=4 * GB)
    our_planner = planner(where)
    plan = our_planner.plan(bags(SHAPES), SHARDERS)
    assert our_planner.last_moved.kernels == {"t1": "fused_uvm_caching"}
    limits = [(device.storage.hbm, device.storage.ddr, device.storage.ssd) for device in where.devices]
    held = storage_by_rank(our_planner, plan, where, {})
    assert (held <= np.array(limits)).all()
    assert held[:, 0].sum() > 0.7 * 4 * 256 * MEGABYTE


def test_our_storage_of_a_store_is_torchrecs():
    """Caches and SSD agree, except that TorchRec counts the state of the cache, 4 bytes a row and 16 a slot, as SSD."""
    where, given = topology(4, hbm=GB), stored("key_value", 64)
    our_planner = planner(where, constraints=given)
    plan = our_planner.plan(bags(SHAPES), SHARDERS)
    moved, theirs = our_planner.last_moved, storage_by_rank(our_planner, plan, where, given)
    rows, dim = SHAPES[1]
    assert moved.kernels == {"t1": "key_value"}
    assert moved.ssd_bytes == rows * dim * 4
    assert theirs[:, 2].sum() - moved.ssd_bytes == pytest.approx(rows * (4 + 16 * 0.2), abs=4)
    assert (moved.host_bytes, moved.cache_bytes) == (0, 4 * 64 * MEGABYTE)
    assert tables_of(plan)["", "t1"].sharding_type == "row_wise"
    share = 64 * MEGABYTE / (rows * dim)  # of each shard's rows in its cache: 4 bytes a weight, 4 shards
    fetched = 64 * 4 * (1 - share) * dim * 4
    assert moved.fetched_bytes == pytest.approx(fetched)
    assert moved.fetch_ms == pytest.approx(fetched / 4 / where.ssd_mem_bw)


def test_statistics_get_the_time_that_a_step_waits_for_the_ssd():
    our_planner = planner(topology(4), constraints=stored("key_value"))
    plan = our_planner.plan(bags(SHAPES), SHARDERS)
    options = {
        option.name: option for option in sharding_options(plan, our_planner.last_problem, our_planner._cost_model)
    }
    waits = [shard.perf.fwd_compute for shard in options["t1"].shards]
    assert sum(waits) >= 64 * 4 * 64 * 4 / topology(4).ssd_mem_bw
    assert sum(shard.storage.ssd for shard in options["t1"].shards) == our_planner.last_moved.ssd_bytes


@pytest.mark.parametrize("kernel", ["key_value", "dram_virtual_table"])
def test_sequences_may_lie_in_a_store_too(kernel):
    given = {"s0": ParameterConstraints(compute_kernels=[kernel])}
    our_planner = planner(topology(4), constraints=given)
    table = tables_of(our_planner.plan(sequences((8_000_000, 1000), 32), SHARDERS))["", "s0"]
    assert table.compute_kernel == kernel


def test_virtual_tables_are_row_wise():
    """FBGEMM's kernel finds its buckets by rank and world size, whatever the sharding type."""
    given = {"t1": ParameterConstraints(compute_kernels=["ssd_virtual_table"])}
    table = tables_of(planner(topology(4), constraints=given).plan(virtual(1000, 20), SHARDERS))["", "t1"]
    assert (table.sharding_type, table.ranks) == ("row_wise", [0, 1, 2, 3])


@pytest.mark.parametrize(("rows", "buckets", "ranks"), [(1000, 10, 4), (1000, 20, 4), (1000, 7, 4), (1200, 5, 3)])
def test_row_blocks_are_whole_buckets_if_torchrec_cuts_by_bucket(rows, buckets, ranks):
    rows -= rows % buckets
    given = {"t1": ParameterConstraints(compute_kernels=["dram_virtual_table"])}
    our_planner = planner(topology(ranks), constraints=given)
    table = tables_of(our_planner.plan(virtual(rows, buckets), SHARDERS))["", "t1"]
    options = torchrecs_options(virtual(rows, buckets), topology(ranks), given)
    theirs = next(option for option in options if option.sharding_type == "row_wise")
    shards = table.sharding_spec.shards
    assert [shard.shard_sizes for shard in shards] == [shard.size for shard in theirs.shards]
    assert [shard.shard_offsets for shard in shards] == [shard.offset for shard in theirs.shards]
    assert all(shard.shard_offsets[0] % (rows // buckets) == 0 for shard in shards)


@pytest.mark.parametrize("buckets", [20, 22])
def test_a_virtual_table_of_2_to_the_50_rows_is_planned_by_buckets(buckets):
    """Beside an ordinary table, with the caches of stores on all devices."""
    rows = 2**50 // buckets * buckets
    given = stored("ssd_virtual_table", 64)
    model = nn.ModuleDict({"virtual": virtual(rows, buckets, dim=64), "real": bags(SHAPES[:1])})
    our_planner = planner(topology(4, hbm=GB), constraints=given)
    tables = tables_of(our_planner.plan(model, SHARDERS))
    theirs = next(
        option
        for option in torchrecs_options(model, topology(4), given)
        if (option.name, option.sharding_type) == ("t1", "row_wise")
    )
    shards = tables["virtual", "t1"].sharding_spec.shards
    assert [shard.shard_sizes for shard in shards] == [shard.size for shard in theirs.shards]
    assert [shard.shard_offsets for shard in shards] == [shard.offset for shard in theirs.shards]
    assert tables["real", "t0"].compute_kernel in ("fused", "dense")
    assert our_planner.last_moved.cache_bytes == 4 * 64 * MEGABYTE
    assert our_planner.last_moved.fetched_bytes == pytest.approx(64 * 4 * 64 * 4)
    options = {
        option.name: option
        for option in sharding_options(our_planner.plan(model, SHARDERS), our_planner.last_problem, MODEL)
    }
    assert min(shard.storage.hbm for shard in options["t1"].shards) >= 64 * MEGABYTE
    small = planner(topology(4, hbm=60 * MEGABYTE), constraints=given)
    with refused("STRICT_CONSTRAINTS"):  # each device has a cache of 64 MB
        small.plan(model, SHARDERS)


@pytest.mark.parametrize(
    ("rows", "buckets", "rule"), [(1000, 3, "one for each"), (1000, 7, "do not divide its 1000 rows")]
)
def test_buckets_that_torchrec_refuses_are_refused(rows, buckets, rule):
    given = {"t1": ParameterConstraints(compute_kernels=["dram_virtual_table"])}
    if buckets == 3:
        rows = 999
    with pytest.raises((ValueError, AssertionError)):
        torchrecs_options(virtual(rows, buckets), topology(4), given)
    with refused("INPUT_VALIDATION", rule):
        planner(topology(4), constraints=given).plan(virtual(rows, buckets), SHARDERS)


@pytest.mark.parametrize("buckets", [8, 6])
def test_managed_collision_modules_need_whole_buckets_on_every_rank(buckets):
    from torchrec.distributed.mc_embeddingbag import ManagedCollisionEmbeddingBagCollectionSharder
    from torchrec.modules.hash_mc_modules import HashZchManagedCollisionModule
    from torchrec.modules.mc_embedding_modules import ManagedCollisionEmbeddingBagCollection
    from torchrec.modules.mc_modules import ManagedCollisionCollection

    tables = bags([(960, 16)])
    hashed = HashZchManagedCollisionModule(zch_size=960, device=torch.device("cpu"), total_num_buckets=buckets)
    collection = ManagedCollisionCollection({"t0": hashed}, tables.embedding_bag_configs())
    model, sharders = (
        ManagedCollisionEmbeddingBagCollection(tables, collection),
        [ManagedCollisionEmbeddingBagCollectionSharder()],
    )
    if buckets == 6:
        with pytest.raises(ValueError, match="uneven buckets"):
            EmbeddingEnumerator(topology(4), 64).enumerate(model, sharders)
        with pytest.raises(PlannerError, match="need a multiple of 4 ranks"):
            planner(topology(4)).plan(model, sharders)
        return
    table = tables_of(planner(topology(4)).plan(model, sharders))["", "t0"]
    assert [shard.shard_sizes for shard in table.sharding_spec.shards] == [[240, 16]] * 4


def test_row_blocks_of_one_host_are_whole_buckets_or_none():
    """10 buckets do not go evenly over the 4 devices of a host."""
    given = {"t1": ParameterConstraints(sharding_types=["table_row_wise"], compute_kernels=["fused"])}
    with pytest.raises(PlannerError, match="buckets cannot be cut"):
        planner(topology(8, 4), constraints=given).plan(virtual(1000, 10), SHARDERS)
    table = tables_of(planner(topology(8, 4), constraints=given).plan(virtual(1000, 20), SHARDERS))["", "t1"]
    assert [shard.shard_sizes[0] for shard in table.sharding_spec.shards] == [250] * 4


def test_another_kernel_than_key_value_needs_no_ssd():
    none = topology(4, ssd_cap=0)
    either = {"t1": ParameterConstraints(compute_kernels=["fused", "key_value"])}
    table = tables_of(planner(none, constraints=either).plan(bags(SHAPES), SHARDERS))["", "t1"]
    assert table.compute_kernel == "fused"


def test_a_table_goes_to_the_store_if_devices_lack_room():
    either = {"t1": ParameterConstraints(compute_kernels=["fused", "key_value"])}
    roomy, tight = (planner(topology(4, hbm=size, ddr_cap=GB), constraints=either) for size in (4 * GB, 256 * MEGABYTE))
    kernels = [
        tables_of(our_planner.plan(bags(SHAPES), SHARDERS))["", "t1"].compute_kernel for our_planner in (roomy, tight)
    ]
    assert kernels == ["fused", "key_value"]
    assert not roomy.last_moved.kernels
    assert tight.last_moved.ssd_bytes == SHAPES[1][0] * 64 * 4


def test_tables_in_stores_stay_whole_if_devices_lack_room_for_the_caches_of_all_shards():
    """Each of 4 tables takes 64 MB of cache for each of its shards, and a device has 100 MB."""
    given = {f"t{i}": stored("key_value", 64)["t1"] for i in range(4)}
    where = topology(4, hbm=100 * MEGABYTE)
    our_planner = planner(where, constraints=given)
    plan = our_planner.plan(bags([(8_000_000, 64)] * 4), SHARDERS)
    assert {table.sharding_type for table in tables_of(plan).values()} == {"table_wise"}
    assert sorted(table.ranks for table in tables_of(plan).values()) == [[0], [1], [2], [3]]
    limits = [(device.storage.hbm, device.storage.ddr, device.storage.ssd) for device in where.devices]
    assert (storage_by_rank(our_planner, plan, where, given) <= np.array(limits)).all()


def test_ssds_have_limits_too():
    """2 GB of table: more than one SSD has, no more than all have together."""
    whole = stored("key_value", sharding_types=["table_wise"])
    with pytest.raises(PlannerError, match="SSD"):
        planner(topology(4, ssd_cap=GB), constraints=whole).plan(bags(SHAPES), SHARDERS)
    any_way = stored("key_value", sharding_types=["table_wise", "row_wise"])
    our_planner = planner(topology(4, ssd_cap=GB), constraints=any_way)
    table = tables_of(our_planner.plan(bags(SHAPES), SHARDERS))["", "t1"]
    assert table.sharding_type == "row_wise"


def test_a_plan_with_a_store_is_saved_and_loaded(tmp_path):
    params = KeyValueParams(max_l1_cache_size=64, ssd_storage_directory="/ssd", ps_hosts=(("::1", 2000),))
    given = {"t1": replace(stored("key_value")["t1"], key_value_params=params)}
    first = planner(topology(4), constraints=given)
    plan = first.plan(bags(SHAPES), SHARDERS)
    save_sharding_plan(plan, tmp_path / "plan.json", first.hash_planner_context_inputs_str())
    loaded = load_sharding_plan(tmp_path / "plan.json")
    assert tables_of(loaded)["", "t1"] == tables_of(plan)["", "t1"]
    assert tables_of(loaded)["", "t1"].key_value_params == params
    again = planner(topology(4), constraints=given, plan_loader=SavedPlanLoader(tmp_path / "plan.json"))
    assert tables_of(again.plan(bags(SHAPES), SHARDERS))["", "t1"] == tables_of(plan)["", "t1"]
    assert again.last_moved == first.last_moved
