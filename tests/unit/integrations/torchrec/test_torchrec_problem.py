"""Model, sharders and topology as a task."""

import pytest

pytest.importorskip("torchrec")

from dataclasses import replace

import numpy as np
import torch
from fbgemm_gpu.split_embedding_configs import EmbOptimType
from torch import nn
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.distributed.fbgemm_qcomm_codec import CommType, QCommsConfig, get_qcomm_codecs_registry
from torchrec.distributed.planner.enumerators import EmbeddingEnumerator
from torchrec.distributed.planner.types import CustomTopologyData, ParameterConstraints
from torchrec.distributed.sharding_plan import get_default_sharders
from torchrec.modules.embedding_configs import DataType, EmbeddingBagConfig
from torchrec.modules.embedding_modules import EmbeddingBagCollection
from torchrec.modules.fused_embedding_modules import FusedEmbeddingBagCollection

import shardwright as sw
from shardwright.errors import InvalidInput
from shardwright.integrations.torchrec import problem_of, with_profiles
from shardwright.integrations.torchrec.topology import default_cost_model
from shardwright.sharding import shard_work

from .made import GB, META, SHARDERS, AllTypesSharder, Model, bags, planner, sequences, tables_of, topology

pytestmark = pytest.mark.torchrec


def test_tables_batch_and_links_become_a_task():
    where = topology(16, 8, hbm=10 * GB, intra_host_bw=2e8, inter_host_bw=1e7)
    task = problem_of(Model(), SHARDERS, where, 512).task
    assert {(t.name, t.rows, t.dim, t.pooled) for t in task.tables} == {
        ("t0", 4096, 128, True),
        ("t1", 1000, 64, True),
        ("t2", 100_000, 32, True),
        ("s0", 5000, 32, False),
        ("s1", 700, 32, False),
    }
    assert task.batch_size == 16 * 512
    assert (task.topology.hosts, task.topology.devices_per_host) == (2, 8)
    assert task.topology.memory_bytes == (10 * GB,) * 16
    assert task.topology.link_bandwidth == (2e11, 1e10)  # TorchRec counts bytes per ms


def test_pods_are_hosts_and_every_device_may_have_its_own_memory():
    sizes = [GB * (rank + 1) for rank in range(8)]
    where = topology(8, 2, pod_size=2, custom_topology_data=CustomTopologyData({"hbm_cap": sizes}, 8))
    task = problem_of(Model(), SHARDERS, where, 8).task
    assert task.topology.devices_per_host == 4
    assert task.topology.memory_bytes == tuple(sizes)


def test_a_grid_that_is_too_narrow_to_be_cut_has_its_rows_on_one_host():
    asked = {"t2": ParameterConstraints(sharding_types=["grid_shard"])}
    plan = planner(topology(4, 2), constraints=asked, seed=0).plan(bags([(1, 4), (1, 4), (2, 4)]), SHARDERS)
    table = tables_of(plan)[("", "t2")]
    assert table.sharding_type == "grid_shard"
    assert table.ranks in ([0, 1], [2, 3])


def test_the_tables_are_those_that_torchrecs_enumerator_finds():
    model = nn.Module()
    model.deep = nn.Sequential(Model(), nn.ModuleDict({"x": Model(sequence=())}))
    model.fused = FusedEmbeddingBagCollection(
        tables=bags([(100, 8)], "u").embedding_bag_configs(),
        optimizer_type=torch.optim.SGD,
        optimizer_kwargs={"lr": 0.1},
        device=torch.device("meta"),
    )
    where = topology(4)
    theirs = {(o.path, o.name) for o in EmbeddingEnumerator(where, 64).enumerate(model, get_default_sharders())}
    ours = problem_of(model, get_default_sharders(), where, 64)
    assert set(ours.name_of) == theirs
    assert ("fused", "u0") in theirs
    assert len(ours.task.tables) == 9


@pytest.mark.parametrize("device", ["cuda", "cpu"])
def test_sharding_types_and_kernels_are_those_of_torchrecs_enumerator(device):
    model, where = Model(), topology(4, 2, device=device)
    given = {
        "t0": ParameterConstraints(sharding_types=["row_wise", "column_wise", "grid_shard"]),
        "t1": ParameterConstraints(compute_kernels=["fused", "dense"]),
    }
    options = EmbeddingEnumerator(where, 64, given).enumerate(model, SHARDERS)
    theirs = {(o.name, o.sharding_type) for o in options}
    ours = {
        (name, kind)
        for name, place in problem_of(model, SHARDERS, where, 64, given).places.items()
        for kind in place.types
    }
    left_out = theirs - ours
    grids = {(name, kind) for name, kind in ours if kind == "grid_shard"}
    assert {name for name, _ in grids} == {
        "t0",
        "t1",
        "t2",
    }  # pooled ones; TorchRec's planner makes grids on demand only
    assert ours - grids <= theirs
    allowed = {"table_column_wise"} | (
        {"data_parallel"} if device == "cpu" else set()
    )  # dense sequences cannot run on CPUs
    assert {kind for _, kind in left_out} <= allowed
    assert not {name for name, kind in left_out if kind == "data_parallel"} & {"t0", "t1", "t2"}


@pytest.mark.parametrize(
    ("fused", "ours"),
    [
        (None, "sgd"),
        ({"optimizer": EmbOptimType.EXACT_ROWWISE_ADAGRAD}, "rowwise_adagrad"),
        ({"optimizer": EmbOptimType.EXACT_ADAGRAD}, "adagrad"),
        ({"optimizer": EmbOptimType.ADAM}, "adam"),
        ({"optimizer": EmbOptimType.PARTIAL_ROWWISE_ADAM}, "adam"),
        ({"learning_rate": 0.1}, "sgd"),
    ],
)
def test_the_optimizer_is_that_of_the_sharder(fused, ours):
    assert problem_of(bags([(10, 8)]), [AllTypesSharder(fused_params=fused)], topology(), 8).task.optimizer == ours


def test_an_optimizer_in_the_backward_pass_goes_first():
    from torch.distributed.optim import _apply_optimizer_in_backward

    model = bags([(10, 8)], device=torch.device("cpu"))
    _apply_optimizer_in_backward(torch.optim.Adagrad, model.parameters(), {"lr": 0.1})
    assert problem_of(model, SHARDERS, topology(), 8).task.optimizer == "adagrad"


def shared_table(*features):
    config = EmbeddingBagConfig(name="t", num_embeddings=100, embedding_dim=8, feature_names=list(features))
    return EmbeddingBagCollection(device=torch.device("meta"), tables=[config])


def poolings_of(features, batch_size=64, known=None, **given):
    limits = {"t": ParameterConstraints(**given)} if given else None
    (table,) = problem_of(shared_table(*features), SHARDERS, topology(), batch_size, limits, profiles=known).task.tables
    return table.poolings


@pytest.mark.parametrize(
    ("given", "poolings"),
    [
        ({}, (1.0, 1.0)),
        ({"pooling_factors": [3.0, 5.0]}, (3.0, 5.0)),
        ({"pooling_factors": [3.0, 5.0], "num_poolings": [1.0, 2.0]}, (3.0, 5.0, 5.0)),
        ({"pooling_factors": [3.0, 5.0], "batch_sizes": [64, 128]}, (3.0, 5.0, 5.0)),
        ({"pooling_factors": [3.0, 5.0], "num_poolings": [1.0, 2.0], "batch_sizes": [64, 32]}, (3.0, 5.0)),
        ({"pooling_factors": [3.0, 6.0], "batch_sizes": [64, 32]}, (3.0, 3.0)),
        ({"pooling_factors": [8.0, 4.0], "batch_sizes": [16, 16]}, (3.0,)),
        ({"pooling_factors": [0.0, 5.0]}, (1e-6, 5.0)),
        ({"num_poolings": [0.0, 0.0]}, (1e-6,)),
    ],
)
def test_features_that_share_a_table_have_bags_of_their_own(given, poolings):
    assert poolings_of("ab", **given) == poolings


def test_profiles_are_taken_by_feature():
    assert poolings_of("ab", known={"a": sw.Table("a", 100, 4, 3.0)}) == (3.0, 1.0)
    assert poolings_of("ab", known={"t": sw.Table("t", 100, 4, 3.0)}) == (1.5, 1.5)
    assert poolings_of("ab", known={"t": sw.Table("t", 100, 4, [3.0, 9.0])}) == (3.0, 9.0)
    passed_on = with_profiles(shared_table("a", "b"), {"t": sw.Table("t", 100, 4, 3.0)})
    assert passed_on["t"].pooling_factors == [1.5, 1.5]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"pooling_factors": [3.0]}, "'t': pooling_factors has 1 numbers, the table has 2 features; give one for each"),
        ({"num_poolings": [1.0, 2.0, 3.0]}, "'t': num_poolings has 3 numbers, the table has 2 features"),
        ({"batch_sizes": [64]}, "'t': batch_sizes has 1 numbers, the table has 2 features"),
        ({"pooling_factors": []}, "'t': pooling_factors has 0 numbers"),
        ({"num_poolings": [1.0, -2.0]}, "'t': num_poolings is -2.0, must be a finite number of at least 0"),
        (
            {"num_poolings": [1.0, 1e9]},
            "num_poolings and batch_sizes make 1000000001 bags a sample, must make at most 65536",
        ),
    ],
)
def test_constraints_that_do_not_go_with_the_features_are_refused(given, message):
    with pytest.raises(InvalidInput, match=message):
        poolings_of("ab", **given)


def test_profiles_come_by_feature_name_and_constraints_go_before_them(tmp_path):
    zipf = sw.AccessProfile.zipf(1000, 1.1)
    known = [sw.Table("f_t0", 1000, 4, 12.0, access=zipf), sw.Table("f_t1", 500, 4, 3.0)]
    given = {"t1": ParameterConstraints(pooling_factors=[9.0])}
    tables = problem_of(
        bags([(1000, 8), (500, 8), (70, 8)]), SHARDERS, topology(), 8, given, profiles=known
    ).task.tables
    assert [table.pooling for table in tables] == [12.0, 9.0, 1.0]
    assert tables[0].access == zipf
    file = tmp_path / "tables.yaml"
    file.write_text("tables: [{name: f_t0, rows: 1000, dim: 4, pooling: 12, access: {zipf: 1.1}}]\n")
    profiled_tables = problem_of(bags([(1000, 8)]), SHARDERS, topology(), 8, profiles=file).task.tables
    assert (profiled_tables[0].pooling, profiled_tables[0].access) == (12.0, zipf)
    passed_on = with_profiles(bags([(1000, 8), (500, 8), (70, 8)]), known, given)
    assert {name: constraint.pooling_factors for name, constraint in passed_on.items()} == {"t0": [12.0], "t1": [9.0]}
    assert given == {"t1": ParameterConstraints(pooling_factors=[9.0])}


def test_profiles_are_fitted_to_the_rows_of_the_table():
    seen = sw.AccessProfile(np.array([0.0, 10, 100]), np.array([0.0, 0.9, 1.0]))
    larger, smaller = problem_of(
        bags([(1000, 8), (50, 8)]),
        SHARDERS,
        topology(),
        8,
        profiles={f"f_t{i}": sw.Table("x", 100, 4, access=seen) for i in (0, 1)},
    ).task.tables
    assert larger.access.share_of(0, 10) == pytest.approx(0.9)
    assert larger.access.share_of(0, 100) == pytest.approx(1.0)
    assert smaller.access.share_of(0, 5) == pytest.approx(0.9)


def test_a_table_of_several_features_has_the_profile_of_all():
    model = shared_table("a", "b")
    one, other = sw.AccessProfile.zipf(100, 1.5), sw.AccessProfile.uniform(100)
    known = {"a": sw.Table("a", 100, 4, 3.0, access=one), "b": sw.Table("b", 100, 4, 1.0, access=other)}
    (table,) = problem_of(model, SHARDERS, topology(), 8, profiles=known).task.tables
    assert table.poolings == (3.0, 1.0)
    assert table.access.share_of(0, 10) == pytest.approx(0.75 * one.share_of(0, 10) + 0.25 * 0.1)


def test_nothing_to_shard_raises():
    with pytest.raises(InvalidInput, match="no table"):
        problem_of(nn.Linear(2, 2), SHARDERS, topology(), 8)


def test_devices_are_priced_by_the_topologys_memory_bandwidth():
    task = problem_of(Model(), SHARDERS, topology(), 8).task
    works = [shard_work(task, sw.Shard.whole(table, 0)) for table in task.tables]
    slow, fast = (default_cost_model(topology(hbm_mem_bw=bandwidth), task) for bandwidth in (1e9, 4e9))
    assert (slow.encode(works) > fast.encode(works)).all()
    assert slow.name == "cuda at 1000 GB/s/published"
    h100 = default_cost_model(topology(hbm_mem_bw=3350e6), task)
    assert h100.encode(works) == pytest.approx(sw.cost.choice.cost_model_for("h100", task.optimizer).encode(works))
    assert default_cost_model(topology(device="cpu"), task).name.startswith("cpu")


def allowed(rows, device="cpu", pooled=True, dim=48, types=("table_wise", "row_wise", "column_wise")):
    model = bags([(rows, dim)]) if pooled else sequences([rows], dim)
    asked = {"t0" if pooled else "s0": ParameterConstraints(sharding_types=list(types))}
    problem = problem_of(model, SHARDERS, topology(4, device=device, ddr_cap=GB), 8, asked)
    (limits,) = problem.task.constraints.tables.values()
    return limits


def test_on_cpus_no_rank_is_left_without_rows_of_a_table_unless_nothing_else_is_allowed():
    """Five rows on four ranks are blocks of 2, 2, 1 and 0 rows, and FBGEMM takes empty weights for weights on a GPU."""
    assert "row_wise" in allowed(8).sharding_types
    assert "row_wise" not in allowed(5).sharding_types
    assert "row_wise" in allowed(5, "cuda").sharding_types
    assert allowed(5, types=["row_wise"]).sharding_types == ("row_wise",)


def test_columns_are_of_one_width_that_the_other_sequences_of_a_module_can_be_cut_to():
    assert allowed(8).equal_columns
    assert (allowed(8).min_columns, allowed(8).column_multiple) == (4, 4)
    of_sequence = allowed(8, pooled=False)
    assert (of_sequence.min_columns, of_sequence.column_multiple) == (12, 12)


def test_types_on_the_wire_are_those_of_the_sharders_codecs():
    config = QCommsConfig(forward_precision=CommType.FP16, backward_precision=CommType.BF16)
    sharders = [EmbeddingBagCollectionSharder(qcomm_codecs_registry=get_qcomm_codecs_registry(config))]
    exchange = problem_of(bags([(100, 8)]), sharders, topology(2)).task.exchange
    assert (exchange.values, exchange.gradients) == ("fp16", "bf16")
    plain = problem_of(bags([(100, 8)]), [EmbeddingBagCollectionSharder()], topology(2)).task.exchange
    assert (plain.values, plain.gradients) == ("fp32", "fp32")


def test_outputs_of_fewer_bytes_travel_as_they_are():
    given = {
        "t0": ParameterConstraints(output_dtype=DataType.FP16),
        "t1": ParameterConstraints(output_dtype=DataType.FP16),
    }
    model, sharders = bags([(100, 8), (50, 8)]), [EmbeddingBagCollectionSharder()]
    assert problem_of(model, sharders, topology(2), constraints=given).task.exchange.values == "fp16"
    del given["t1"]  # one exchange for all: the widest
    assert problem_of(model, sharders, topology(2), constraints=given).task.exchange.values == "fp32"


def test_weighted_modules_have_weighted_tables():
    configs = bags([(100, 8)]).embedding_bag_configs()
    model = nn.Module()
    model.weighted = EmbeddingBagCollection(tables=configs, is_weighted=True, device=META)
    model.plain = bags([(60, 8)], prefix="p")
    tables = problem_of(model, [EmbeddingBagCollectionSharder()], topology(2)).task.table_by_name
    assert tables["t0"].weighted
    assert not tables["p0"].weighted


def test_rows_of_ids_in_order_of_popularity_are_not_dealt():
    """TorchRec gives the first rank the first ids of every table."""
    model, steps, types = bags([(2_000_000, 64)] * 4), {}, {}
    for shares in ((), [0.9, *[0.1 / 15] * 15]):
        profiles = [sw.Table(f"f_t{i}", 2_000_000, 4, 20.0, id_shares=shares) for i in range(4)]
        for kinds in (["row_wise"], ["row_wise", "table_wise"]):
            given = {f"t{i}": ParameterConstraints(sharding_types=kinds) for i in range(4)}
            our_planner = planner(profiles=profiles, constraints=given, batch_size=16_384)
            sharded = tables_of(our_planner.plan(model, SHARDERS)).values()
            types[len(shares), len(kinds)] = {table.sharding_type for table in sharded}
            steps[len(shares), len(kinds)] = our_planner.last_plan.cost.step_ms
    assert types == {(0, 1): {"row_wise"}, (0, 2): {"table_wise"}, (16, 1): {"row_wise"}, (16, 2): {"table_wise"}}
    assert steps[16, 2] == pytest.approx(steps[0, 2], rel=0.01)
    assert steps[16, 1] > 1.5 * steps[0, 1]


def test_shares_of_ids_are_those_of_all_features_of_a_table():
    def of(*profiles, rows=1000):
        (table,) = problem_of(shared_table("a", "b"), SHARDERS, topology(), 8, profiles=profiles).task.tables
        return table.id_shares

    size = shared_table("a", "b").embedding_bag_configs()[0].num_embeddings
    one, other = sw.Table("a", size, 4, 3.0, id_shares=[1, 0]), sw.Table("b", size, 4, 1.0, id_shares=[0.2, 0.8])
    assert of(one, other) == pytest.approx((0.8, 0.2))
    assert of(one) == of(one, replace(other, id_shares=())) == ()
    assert of(sw.Table("t", size, 4, 3.0, id_shares=[1, 0])) == (1.0, 0.0)
