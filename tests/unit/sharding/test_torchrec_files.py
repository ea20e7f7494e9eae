import json

import pytest

import shardwright as sw
from shardwright.errors import InvalidPlan
from shardwright.sharding.torchrec_files import is_sharding_plan, plan_from_sharding_plan, sharding_plan_from_plan
from shardwright.task import Table, Task, Topology

TASK = Task([Table("a", 1000, 32, 4.0), Table("b", 12, 16), Table("c", 64, 8)], Topology(2, 2, "h100"), 1024)


def shard(offsets, sizes, rank):
    return {"offsets": offsets, "sizes": sizes, "placement": f"rank:{rank}/cuda:{rank % 2}"}


def document():
    tables = {
        "a": {"sharding_type": "column_wise", "compute_kernel": "fused", "ranks": [0, 3], "output_dtype": "FP16",
              "shards": [shard([0, 0], [1000, 16], 0), shard([0, 16], [1000, 16], 3)]},
        "b": {"sharding_type": "data_parallel", "compute_kernel": "dense", "ranks": [0, 1, 2, 3], "shards": None},
        "c": {"sharding_type": "table_wise", "compute_kernel": "fused", "ranks": [2], "shards": [shard([0, 0], [64, 8], 2)]},
    }  # fmt: skip
    return {"format": 1, "sharding_plan": {"sparse.bags": tables}, "context_hash": "17"}


def test_blocks_are_read_as_shards():
    plan = plan_from_sharding_plan(document(), TASK, "x.json")
    plan.check()
    assert [(block.columns, block.devices) for block in plan.by_table["a"]] == [((0, 16), (0,)), ((16, 32), (3,))]
    assert plan.by_table["b"][0].devices == (0, 1, 2, 3)
    assert plan.by_table["c"][0].devices == (2,)


def test_a_plan_round_trip_restores_what_its_file_omits():
    plan = plan_from_sharding_plan(document(), TASK, "x.json")
    assert sharding_plan_from_plan(plan, document(), "x.json") == document()


def test_another_plan_changes_blocks_alone():
    plan = sw.plan(TASK, runs_on="torchrec", strategy="row_wise")
    written = sharding_plan_from_plan(plan, document(), "x.json")
    assert written["context_hash"] == "17"
    tables = written["sharding_plan"]["sparse.bags"]
    assert tables["a"]["output_dtype"] == "FP16"
    assert (tables["a"]["sharding_type"], tables["a"]["compute_kernel"]) == ("row_wise", "fused")
    again = plan_from_sharding_plan(json.loads(json.dumps(written)), TASK, "x.json")
    again.check()
    assert {again.sharding_type(name) for name in "abc"} == {"row_wise"}


def test_tables_of_one_name_in_two_modules_go_by_their_path():
    edited_document = document()
    edited_document["sharding_plan"]["over"] = {"c": edited_document["sharding_plan"]["sparse.bags"]["c"]}
    tables = [*TASK.tables[:2], Table("sparse.bags.c", 64, 8), Table("over.c", 64, 8)]
    plan_from_sharding_plan(edited_document, Task(tables, TASK.topology, 1024), "x.json").check()


def test_rows_outside_of_the_device_are_not_planned():
    plan = plan_from_sharding_plan(document(), TASK, "x.json")
    edited_document = document()
    edited_document["sharding_plan"]["sparse.bags"]["a"]["compute_kernel"] = "fused_uvm_caching"
    with pytest.raises(InvalidPlan, match="ShardwrightPlanner"):
        sharding_plan_from_plan(plan, edited_document, "x.json")


def test_only_documents_with_a_sharding_plan_are_one():
    assert is_sharding_plan(document())
    assert not is_sharding_plan({"format": 1, "shards": []})
    assert not is_sharding_plan([])
