from dataclasses import replace

import pytest

from shardwright.report import entry_of, verdict
from shardwright.sharding import PHASES
from shardwright.task import DenseTime, Exchange
from tests.unit.report.plans import mixed_plan


@pytest.fixture
def plan_file(tmp_path):
    path = tmp_path / "plan.json"
    mixed_plan().save(path)
    return path


def test_a_plan_in_the_terminal(cli, plan_file):
    outcome = cli("show", plan_file)
    assert (outcome.code, outcome.err) == (0, "")
    plan = mixed_plan()
    words = verdict(entry_of(plan, "plan"))
    assert " ".join(outcome.out.split()).startswith(words)
    assert cli("show", plan_file, "--json").document["verdict"] == words
    assert f"step {plan.cost.step_ms:.3f} ms" in outcome.out
    for title in ("predicted ms per device", "what a step waits for", "tables", "tiers of history, rows hottest first"):
        assert title in outcome.out
    rows = [line.split() for line in outcome.out.splitlines()]
    assert ["hot", "0", "40"] in [row[:3] for row in rows]
    assert "32×2" in next(row for row in rows if row[:1] == ["columns"])  # two features
    start = rows.index(["table", "sharded", "rows", "dim", "ranks", "share", "memory", "step", "less"])
    assert {row[0]: row[1:2] + row[4:6] for row in rows[start + 2 : start + 8]} == {
        "whole": ["table_wise", "1", "100%"],
        "columns": ["column_wise", "0,2", "50%"],
        "rows": ["row_wise", "0,3", "25-75%"],
        "everywhere": ["data_parallel", "all", "100%"],
        "some": ["data_parallel", "0,3", "100%"],
        "history": ["tiered", "all", "31%"],  # hot rows, half of the warm and a quarter of the cold
    }
    slowest = max(plan.cost.devices, key=lambda device: device.backward_ms)
    assert ["optimizer", str(slowest.rank), f"{slowest.backward_ms:.3f}"] in [
        row[2:5] for row in rows if row[:1] == ["backward"]
    ]


def test_time_hidden_by_dense_layers_is_shown(cli, tmp_path):
    plan = mixed_plan()
    exchange = Exchange(pipeline="sparse_dist", dense_ms=DenseTime(ids=2.5, gradients=0.5))
    replace(plan, task=replace(plan.task, exchange=exchange)).save(tmp_path / "plan.json")
    assert "the step leaves out dense layers, which hide ids for 2.500 ms, gradients for 0.500 ms" in " ".join(
        cli("show", tmp_path / "plan.json").out.split()
    )


def test_the_json_document_lists_everything(cli, plan_file):
    outcome = cli("show", plan_file, "--tables", 1, "--json")
    assert (outcome.code, outcome.err) == (0, "")
    plan, document = mixed_plan(), outcome.document
    assert document["step_ms"] == plan.cost.step_ms
    for shown, device, held in zip(document["devices"], plan.cost.devices, plan.memory.total.tolist(), strict=True):
        assert all(shown[phase] == getattr(device, phase) for phase in PHASES)
        assert shown["weight_bytes"] + shown["optimizer_bytes"] + shown["buffer_bytes"] == held
    assert [bottleneck["phase"] for bottleneck in document["bottlenecks"]] == list(PHASES)
    assert {table["table"] for table in document["tables"]} == set(plan.task.table_by_name)
    assert sum(table["memory_bytes"] for table in document["tables"]) == plan.memory.total.sum()
    rows = next(table for table in document["tables"] if table["table"] == "rows")
    assert (rows["ranks"], rows["devices"], rows["share_of_table"]) == ("0,3", [0, 3], [0.25, 0.75])
    less = [table["step_ms_less"] for table in document["tables"]]
    assert less == sorted(less, reverse=True)


def test_few_tables_or_none(cli, plan_file):
    assert "the costliest 2 of 6 tables" in cli("show", plan_file, "--tables", 2).out
    assert "step less" not in cli("show", plan_file, "--tables", 0).out


def test_long_names_leave_phases_and_numbers_whole(cli, tmp_path, monkeypatch):
    monkeypatch.setattr("shardwright.cli.output._PIPE_WIDTH", 80)
    plan = mixed_plan()
    names = {table.name: f"user_purchased_categories_by_{table.name}_30d" for table in plan.task.tables}
    tables = [replace(table, name=names[table.name]) for table in plan.task.tables]
    shards = [replace(shard, table=names[shard.table]) for shard in plan.shards]
    replace(plan, task=replace(plan.task, tables=tables), shards=shards).save(tmp_path / "plan.json")
    out = cli("show", tmp_path / "plan.json").out
    assert max(map(len, out.split("\ntables ")[0].splitlines()[1:])) <= 80  # the verdict above is one line
    waits = out.split("what a step waits for")[1].split("\ntables ")[0]
    for phase, name in zip(PHASES, ("forward lookup", "forward coll", "backward coll", "backward and"), strict=True):
        slowest = max(getattr(device, phase) for device in plan.cost.devices)
        assert any(line.startswith(f" {name}") and f" {slowest:.3f} " in line for line in waits.splitlines())
