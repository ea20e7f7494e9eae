"""Plans for TorchRec, whatever the model and its constraints: every table, tiled exactly, in blocks that TorchRec runs, there and back."""

import pytest

pytest.importorskip("torchrec")

import torch
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from torch import nn
from torchrec.distributed.planner.storage_reservations import FixedPercentageStorageReservation
from torchrec.distributed.planner.types import ParameterConstraints, Topology
from torchrec.distributed.sharding_plan import calculate_shard_sizes_and_offsets, get_default_sharders
from torchrec.modules.embedding_configs import EmbeddingBagConfig, EmbeddingConfig
from torchrec.modules.embedding_modules import EmbeddingBagCollection, EmbeddingCollection

from shardwright.integrations.torchrec import (
    ShardwrightPlanner,
    load_sharding_plan,
    plan_of,
    save_sharding_plan,
    sharding_plan_of,
)
from shardwright.integrations.torchrec.conversion import runnable

pytestmark = pytest.mark.torchrec

POOLED_TYPES = (
    "data_parallel",
    "table_wise",
    "column_wise",
    "row_wise",
    "table_row_wise",
    "table_column_wise",
    "grid_shard",
)
SEQUENCE_TYPES = POOLED_TYPES[:4]
META = torch.device("meta")


def constraint(types):
    return st.builds(
        ParameterConstraints,
        sharding_types=st.none() | st.lists(st.sampled_from(types), min_size=1, max_size=3, unique=True),
        min_partition=st.none() | st.integers(1, 70),
        pooling_factors=st.lists(st.floats(0, 50), min_size=1, max_size=1),
    )


@st.composite
def problems(draw):
    """A model of pooled and sequence tables, a topology, and constraints for some of the tables."""
    hosts, near = draw(st.sampled_from([(1, 1), (1, 2), (1, 4), (2, 2), (3, 2), (2, 4)]))
    rows = st.integers(1, 12) | st.integers(1, 5000)
    model, asked = nn.Module(), {}
    shapes = draw(st.lists(st.tuples(rows, st.sampled_from([4, 6, 8, 20, 64, 192])), min_size=1, max_size=5))
    model.pooled = EmbeddingBagCollection(
        device=META,
        tables=[
            EmbeddingBagConfig(name=f"t{i}", num_embeddings=n, embedding_dim=dim, feature_names=[f"f{i}"])
            for i, (n, dim) in enumerate(shapes)
        ],
    )
    dim, lengths = draw(st.sampled_from([8, 48, 128])), draw(st.lists(rows, max_size=3))
    if lengths:
        model.sequence = EmbeddingCollection(
            device=META,
            tables=[
                EmbeddingConfig(name=f"s{i}", num_embeddings=n, embedding_dim=dim, feature_names=[f"g{i}"])
                for i, n in enumerate(lengths)
            ],
        )
    for prefix, count, types in (("t", len(shapes), POOLED_TYPES), ("s", len(lengths), SEQUENCE_TYPES)):
        for i in range(count):
            if draw(st.booleans()):
                asked[f"{prefix}{i}"] = wish = draw(constraint(types))
                if prefix == "t" and shapes[i][1] % 4 and wish.sharding_types:  # only replicas run such a table
                    wish.sharding_types = sorted({*wish.sharding_types, "data_parallel"})
    return model, Topology(hosts * near, "cuda", local_world_size=near), asked


def planned(model, topology, asked, seed=0):
    planner = ShardwrightPlanner(
        topology,
        16,
        storage_reservation=FixedPercentageStorageReservation(0.0),
        stats=[],
        constraints=asked,
        time_limit=0.02,
        seed=seed,
    )
    return planner, planner.plan(model, get_default_sharders())


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(problems())
def test_every_plan_is_complete_allowed_and_executable(problem):
    model, topology, asked = problem
    planner, plan = planned(model, topology, asked)
    near = topology.local_world_size
    for place in planner.last_problem.places.values():
        table = plan.plan[place.path][place.name]
        given_types = asked[place.name].sharding_types if place.name in asked else None
        shards = [] if table.sharding_spec is None else table.sharding_spec.shards
        # TorchRec's own planner proposes grids only where they are asked for; it runs them in any pooled table.
        assert table.sharding_type in (given_types or (POOLED_TYPES if place.table.pooled else SEQUENCE_TYPES))
        if not shards:
            continue
        ranks = [shard.placement.rank() for shard in shards]
        assert ranks == table.ranks
        assert all(0 <= rank < topology.world_size for rank in ranks)
        assert sum(shard.shard_sizes[0] * shard.shard_sizes[1] for shard in shards) == place.table.tensor.numel()
        if table.sharding_type in ("row_wise", "table_row_wise"):
            expected = calculate_shard_sizes_and_offsets(
                place.table.tensor, topology.world_size, near, table.sharding_type
            )
            assert ([shard.shard_sizes for shard in shards], [shard.shard_offsets for shard in shards]) == expected
        if table.sharding_type == "row_wise":
            assert ranks == list(range(topology.world_size))
        if table.sharding_type in ("table_row_wise", "grid_shard"):
            assert all(
                ranks[i : i + near] == list(range(ranks[i], ranks[i] + near)) for i in range(0, len(ranks), near)
            )
            assert all(rank % near == 0 for rank in ranks[::near])
        if table.sharding_type in ("table_row_wise", "table_column_wise"):
            assert len({rank // near for rank in ranks}) == 1
        if table.sharding_type in ("column_wise", "table_column_wise"):
            least = min(asked[place.name].min_partition or 4, place.table.tensor.shape[1]) if place.name in asked else 1
            widths = [shard.shard_sizes[1] for shard in shards]
            assert all(width % 4 == 0 or len(shards) == 1 for width in widths)
            assert min(widths) >= least


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(problems())
def test_what_each_rank_holds_of_a_table_loads_as_torchrec_loads_it(problem):
    """TorchRec views a rank's blocks of a table in the width of the table's first; its parameter has that of the rank's first."""
    planner, plan = planned(*problem)
    for place in planner.last_problem.places.values():
        spec = plan.plan[place.path][place.name].sharding_spec
        shards = [] if spec is None else spec.shards
        assert len({shard.shard_sizes[1] for shard in shards}) <= 1
        numbers = torch.arange(place.table.tensor.numel()).view(place.table.tensor.shape)
        for rank in {shard.placement.rank() for shard in shards}:
            mine = [shard for shard in shards if shard.placement.rank() == rank]
            blocks = [numbers[_slices(shard)] for shard in mine]
            saved = torch.cat([block.reshape(-1) for block in blocks]).view(-1, shards[0].shard_sizes[1])
            held = torch.empty(sum(block.shape[0] for block in blocks), blocks[0].shape[1], dtype=numbers.dtype)
            assert saved.shape == held.shape
            assert torch.equal(saved, torch.cat(blocks))


def _slices(shard):
    return tuple(slice(a, a + n) for a, n in zip(shard.shard_offsets, shard.shard_sizes, strict=True))


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(problems())
def test_plans_survive_conversion_and_files(tmp_path_factory, problem):
    planner, plan = planned(*problem)
    found = planner.last_problem
    back = plan_of(plan, found)
    back.check()
    assert set(map(str, back.shards)) == set(map(str, planner.last_plan.shards))
    assert sharding_plan_of(back, found) == plan
    assert runnable(back, found).shards == back.shards
    file = tmp_path_factory.mktemp("plans") / "plan.json"
    save_sharding_plan(plan, file)
    assert load_sharding_plan(file) == plan


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.lists(st.tuples(st.integers(1000, 60_000), st.sampled_from([8, 64, 256])), min_size=2, max_size=5),
    st.sampled_from([(1, 2), (2, 2)]),
    st.floats(0.15, 1.1),
    st.lists(st.none() | st.sampled_from(POOLED_TYPES[1:]), min_size=5, max_size=5),
)
@example([(40026, 8), (1641, 8)], (1, 2), 0.25, ["table_wise"] + 4 * [None])  # a cache's notes on rows count as well
@example([(37527, 8), (1000, 8)], (1, 2), 0.25, ["table_wise"] + 4 * [None])
def test_tables_in_host_memory_keep_both_limits(shapes, world, part, kinds):
    hosts, near = world
    collection = EmbeddingBagCollection(
        device=META,
        tables=[
            EmbeddingBagConfig(name=f"t{i}", num_embeddings=n, embedding_dim=dim, feature_names=[f"f{i}"])
            for i, (n, dim) in enumerate(shapes)
        ],
    )
    asked = {
        f"t{i}": ParameterConstraints(sharding_types=[kind]) for i, kind in enumerate(kinds[: len(shapes)]) if kind
    }
    weights = 4 * sum(n * dim for n, dim in shapes)
    hbm = int(part * weights / (hosts * near)) + 500_000  # buffers and rounding
    ddr = 2 * weights
    topology = Topology(hosts * near, "cuda", hbm_cap=hbm, ddr_cap=ddr, local_world_size=near)
    planner, plan = planned(collection, topology, asked)
    used = {"hbm": [0.0] * topology.world_size, "ddr": [0.0] * topology.world_size}
    for shard in plan_of(plan, planner.last_problem).shards:
        table = plan.plan[""][shard.table]
        cached = table.cache_params.load_factor if table.compute_kernel == "fused_uvm_caching" else None
        assert table.compute_kernel in ("fused", "dense", "fused_uvm_caching")
        for rank in shard.devices:
            used["hbm"][rank] += 4 * shard.area * (1 if cached is None else cached)
            used["ddr"][rank] += 0 if cached is None else 4 * shard.area
    assert max(used["hbm"]) <= hbm
    assert max(used["ddr"]) <= ddr
