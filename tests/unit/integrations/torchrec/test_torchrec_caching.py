"""Tables larger than the devices' memory: kernels, load factors, limits of host memory."""

import pytest

pytest.importorskip("torchrec")

import numpy as np
import torch
from scipy.optimize import linprog
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.distributed.planner import EmbeddingShardingPlanner
from torchrec.distributed.planner.proposers import EmbeddingOffloadScaleupProposer
from torchrec.distributed.planner.shard_estimators import EmbeddingOffloadStats
from torchrec.distributed.planner.storage_reservations import FixedPercentageStorageReservation
from torchrec.distributed.planner.types import ParameterConstraints
from torchrec.distributed.types import CacheAlgorithm, CacheParams
from torchrec.distributed.utils import add_params_from_parameter_sharding

import shardwright as sw
from shardwright.integrations.torchrec import plan_of, problem_of
from shardwright.integrations.torchrec.caching import cached_within, expected_miss_rate, held_bytes, least_cache
from shardwright.integrations.torchrec.off_device import FOUND_MS
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


def test_the_miss_rate_falls_from_one_to_zero():
    table = PROFILES["f_t1"]
    rates = [expected_miss_rate(table, share) for share in np.linspace(0, 1, 11)]
    assert rates[0] == 1.0
    assert rates[-1] == pytest.approx(0.0, abs=1e-12)
    assert (np.diff(rates) < 0).all()


def slots(task, table):
    """Bytes of a cache of all rows."""
    return held_bytes(task, table) + 16 * table.rows


def test_load_factors_take_the_least_time():
    """The reference is a linear program over the lower hulls of all tables' times: missed bytes, and finding rows in a cache."""
    problem = small_problem()
    task, fill, per_ms = problem.task, 0.9, problem.topology.hbm_to_ddr_mem_bw
    chosen = cached_within(problem, fill)
    least = least_cache(problem)
    buffers = sum(buffer_bytes(shard_work(task, sw.Shard.whole(table, 0))) for table in task.tables)
    noted = sum(4 * table.rows for table in task.tables)  # by FBGEMM, and 16 bytes for each cached row
    budget = fill * sum(task.topology.memory_bytes) - buffers - noted

    def milliseconds(table, share):
        finding_ms = FOUND_MS if share < 1 else 0.0
        missed = expected_miss_rate(table, share) * table.weight_bytes / table.rows / per_ms
        return (missed + finding_ms) * table.pooling * task.batch_size

    saved, size, low, at_least = [], [], 0.0, 0.0
    for table in task.tables:
        points = np.unique(np.append(table.access.rows / table.rows, least))
        points = points[points >= least]
        times = [milliseconds(table, share) for share in points]
        hull = [0]
        while hull[-1] < len(points) - 1:  # from each point on to where the time falls fastest
            here = hull[-1]
            slopes = [(times[k] - times[here]) / (points[k] - points[here]) for k in range(here + 1, len(points))]
            hull.append(here + 1 + int(np.argmin(slopes)))
        saved += list(-np.diff(np.array(times)[hull]))
        size += list(np.diff(points[hull]) * slots(task, table))
        low += least * slots(task, table)
        at_least += times[0]
    best = linprog(-np.array(saved), A_ub=np.array([size]), b_ub=[budget - low], bounds=(0, 1))
    shares = {t.name: chosen[t.name].load_factor if t.name in chosen else 1.0 for t in task.tables}
    taken = sum(milliseconds(table, shares[table.name]) for table in task.tables)
    one_jump = max(
        FOUND_MS * table.pooling * task.batch_size for table in task.tables
    )  # a table may end between two points of its hull
    assert at_least + best.fun <= taken * (1 + 1e-6)
    assert taken <= (at_least + best.fun) * 1.01 + one_jump
    assert sum(shares[t.name] * slots(task, t) for t in task.tables) <= budget * (1 + 1e-9)
    assert 0 < len(chosen) < 4


def test_tables_larger_than_all_devices_find_a_place():
    our_planner = planner(topology(4, hbm=GB // 2, ddr_cap=4 * GB), profiles=PROFILES)
    plan = our_planner.plan(bags(SHAPES), SHARDERS)
    cached = {name: t for (_, name), t in tables_of(plan).items() if t.compute_kernel == "fused_uvm_caching"}
    assert cached
    assert "t3" not in cached  # small and hot
    assert all(0 < table.cache_params.load_factor < 1 for table in cached.values())
    assert all(table.sharding_type != "data_parallel" for table in cached.values())
    task, hbm, ddr = our_planner.last_problem.task, np.zeros(4), np.zeros(4)
    for shard in plan_of(plan, our_planner.last_problem).shards:
        work = shard_work(task, shard)
        share = cached[shard.table].cache_params.load_factor if shard.table in cached else 1.0
        hbm[list(shard.devices)] += share * work.weight_bytes
        ddr[list(shard.devices)] += work.weight_bytes if shard.table in cached else 0
    assert (hbm <= GB // 2).all()
    assert (ddr <= 4 * GB).all()


@pytest.mark.parametrize("kernel", ["fused_uvm", "fused_uvm_caching"])
def test_no_host_holds_more_than_it_has_however_much_the_devices_have(kernel):
    rows = 4_000_000
    given = {
        f"t{i}": ParameterConstraints(["table_wise"], [kernel], pooling_factors=[1.0 + 100 * (i == 0)])
        for i in range(4)
    }
    our_planner = planner(topology(4, hbm=80 * GB, ddr_cap=rows * 64 * 4 * 3 // 2), constraints=given)
    tables = tables_of(our_planner.plan(bags([(rows, 64)] * 4), SHARDERS))
    assert sorted(rank for table in tables.values() for rank in table.ranks) == [0, 1, 2, 3]


def test_tables_that_fit_are_not_cached():
    roomy = planner(topology(4, hbm=4 * GB), profiles=PROFILES)
    assert {t.compute_kernel for t in tables_of(roomy.plan(bags(SHAPES), SHARDERS)).values()} <= {"fused", "dense"}


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
    our_planner = planner(topology(8, hbm=GB), constraints=whole, profiles=PROFILES)
    table = tables_of(our_planner.plan(bags(SHAPES), SHARDERS))["", "t0"]
    assert (table.sharding_type, table.compute_kernel) == ("table_wise", "fused_uvm_caching")


def test_a_chosen_load_factor_joins_the_users_cache_parameters_and_overrides_the_sharders():
    """TorchRec's runtime prefers parameters of the plan to those of the sharder, and keeps the sharder's others."""
    given = {"t0": ParameterConstraints(cache_params=CacheParams(algorithm=CacheAlgorithm.LFU, reserved_memory=1.5))}
    our_planner = planner(topology(4, hbm=GB // 2, ddr_cap=4 * GB), profiles=PROFILES, constraints=given)
    table = tables_of(our_planner.plan(bags(SHAPES), SHARDERS))["", "t0"]
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


def known(exponent, rows, lookups, load_factor=0.1, bins=2000):
    """Constraints of a cached table with the statistics that TorchRec's offloading reads."""
    access = sw.AccessProfile.zipf(rows, exponent)
    hist = torch.diff(torch.tensor([access.share_of(0, part * rows) for part in np.linspace(0, 1, bins + 1)]))
    stats = EmbeddingOffloadStats(1 - float(hist[: bins // 10].sum()), lookups, hist, rows)
    return ParameterConstraints(
        compute_kernels=["fused_uvm_caching"], cache_params=CacheParams(load_factor=load_factor, stats=stats)
    )


def test_caches_with_statistics_are_scaled_up_to_miss_less_than_torchrecs():
    """The same memory: `EmbeddingOffloadScaleupProposer` shares it out by cacheability, we by the time that a byte saves."""
    given = {f"t{i}": known(EXPONENTS[i], rows, 20_000 * (i + 1)) for i, (rows, _) in enumerate(SHAPES)}
    where = topology(4, hbm=GB // 4, ddr_cap=4 * GB)
    fields = {"constraints": given, "storage_reservation": FixedPercentageStorageReservation(0.0), "batch_size": 64}
    sharders = [EmbeddingBagCollectionSharder({"learning_rate": 0.1})]
    theirs = EmbeddingShardingPlanner(where, proposer=EmbeddingOffloadScaleupProposer(), stats=[], **fields)
    our_planner = planner(where, **fields)

    def shares_of(plan):
        return {
            name: t.cache_params.load_factor if t.compute_kernel == "fused_uvm_caching" else 1.0
            for (_, name), t in tables_of(plan).items()
        }

    def missed(shares):
        return sum(
            given[f"t{i}"].cache_params.stats.expected_lookups
            * given[f"t{i}"].cache_params.stats.expected_miss_rate(shares[f"t{i}"])
            * dim
            for i, (_, dim) in enumerate(SHAPES)
        )

    def held(shares):
        return sum(shares[f"t{i}"] * rows * dim * 4 for i, (rows, dim) in enumerate(SHAPES))

    ours, scaled = shares_of(our_planner.plan(bags(SHAPES), sharders)), shares_of(theirs.plan(bags(SHAPES), sharders))
    assert all(share >= 0.1 for share in ours.values())
    assert held(ours) > 0.8 * GB  # of 1 GB on all devices
    assert missed(ours) < missed(scaled)
    assert missed(ours) < missed(dict.fromkeys(ours, 0.1))
    assert our_planner.last_moved.host_bytes == sum(rows * dim * 4 for rows, dim in SHAPES)
    assert our_planner.last_moved.fetched_bytes == pytest.approx(4 * missed(ours))


@pytest.mark.parametrize("factor", [0.05, 0.3])
def test_a_named_load_factor_is_kept_if_nothing_demands_a_cache(factor):
    given = {f"t{i}": ParameterConstraints(cache_params=CacheParams(load_factor=factor)) for i in range(len(SHAPES))}
    our_planner = planner(topology(4, hbm=GB // 2, ddr_cap=40 * GB), constraints=given)
    tables = tables_of(our_planner.plan(bags(SHAPES), SHARDERS)).values()
    factors = {table.cache_params.load_factor for table in tables if table.compute_kernel == "fused_uvm_caching"}
    assert factors == {factor}


def test_tables_moved_to_the_host_are_logged(caplog):
    our_planner = planner(topology(4, hbm=GB // 2, ddr_cap=4 * GB), profiles=PROFILES)
    with caplog.at_level("INFO", logger="shardwright.integrations.torchrec.planner"):
        plan = our_planner.plan(bags(SHAPES), SHARDERS)
    moved, cached = our_planner.last_moved, {}
    for (_, name), table in tables_of(plan).items():
        if table.compute_kernel == "fused_uvm_caching":
            cached[name] = table.cache_params.load_factor
    sizes = {f"t{i}": rows * dim * 4 for i, (rows, dim) in enumerate(SHAPES)}
    assert moved.kernels == dict.fromkeys(cached, "fused_uvm_caching")
    assert moved.host_bytes == sum(sizes[name] for name in cached)
    rows = {f"t{i}": count for i, (count, _) in enumerate(SHAPES)}
    caches = [share * (sizes[name] + 16 * rows[name]) + 4 * rows[name] for name, share in cached.items()]
    shards = [shard.table for shard in plan_of(plan, our_planner.last_problem).shards]
    assert all(
        shards.count(name) == len({s.rows for s in our_planner.last_plan.by_table[name]}) for name in cached
    )  # no columns
    assert moved.cache_bytes == pytest.approx(sum(caches), abs=8)
    assert moved.ssd_bytes == 0
    assert str(moved) in caplog.text
    assert f"{len(cached)} tables off device memory" in str(moved)
