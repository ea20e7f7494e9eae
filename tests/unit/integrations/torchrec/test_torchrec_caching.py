"""Tables larger than the devices' memory: kernels, load factors, limits of host memory."""

import pytest

pytest.importorskip("torchrec")

import numpy as np
from scipy.optimize import linprog
from torchrec.distributed.planner.stats import EmbeddingStats
from torchrec.distributed.planner.types import ParameterConstraints, PlannerError, PlannerErrorType
from torchrec.distributed.types import CacheAlgorithm, CacheParams
from torchrec.distributed.utils import add_params_from_parameter_sharding

import shardwright as sw
from shardwright.integrations.torchrec import plan_of, problem_of
from shardwright.integrations.torchrec.caching import cached_within, expected_miss_rate, held_bytes, least_cache
from shardwright.sharding import shard_work
from shardwright.sharding.memory import buffer_bytes

from .made import GB, SHARDERS, bags, planner, tables_of, topology

pytestmark = pytest.mark.torchrec

SHAPES = ((8_000_000, 64), (4_000_000, 64), (2_000_000, 128), (50_000, 64))
EXPONENTS = (1.2, 0.9, 0.0, 1.05)
PROFILES = {
    f"f_t{i}": sw.Table(f"f_t{i}", rows, 4, 10.0 * (i + 1), access=sw.AccessProfile.zipf(rows, exponent))
    for i, ((rows, _), exponent) in enumerate(zip(SHAPES, EXPONENTS, strict=True))
}


def small_problem(hbm=GB // 2, **fields):
    return problem_of(bags(SHAPES), SHARDERS, topology(4, hbm=hbm), 64, profiles=PROFILES, **fields)


def missed_bytes(problem, shares):
    """Expected bytes missed in a step."""
    return sum(
        t.pooling * problem.task.batch_size * t.weight_bytes / t.rows * expected_miss_rate(t, shares[t.name])
        for t in problem.task.tables
    )


def test_the_miss_rate_falls_from_one_to_zero():
    table = PROFILES["f_t1"]
    rates = [expected_miss_rate(table, share) for share in np.linspace(0, 1, 11)]
    assert rates[0] == 1.0
    assert rates[-1] == pytest.approx(0.0, abs=1e-12)
    assert (np.diff(rates) < 0).all()


def test_load_factors_miss_the_fewest_bytes():
    """The reference is a linear programme over the segments of all access curves."""
    problem = small_problem()
    task, fill = problem.task, 0.9
    chosen = cached_within(problem, fill)
    least = least_cache(problem)
    buffers = sum(buffer_bytes(shard_work(task, sw.Shard.whole(table, 0))) for table in task.tables)
    budget = fill * sum(task.topology.memory_bytes) - buffers
    saved, size, low = [], [], 0.0
    for table in task.tables:
        points = np.unique(np.append(table.access.rows / table.rows, least))
        points = points[points >= least]
        rates = np.array([expected_miss_rate(table, share) for share in points])
        saved += list(-np.diff(rates) * table.pooling * task.batch_size * table.weight_bytes / table.rows)
        size += list(np.diff(points) * held_bytes(task, table))
        low += least * held_bytes(task, table)
    best = linprog(-np.array(saved), A_ub=np.array([size]), b_ub=[budget - low], bounds=(0, 1))
    at_least = missed_bytes(problem, {table.name: least for table in task.tables}) + best.fun
    shares = {t.name: chosen[t.name].load_factor if t.name in chosen else 1.0 for t in task.tables}
    assert missed_bytes(problem, shares) == pytest.approx(at_least, rel=0.01)
    assert sum(shares[t.name] * held_bytes(task, t) for t in task.tables) <= budget * (1 + 1e-9)
    assert 0 < len(chosen) < 4


def test_tables_larger_than_all_devices_find_a_place():
    found = planner(topology(4, hbm=GB // 2, ddr_cap=4 * GB), profiles=PROFILES)
    plan = found.plan(bags(SHAPES), SHARDERS)
    cached = {name: t for (_, name), t in tables_of(plan).items() if t.compute_kernel == "fused_uvm_caching"}
    assert cached
    assert "t3" not in cached  # small and hot
    assert all(0 < table.cache_params.load_factor < 1 for table in cached.values())
    assert all(table.sharding_type != "data_parallel" for table in cached.values())
    task, hbm, ddr = found.last_problem.task, np.zeros(4), np.zeros(4)
    for shard in plan_of(plan, found.last_problem).shards:
        work = shard_work(task, shard)
        share = cached[shard.table].cache_params.load_factor if shard.table in cached else 1.0
        hbm[list(shard.devices)] += share * work.weight_bytes
        ddr[list(shard.devices)] += work.weight_bytes if shard.table in cached else 0
    assert (hbm <= GB // 2).all()
    assert (ddr <= 4 * GB).all()


def test_host_memory_has_limits_too():
    found = planner(topology(4, hbm=GB // 2, ddr_cap=GB // 2), profiles=PROFILES)
    with pytest.raises(PlannerError) as caught:
        found.plan(bags(SHAPES), SHARDERS)
    assert caught.value.error_type == PlannerErrorType.INSUFFICIENT_STORAGE


def test_what_fits_is_not_cached():
    found = planner(topology(4, hbm=4 * GB), profiles=PROFILES)
    assert {t.compute_kernel for t in tables_of(found.plan(bags(SHAPES), SHARDERS)).values()} <= {"fused", "dense"}


def test_demanded_kernels_and_load_factors_are_kept():
    given = {
        "t0": ParameterConstraints(compute_kernels=["fused_uvm"]),
        "t1": ParameterConstraints(compute_kernels=["fused_uvm_caching"], cache_params=CacheParams(load_factor=0.3)),
        "t2": ParameterConstraints(compute_kernels=["fused_uvm_caching"]),
    }
    tables = tables_of(
        planner(topology(4, hbm=4 * GB), profiles=PROFILES, constraints=given).plan(bags(SHAPES), SHARDERS)
    )
    kernels = {name: table.compute_kernel for (_, name), table in tables.items()}
    assert kernels == {"t0": "fused_uvm", "t1": "fused_uvm_caching", "t2": "fused_uvm_caching", "t3": kernels["t3"]}
    assert kernels["t3"] in ("fused", "dense")
    assert tables["", "t1"].cache_params.load_factor == 0.3
    assert 0.5 < tables["", "t2"].cache_params.load_factor < 1  # there is room for nearly all of it


def test_a_table_for_one_device_is_cached_though_all_devices_together_have_room():
    whole = {"t0": ParameterConstraints(sharding_types=["table_wise"])}
    found = planner(topology(8, hbm=GB), constraints=whole, profiles=PROFILES)
    table = tables_of(found.plan(bags(SHAPES), SHARDERS))["", "t0"]
    assert (table.sharding_type, table.compute_kernel) == ("table_wise", "fused_uvm_caching")


def test_a_chosen_load_factor_joins_the_users_cache_parameters_and_overrides_the_sharders():
    """What TorchRec's runtime makes of a plan: parameters of the plan before those of the sharder, the others beside them."""
    given = {"t0": ParameterConstraints(cache_params=CacheParams(algorithm=CacheAlgorithm.LFU, reserved_memory=1.5))}
    found = planner(topology(4, hbm=GB // 2, ddr_cap=4 * GB), profiles=PROFILES, constraints=given)
    table = tables_of(found.plan(bags(SHAPES), SHARDERS))["", "t0"]
    assert (table.cache_params.algorithm, table.cache_params.reserved_memory) == (CacheAlgorithm.LFU, 1.5)
    assert given["t0"].cache_params.load_factor is None
    fused = {
        "learning_rate": 0.2,
        "cache_algorithm": CacheAlgorithm.LRU,
        "cache_load_factor": 0.9,
        "stochastic_rounding": True,
    }
    merged = add_params_from_parameter_sharding(fused, table)
    assert merged["cache_load_factor"] == table.cache_params.load_factor
    assert merged["cache_algorithm"] == CacheAlgorithm.LFU
    assert (merged["learning_rate"], merged["stochastic_rounding"]) == (0.2, True)


def test_statistics_show_caches():
    stats = EmbeddingStats()
    planner(topology(4, hbm=GB // 2, ddr_cap=4 * GB), profiles=PROFILES, stats=stats).plan(bags(SHAPES), SHARDERS)
    assert "fused_uvm_caching" in "\n".join(stats._stats_table)
