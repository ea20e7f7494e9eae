import os
from pathlib import Path

import pytest

from shardwright.errors import InvalidInput
from shardwright.task import Topology
from shardwright.workload.models import PUBLIC_MODELS, _all_facts, public_model, public_task


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


@pytest.mark.parametrize("make", [public_model, lambda name: public_task(name, Topology())])
def test_unknown_model_names_the_known_ones(make):
    with pytest.raises(InvalidInput, match=r"'bert'.*mlperf-dlrm-dcnv2, hugectr-180"):
        make("bert")


@pytest.mark.parametrize("scale", [0.0, -1.0, float("nan")])
def test_bad_scale(scale):
    with pytest.raises(InvalidInput, match="scale"):
        public_model("hugectr-7", scale=scale)


def test_shipped_facts_are_the_published_ones():
    shared = Path(os.environ.get("SHARDWRIGHT_SHARED", Path(__file__).parents[4] / "shared"))
    source = shared / "data" / "public_models.yaml"
    if not source.exists():
        pytest.skip(f"{source} is absent; set SHARDWRIGHT_SHARED to the folder that holds data/public_models.yaml")
    import yaml

    assert _all_facts() == yaml.safe_load(source.read_text())
