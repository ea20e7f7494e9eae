"""The planner from outside: the cases of TorchRec's published planner tests, and bad input."""

import pytest

pytest.importorskip("torchrec")

from torch import nn
from torchrec.distributed.planner.storage_reservations import (
    FixedPercentageStorageReservation,
    HeuristicalStorageReservation,
)
from torchrec.distributed.planner.types import ParameterConstraints, Stats
from torchrec.distributed.sharding_plan import get_default_sharders
from torchrec.distributed.types import BoundsCheckMode, CacheAlgorithm, CacheParams
from torchrec.modules.embedding_configs import DataType

from shardwright.integrations.torchrec import ShardwrightPlanner, plan_of

from .made import GB, SHARDERS, Model, bags, planner, ranks_of, refused, tables_of, topology, with_optimizer

pytestmark = pytest.mark.torchrec


def test_modules_with_tables_of_equal_names_are_all_planned():
    model = nn.Module()
    model.one, model.other = bags([(1000, 16), (500, 16)]), bags([(77, 32)])
    ours = planner()
    tables = tables_of(ours.plan(model, SHARDERS))
    assert set(tables) == {("one", "t0"), ("one", "t1"), ("other", "t0")}
    assert ours.last_problem.name_of == {("one", "t0"): "one.t0", ("one", "t1"): "t1", ("other", "t0"): "other.t0"}


def test_fields_of_constraints_pass_through_exactly():
    cache = CacheParams(CacheAlgorithm.LFU, 0.1, 2.0, DataType.FP16, prefetch_pipeline=True)
    given = ParameterConstraints(
        compute_kernels=["fused_uvm_caching"],
        cache_params=cache,
        enforce_hbm=True,
        stochastic_rounding=False,
        bounds_check_mode=BoundsCheckMode.WARNING,
        output_dtype=DataType.BF16,
    )
    tables = tables_of(planner(constraints={"t0": given}).plan(Model(), SHARDERS))
    table, other = tables["pooled", "t0"], tables["pooled", "t1"]
    assert table.compute_kernel == "fused_uvm_caching"
    assert table.cache_params == cache
    assert (table.enforce_hbm, table.stochastic_rounding) == (True, False)
    assert (table.bounds_check_mode, table.output_dtype) == (BoundsCheckMode.WARNING, DataType.BF16)
    assert (other.cache_params, other.enforce_hbm, other.output_dtype) == (None, None, None)


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("dim", [1, 6])
def test_pooled_tables_of_dims_that_fused_kernels_refuse_are_replicated(dim, ranks):
    tables = tables_of(planner(topology(ranks)).plan(bags([(1000, dim), (1000, 8)]), with_optimizer()))
    assert (tables["", "t0"].sharding_type, tables["", "t0"].compute_kernel) == ("data_parallel", "dense")
    assert tables["", "t1"].compute_kernel == "fused"


def test_an_error_names_the_dim_that_fused_kernels_refuse():
    whole = {"t0": ParameterConstraints(sharding_types=["table_wise"])}
    with refused("STRICT_CONSTRAINTS", "dim, here 6"):
        planner(topology(2), constraints=whole).plan(bags([(1000, 6)]), SHARDERS)


def test_constraints_for_tables_that_the_model_lacks_only_warn():
    others = {f"other{i}": ParameterConstraints(sharding_types=["row_wise"]) for i in range(3)}
    plain = planner(constraints={"t0": ParameterConstraints()}, time_limit=60).plan(Model(), with_optimizer())
    our_planner = planner(constraints={"t0": ParameterConstraints()} | others, time_limit=60)
    with pytest.warns(UserWarning, match="other0, other1, other2 are ignored") as caught:
        plan = our_planner.plan(Model(), with_optimizer())
    assert len(caught) == 1
    assert tables_of(plan) == tables_of(plain)


def test_constraints_without_content_or_for_odd_names_do_not_stop_a_plan():
    """TorchRec's planner ignores them."""
    with pytest.warns(UserWarning, match="3, x are ignored"):
        plan = planner(constraints={"t0": None, 3: None, "x": None}).plan(Model(), with_optimizer())
    assert len(tables_of(plan)) == 5


def test_tables_of_another_device_group_are_left_out():
    our_planner = planner(constraints={"t0": ParameterConstraints(device_group="cpu")})
    assert ("pooled", "t0") not in tables_of(our_planner.plan(Model(), SHARDERS))


@pytest.mark.parametrize(
    "field", [{"time_limit": 0}, {"timeout_seconds": -1}, {"time_limit": float("nan")}, {"timeout_seconds": 10**400}]
)
def test_times_must_be_positive(field):
    with refused("INPUT_VALIDATION"):
        planner(**field)


def test_the_memory_of_a_gpu_must_have_a_bandwidth():
    with refused("INPUT_VALIDATION", "hbm_mem_bw"):
        planner(topology(hbm_mem_bw=0)).plan(Model(), SHARDERS)


def test_a_planner_plans_again_after_a_plan_that_failed():
    again = planner(topology(hbm=1 << 20))
    with refused("INSUFFICIENT_STORAGE"):
        again.plan(Model(((1_000_000, 64),)), SHARDERS)
    assert again.last_plan is None
    assert tables_of(again.plan(bags([(100, 16)]), SHARDERS))


def test_a_last_host_with_fewer_ranks_gets_tables_and_no_row_blocks_of_hosts():
    model = Model(((1_000_000, 64),) * 4 + ((50_000_000, 64),))
    tables = tables_of(planner(topology(6, 4)).plan(model, SHARDERS))
    assert set().union(*map(ranks_of, tables.values())) == set(range(6))
    assert not {table.sharding_type for table in tables.values()} & {"table_row_wise", "grid_shard"}
    columns = {f"t{i}": ParameterConstraints(sharding_types=["table_column_wise"], min_partition=32) for i in range(5)}
    tables = tables_of(planner(topology(6, 4), constraints=columns).plan(model, SHARDERS))
    of_hosts = [ranks_of(table) for table in tables.values() if table.sharding_type == "table_column_wise"]
    assert len(of_hosts) == 5
    assert all(len({rank // 4 for rank in ranks}) == 1 for ranks in of_hosts)
    demanded = {"t0": ParameterConstraints(sharding_types=["table_row_wise"])}
    with refused("STRICT_CONSTRAINTS", "hosts of equal size"):
        planner(topology(6, 4), constraints=demanded).plan(model, SHARDERS)


def test_a_missing_batch_size_and_parts_without_effect_are_warned_of():
    with pytest.warns(UserWarning, match="512 samples"):
        ShardwrightPlanner(topology(), stats=[], storage_reservation=FixedPercentageStorageReservation(0.0))
    with pytest.warns(UserWarning, match="partitioner: part of TorchRec's search"):
        ShardwrightPlanner(topology(), 64, partitioner=object())


def test_meta_and_real_modules_get_the_same_plan():
    import torch

    shapes = {"pooled": ((400, 16), (1000, 8)), "sequence": (70,)}
    plans = [planner(time_limit=60).plan(Model(**shapes, device=torch.device(d)), SHARDERS) for d in ("meta", "cpu")]
    assert tables_of(plans[0]) == tables_of(plans[1])


def test_the_reservation_decides_the_memory():
    model = bags([(1_000_000, 128)] * 8)
    fused = {f"t{i}": ParameterConstraints(compute_kernels=["fused"], sharding_types=["table_wise"]) for i in range(8)}
    roomy = planner(topology(4, hbm=2 * GB), constraints=fused)
    assert len(tables_of(roomy.plan(model, SHARDERS))) == 8
    tight = planner(
        topology(4, hbm=2 * GB), constraints=fused, storage_reservation=FixedPercentageStorageReservation(0.7)
    )
    with pytest.warns(FutureWarning):
        heuristic = HeuristicalStorageReservation(0.0, dense_tensor_estimate=3 * GB)
    dense = planner(topology(4, hbm=2 * GB), constraints=fused, storage_reservation=heuristic)
    for our_planner in (tight, dense):
        with refused("INSUFFICIENT_STORAGE"):
            our_planner.plan(model, SHARDERS)


def test_callbacks_change_the_plan_and_statistics_see_it():
    seen = {}

    class Seen(Stats):
        def log(self, **fields):
            seen.update(fields)

    def to_rank_one(options):
        for option in options:
            if option.sharding_type == "table_wise":
                option.shards[0].rank = 1
        return options

    whole = {f"t{i}": ParameterConstraints(sharding_types=["table_wise"]) for i in range(3)}
    plan = planner(stats=Seen(), callbacks=[to_rank_one], constraints=whole).plan(Model(sequence=()), SHARDERS)
    assert {tuple(ranks_of(table)) for table in tables_of(plan).values()} == {(1,)}
    assert seen["sharding_plan"] is plan
    assert [option.shards[0].rank for option in seen["best_plan"]] == [1, 1, 1]
    assert seen["best_plan"][0].total_storage.hbm > 4096 * 128 * 4


def test_default_sharders_and_cpu_devices():
    our_planner = planner(topology(2, device="cpu"))
    tables = tables_of(our_planner.plan(Model(), get_default_sharders()))
    assert {
        shard.placement.device().type for t in tables.values() if t.sharding_spec for shard in t.sharding_spec.shards
    } == {"cpu"}
    assert our_planner.last_plan.cost_model.startswith("cpu")
    assert all(tables["sequence", f"s{i}"].sharding_type != "data_parallel" for i in range(2))


def test_columns_on_one_host_are_not_planned_unasked():
    our_planner = planner(topology(8, 4))
    kinds = {table.sharding_type for table in tables_of(our_planner.plan(Model(), SHARDERS)).values()}
    assert "table_column_wise" not in kinds


@pytest.mark.parametrize("world", [(1, 1), (4, 1), (4, 4), (4, 2), (16, 8)])
@pytest.mark.parametrize(
    "kind",
    ["data_parallel", "table_wise", "column_wise", "row_wise", "table_row_wise", "table_column_wise", "grid_shard"],
)
def test_every_sharding_type_is_planned_on_demand(kind, world):
    asked = {f"t{i}": ParameterConstraints(sharding_types=[kind]) for i in range(4)}
    our_planner = planner(topology(*world), constraints=asked)
    shapes = ((10_000, 256), (3, 256), (1, 64), (77, 20))
    plan = our_planner.plan(Model(shapes), SHARDERS)
    tables = tables_of(plan)
    assert {tables["pooled", f"t{i}"].sharding_type for i in range(4)} == {kind}
    plan_of(plan, our_planner.last_problem).check()


def test_min_partition_is_the_narrowest_column_block():
    asked = {f"t{i}": ParameterConstraints(sharding_types=["column_wise"], min_partition=60) for i in range(3)}
    plan = planner(constraints=asked).plan(bags([(100_000, 256), (50_000, 192), (10_000, 64)]), SHARDERS)
    widths = {name: [s.shard_sizes[1] for s in t.sharding_spec.shards] for (_, name), t in tables_of(plan).items()}
    assert all(width % 64 == 0 for width in widths["t0"] + widths["t1"])
    assert len(widths["t0"]) > 1
    assert widths["t2"] == [64]


def test_the_same_seed_gives_the_same_plan():
    model = bags([(1000 * (i + 1), 32) for i in range(20)])
    plans = [planner(seed=3, time_limit=60).plan(model, SHARDERS) for _ in range(2)]
    assert tables_of(plans[0]) == tables_of(plans[1])


@pytest.mark.parametrize("strategy", ["greedy", "neuroshard", "size"])
def test_other_strategies_keep_the_constraints(strategy):
    asked = {"t0": ParameterConstraints(sharding_types=["row_wise"]), "t1": ParameterConstraints(min_partition=32)}
    our_planner = planner(topology(4, 2), strategy=strategy, constraints=asked)
    types = {name: table.sharding_type for (_, name), table in tables_of(our_planner.plan(Model(), SHARDERS)).items()}
    assert types["t0"] == "row_wise"
    assert our_planner.last_plan.strategy == strategy
