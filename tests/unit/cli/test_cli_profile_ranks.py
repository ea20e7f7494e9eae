import json

import numpy as np
import pytest

from shardwright.cost import save_model
from shardwright.sharding import Plan, RankMap, Shard
from shardwright.sharding.rank_map_files import load_rank_maps, save_rank_maps
from shardwright.task import Table, Task, Topology
from shardwright.task.files import load_tables
from tests.unit.cli.models import linear_model


@pytest.fixture
def log(tmp_path):
    path = tmp_path / "log.csv"
    path.write_text("user,item,name\n1,1 2 3,a\n2,3 2,b\n7,3,c\n")
    return path


def test_rank_maps_are_saved_with_the_tables_they_belong_to(cli, log, tmp_path):
    tables, ranks = tmp_path / "tables.yaml", tmp_path / "ranks.safetensors"
    outcome = cli("profile", log, "-o", tables, "--rank-maps", ranks)
    assert outcome.code == 0
    maps = load_rank_maps(ranks)
    assert {name: one.hottest.tolist() for name, one in maps.items()} == {"user": [1, 2, 7], "item": [3, 2, 1]}
    rows = {table.name: table.rows for table in load_tables(tables)}
    assert rows == {"user": 8, "item": 4, "name": 3}
    assert "'item': rank map of 3 of 4 rows" in outcome.out
    assert "'name' has no rank map: its ids are text or hashes, not row numbers" in outcome.out
    assert f"saved {ranks}" in outcome.out


def test_the_document_names_the_rank_maps(cli, log, tmp_path):
    ranks = tmp_path / "ranks.safetensors"
    document = cli("profile", log, "--rank-maps", ranks, "--rank-map-rows", 2, "--json").document
    assert document["rank_maps"] == {"user": {"rows": 8, "ids": 2}, "item": {"rows": 4, "ids": 2}}
    assert document["saved"] == [str(ranks)]
    assert "rank_maps" not in cli("profile", log, "--json").document


class ByHotness:
    """Replicates the two hottest rows of every table."""

    name = "by_hotness"

    def supports(self, task):
        return None

    def search(self, task, cost_model, *, seed, deadline):
        shards = []
        for table in task.tables:
            shards.append(Shard(table.name, (0, 2), (0, table.dim), (0, 1), "hotness"))
            shards.append(Shard(table.name, (2, table.rows), (0, table.dim), (1,), "hotness"))
        return Plan(task, shards, strategy=self.name, seed=seed)


@pytest.fixture
def task_by_hotness(tmp_path, monkeypatch):
    import shardwright.search

    known = shardwright.search.strategy_named
    monkeypatch.setattr(
        shardwright.search, "strategy_named", lambda name: ByHotness() if name == "by_hotness" else known(name)
    )
    tables = (Table("a", 9, 4, pooled=False), Table("b", 9, 4, pooled=False))
    path = tmp_path / "task.yaml"
    Task(tables, Topology(hosts=1, devices_per_host=2, memory="1 MB"), batch_size=8).save(path)
    save_model(linear_model(), tmp_path / "model.safetensors")
    return path


def test_a_plan_keeps_the_rank_maps_of_its_tables(cli, task_by_hotness, tmp_path):
    ranks, target = tmp_path / "ranks.safetensors", tmp_path / "plan.json"
    save_rank_maps({"a": RankMap(9, np.array([8, 3, 5, 1]))}, ranks)
    arguments = ("--strategy", "by_hotness", "--model", tmp_path / "model.safetensors", "-o", target)
    outcome = cli("plan", task_by_hotness, *arguments, "--rank-maps", ranks)
    assert outcome.code == 0, outcome.err
    assert "1 of 2 tables in order of hotness" in outcome.out
    assert "no rank map for b: their ids are taken for ranks" in outcome.out
    assert Plan.load(target).rank_maps["a"].hottest.tolist() == [8, 3]
    document = cli("plan", task_by_hotness, *arguments, "--rank-maps", ranks, "--json").document
    assert document["rank_maps"] == json.loads(target.read_text())["rank_maps"]


def test_a_plan_from_one_with_rank_maps_asks_for_its_own(cli, task_by_hotness, tmp_path):
    older = tmp_path / "older.json"
    task = Task.load(task_by_hotness)
    ByHotness().search(task, None, seed=0, deadline=None).with_rank_maps({"a": RankMap.identity(9)}).save(older)
    outcome = cli("plan", task_by_hotness, "--model", tmp_path / "model.safetensors", "--from", older)
    assert outcome.code == 0, outcome.err
    assert "name full maps with --rank-maps" in outcome.out
