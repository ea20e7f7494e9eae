"""The sums by which a page prices changes: their content, their extent, and when a page has none."""

import base64
import gzip
import json
from dataclasses import replace

import numpy as np
import pytest

from shardwright.cost import cost_model_for
from shardwright.report import whatif
from shardwright.report.document import ordered
from shardwright.report.whatif import what_if
from shardwright.sharding import Plan, Shard
from shardwright.sharding.memory import shard_bytes
from shardwright.sharding.work import shard_work
from shardwright.task import Constraints, Table, TableConstraint, Task, Topology
from tests.unit.report.plans import mixed_plan, row_wise_plan


def data_of(plan, plans=1):
    model = cost_model_for(plan.task.topology.device)
    return what_if(plan, ordered(plan), model, [0.0] * len(plan.task.tables), name="plan", plans=plans)


def doubles(text):
    return np.frombuffer(base64.b64decode(text), dtype="<f8")


def test_kinds_hold_what_each_shard_adds():
    plan = mixed_plan()
    data, model = data_of(plan), cost_model_for("cpu")
    codes = doubles(data["kinds"]["codes"]).reshape(-1, data["pricing"]["width"])
    for shard, kind in zip(ordered(plan), data["kindOf"], strict=True):
        assert np.allclose(codes[kind], model.encode([shard_work(plan.task, shard)])[0], rtol=1e-12, atol=1e-14)
        assert sum(data["kinds"]["memory"][kind]) == shard_bytes(plan.task, shard)
        assert data["kinds"]["size"][kind][1:] == (shard.row_count, shard.dim)


def sizes_of(data, table):
    return {tuple(size[1:]) for size in data["kinds"]["size"] if size[0] == table}


def test_cuts_are_halves_of_halves_in_whole_units():
    table = Table("t", 1001, 40)
    plan = Plan(Task((table,), Topology(1, 2, "cpu", "1 GB"), 64), (Shard.whole(table, 0),))
    sizes = sizes_of(data_of(plan), 0)
    assert {(501, 40), (500, 40), (1001, 20), (1001, 12), (1001, 8), (251, 40), (501, 20)} <= sizes
    assert all(dim % 4 == 0 for _, dim in sizes)
    limited = replace(plan.task, constraints=Constraints({"t": TableConstraint(column_multiple=16)}))
    assert {dim for _, dim in sizes_of(data_of(replace(plan, task=limited)), 0)} == {40, 32, 16, 8}


def test_blocks_that_lie_side_by_side_can_be_joined():
    plan = row_wise_plan()
    rows = {size[0] for size in sizes_of(data_of(plan), 0)}
    assert {250, 500, 750, 1000} <= rows


def test_tiers_are_not_cut():
    plan = mixed_plan()
    data = data_of(plan)
    tiers = [kind for shard, kind in zip(ordered(plan), data["kindOf"], strict=True) if shard.row_order == "hotness"]
    assert tiers
    assert all(data["kinds"]["halves"][kind] == [] for kind in tiers)


def test_room_goes_to_the_costliest_tables_and_is_shared_by_plans(monkeypatch):
    tables = [Table(f"t{at}", 1000 * (at + 1), 64) for at in range(30)]
    plan = Plan(Task(tables, Topology(1, 1, "cpu", "1 GB"), 64), [Shard.whole(table, 0) for table in tables])
    model, worth = cost_model_for("cpu"), [float(at == 20) for at in range(30)]
    monkeypatch.setattr(whatif, "ROOM", 1_200)
    data = what_if(plan, ordered(plan), model, worth, name="plan")
    counts = np.bincount([size[0] for size in data["kinds"]["size"]])
    assert counts[20] > 1
    assert counts.sum() == counts[20] + 29
    assert len(what_if(plan, ordered(plan), model, worth, name="plan", plans=3)["kinds"]["size"]) < counts.sum()
    monkeypatch.setattr(whatif, "_MOST", 1_000)
    assert what_if(plan, ordered(plan), model, worth, name="plan") is None


def test_unchanged_parts_of_the_plan_file_are_kept_to_the_digit():
    plan = mixed_plan()
    kept = json.loads(gzip.decompress(base64.b64decode(data_of(plan)["file"])))
    assert kept.keys() == {"format", "task"}
    from shardwright.task.files import task_from_dict

    assert task_from_dict(kept["task"]) == plan.task


@pytest.mark.parametrize("devices", [1, 4])
def test_copies_on_all_devices_need_several_devices(devices):
    table = Table("t", 1000, 16)
    plan = Plan(Task((table,), Topology(1, devices, "cpu", "1 GB"), 64), (Shard.whole(table, *range(devices)),))
    data = data_of(plan)
    assert len(data["copied"]) == (devices > 1)
    assert len(doubles(data["reduced"])) == 4 * (devices > 1)
    if devices > 1:
        sent = 2 * (devices - 1) / devices * 4 * 1000 * 16
        assert doubles(data["reduced"]).tolist() == [sent, 0.0, sent, 0.0]
        assert not doubles(data["fixed"]).any()
