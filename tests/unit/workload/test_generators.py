import json
import os
from importlib.resources import files
from pathlib import Path

import numpy as np
import pytest

from shardwright.task import PRESETS, Table, Topology
from shardwright.task.access import reuse_of_many
from shardwright.workload.generators import (
    POOLS,
    PUBLIC_MODELS,
    _all_facts,
    halved_dims,
    paper_tasks,
    public_model,
    public_task,
    random_task,
    split_pool,
    table_pool,
)

SMALL_POOL = tuple(Table(f"t{i}", 100 * (i + 1), 16, pooling=1.0 + i) for i in range(6))


def base_name(table):
    return table.name.split("_")[0]


def test_a_task_is_its_seed():
    same, again, other = (random_task(seed, pool=SMALL_POOL, tables=5) for seed in (3, 3, 4))
    assert same == again
    assert same != other
    assert random_task(np.random.default_rng(3), pool=SMALL_POOL, tables=5) == same


def test_neuroshard_tasks_follow_the_published_ranges():
    tasks = paper_tasks(60, paper="neuroshard", devices=4, max_dim=32, seed=1)
    counts = [len(task.tables) for task in tasks]
    assert min(counts) >= 10
    assert max(counts) < 60
    assert len(set(counts)) > 20
    assert {table.dim for task in tasks for table in task.tables} == {4, 8, 16, 32}
    for task in tasks:
        assert task.topology.devices == 4
        assert task.topology.device == "rtx2080ti"
        assert task.topology.memory_bytes == (4_000_000_000,) * 4
        assert task.batch_size == 65_536
        assert sum(table.weight_bytes for table in task.tables) <= 15e9


def test_eight_devices_get_twice_the_tables():
    counts = [len(task.tables) for task in paper_tasks(60, devices=8, max_dim=16)]
    assert min(counts) >= 20
    assert 60 < max(counts) < 120


def test_dreamshard_tasks_have_one_dim_and_no_table_twice():
    task = paper_tasks(1, paper="dreamshard", tables=80, seed=5)[0]
    assert {(table.dim, table.dtype) for table in task.tables} == {(16, "fp16")}
    assert len({base_name(table) for table in task.tables}) == len(task.tables) == 80
    assert task.topology.memory_bytes[0] == 5_000_000_000


def test_more_tasks_begin_with_the_same_tasks():
    assert paper_tasks(5, max_dim=8, seed=9)[:2] == paper_tasks(2, max_dim=8, seed=9)


def test_tasks_of_one_list_differ():
    first, second = paper_tasks(2, tables=10, seed=0)
    assert [table.name for table in first.tables] != [table.name for table in second.tables]


def test_tables_drawn_twice_get_names_of_their_own():
    task = random_task(0, pool=SMALL_POOL[:2], tables=9)
    names = [table.name for table in task.tables]
    assert len(set(names)) == 9
    for table in task.tables:
        original = next(t for t in SMALL_POOL if t.name == base_name(table))
        assert (table.rows, table.pooling, table.access) == (original.rows, original.pooling, original.access)


def test_new_names_do_not_meet_names_of_the_pool():
    pool = [Table("a", 10, 4), Table("a_2", 10, 4)]
    for seed in range(5):
        names = [table.name for table in random_task(seed, pool=pool, tables=8).tables]
        assert len(set(names)) == 8


def test_scale_shrinks_rows_only():
    full, scaled = (random_task(2, tables=30, fill=None, scale=scale) for scale in (1.0, 1e-3))
    for before, after in zip(full.tables, scaled.tables, strict=True):
        assert after.rows == max(1, round(before.rows * 1e-3))
        assert after.access.exponent == before.access.exponent
        assert (after.name, after.dim, after.pooling) == (before.name, before.dim, before.pooling)


@pytest.mark.parametrize(
    ("large", "dtype", "memory"),
    [(1_000_000, "fp32", 10_000_000), (300_000, "int8", 2_000_000)],  # weights of 8 bits have scales and biases
)
def test_tasks_are_drawn_anew_until_they_fit(large, dtype, memory):
    pool = [Table("small", 1000, 4), Table("large", large, 4)]
    for seed in range(20):
        task = random_task(seed, pool=pool, tables=3, dims=(4,), devices=2, memory=memory, dtype=dtype)
        assert sum(table.weight_bytes for table in task.tables) <= 15 / 16 * 2 * memory


def test_fill_none_takes_any_draw():
    task = random_task(0, pool=[Table("large", 1_000_000, 4)], tables=3, devices=1, memory="1 MB", fill=None)
    assert len(task.tables) == 3


def test_device_sets_the_links_and_the_cost_model():
    task = random_task(0, pool=SMALL_POOL, tables=2, devices=3, device="h200", memory="1 GB")
    assert (task.topology.device, task.topology.devices, task.topology.hosts) == ("h200", 3, 1)
    assert task.topology.link_bandwidth == PRESETS["h200-8"].link_bandwidth
    assert random_task(0, pool=SMALL_POOL, tables=2, devices=3, device="cpu").topology.devices == 3


@pytest.mark.parametrize(
    ("max_dim", "dims"), [(4, (4,)), (12, (12,)), (48, (12, 24, 48)), (128, (4, 8, 16, 32, 64, 128))]
)
def test_halved_dims(max_dim, dims):
    assert halved_dims(max_dim) == dims


def test_split_pools_are_disjoint_and_together_the_pool():
    pool = table_pool("dlrm-2021")
    train, test = split_pool("dlrm-2021", 0.5, seed=1)
    assert len(train) == len(test) == 428
    assert {table.name for table in train} | {table.name for table in test} == {table.name for table in pool}
    assert split_pool(pool, 0.5, seed=1) == (train, test)
    assert split_pool(pool, 0.5, seed=2) != (train, test)


FACTS = json.loads((files("shardwright.workload") / "data" / "public_models.json").read_text())


@pytest.fixture(scope="module", params=POOLS)
def batch(request):
    """A pool's published facts, and its expected distinct rows and lookups by reuse bin, `(17,)` each."""
    facts = FACTS[request.param.replace("dlrm-", "dlrm_datasets_")]
    pool = table_pool(request.param)
    reuse = reuse_of_many([table.access for table in pool], [table.pooling * facts["batch_size"] for table in pool])
    unique, lookups = (by_bin.sum(0) for by_bin in reuse)
    return facts, unique, lookups


def test_totals_match_the_published_ones(batch):
    facts, unique, lookups = batch
    assert lookups.sum() == pytest.approx(facts["lookups"], rel=0.001)
    assert unique.sum() == pytest.approx(facts["unique_rows"], rel=0.001)


def test_reuse_histograms_match_the_published_ones(batch):
    facts, unique, lookups = batch
    np.testing.assert_allclose(unique / unique.sum(), facts["unique_row_share"], atol=0.001, rtol=0)
    np.testing.assert_allclose(lookups / lookups.sum(), facts["lookup_share"], atol=0.001, rtol=0)


@pytest.mark.parametrize(("name", "tables"), [("dlrm-2021", 856), ("dlrm-2022", 788)])
def test_tables_are_many_and_varied(name, tables):
    pool = table_pool(name)
    assert len(pool) == len({table.name for table in pool}) == tables
    rows = np.array([table.rows for table in pool])
    pooling = np.array([table.pooling for table in pool])
    exponent = np.array([table.access.exponent for table in pool])
    assert rows.min() < 100
    assert rows.max() > 10_000_000
    assert rows.mean() > 3 * np.median(rows)  # heavy tails
    assert pooling.mean() > 3 * np.median(pooling)
    assert pooling.min() < 0.1
    assert pooling.max() > 150
    assert exponent.min() < 0.2
    assert exponent.max() > 1.4
    assert exponent.std() > 0.2
    assert (np.diff(rows) < 0).any(), "the order of the pool must not give the size away"


@pytest.mark.parametrize(
    ("name", "tables", "gigabytes", "lookups"),
    [
        ("mlperf-dlrm-dcnv2", 26, 104.5, 214),
        ("hugectr-180", 177, 265.3, 14_450),
        ("hugectr-200", 200, 415.4, 4_550),
        ("hugectr-7", 7, 1784.3, 163),
    ],
)
def test_totals_of_each_model(name, tables, gigabytes, lookups):
    model = public_model(name)
    assert len(model) == len({table.name for table in model}) == tables
    assert sum(table.weight_bytes for table in model) / 1e9 == pytest.approx(gigabytes, abs=0.1)
    assert sum(table.pooling for table in model) == lookups


def test_mlperf_tables_are_in_the_published_order():
    model = public_model("mlperf-dlrm-dcnv2")
    assert (model[0].rows, model[5].rows, model[20].rows) == (40_000_000, 3, 40_000_000)
    assert model[20].pooling == 100
    assert {table.dim for table in model} == {128}


def test_hugectr_groups_become_tables_with_zipf_1_1():
    model = public_model("hugectr-180")
    assert [table.name for table in model[4:6]] == ["g0_4", "g1_0"]
    assert (model[-1].rows, model[-1].dim, model[-1].pooling) == (500_000_000, 32, 100)
    assert {table.access.exponent for table in model} == {1.1}


@pytest.mark.parametrize("name", PUBLIC_MODELS)
def test_scale_multiplies_rows_and_keeps_at_least_one(name):
    for full, scaled in zip(public_model(name), public_model(name, scale=1e-3), strict=True):
        assert scaled.rows == max(1, round(full.rows / 1000))
        assert (scaled.name, scaled.dim, scaled.pooling) == (full.name, full.dim, full.pooling)


def test_zipf_can_be_replaced():
    assert {table.access.exponent for table in public_model("mlperf-dlrm-dcnv2", zipf=0.5)} == {0.5}


def test_task_takes_published_optimizer_and_batch_size():
    topology = Topology.preset("h200-8")
    task = public_task("mlperf-dlrm-dcnv2", topology, scale=0.01)
    assert (task.optimizer, task.batch_size, task.topology) == ("adagrad", 65_536, topology)
    assert public_task("hugectr-7", topology, batch_size=128).batch_size == 128
    assert public_task("hugectr-7", topology).optimizer == "sgd"


def test_shipped_facts_are_the_published_ones():
    shared = Path(os.environ.get("SHARDWRIGHT_SHARED", Path(__file__).parents[4] / "shared"))
    source = shared / "data" / "public_models.yaml"
    if not source.exists():
        pytest.skip(f"{source} is absent; set SHARDWRIGHT_SHARED to the folder that holds data/public_models.yaml")
    import yaml

    published = yaml.safe_load(source.read_text())
    assert {name: _all_facts()[name] for name in published} == published


def test_features_of_nvidias_models_share_tables():
    model = public_model("nvidia-tiny")
    assert len(model) == 55
    assert [table.poolings for table in model[:4]] == [(1, 10), (1, 10), (1, 10), (1,)]
    assert sum(table.weight_bytes for table in model) / 2**30 == pytest.approx(4.2, abs=0.05)  # as published
