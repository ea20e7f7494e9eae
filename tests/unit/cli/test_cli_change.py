"""`shardwright plan --from`: the moves, and their gain."""

import pytest

import shardwright as sw
from shardwright.sharding import Plan, Shard
from shardwright.testing.tasks import task_of

QUICK = ("--gap", 0.1, "--time-limit", 0.5)


def test_moves_and_their_gains_are_printed(cli, task_file, model_file, plan_file, tmp_path):
    target = tmp_path / "new.json"
    outcome = cli(
        "plan", task_file, "--from", plan_file, "--move-cost", 0.5, "-o", target, "--model", model_file, *QUICK
    )
    assert outcome.code == 0
    before, after = sw.Plan.load(plan_file), sw.Plan.load(target)
    diff = before.diff(after)
    rows = {words[0]: words for line in outcome.out.splitlines() if (words := line.split())}
    assert diff.moved_tables
    for change in diff.tables:
        if change.moved_bytes:
            assert rows[change.table][1:3] == [change.before, change.after]
    assert f"of {len(diff.moved_tables)} table" in outcome.out
    gain = before.cost.step_ms - after.cost.step_ms
    assert gain > 0
    assert (
        f"step of {plan_file}: {before.cost.step_ms:.3f} ms, of this plan: {after.cost.step_ms:.3f} ms" in outcome.out
    )
    assert f"gain {gain:.3f} ms ({100 * gain / before.cost.step_ms:.1f}%)" in outcome.out
    assert "for each GB that moves for it" in outcome.out


def test_the_change_is_in_the_json_document(cli, task_file, model_file, plan_file):
    document = cli("plan", task_file, "--from", plan_file, "--model", model_file, *QUICK, "--json").document
    change, before = document.pop("change"), sw.Plan.load(plan_file)
    assert change["old_step_ms"] == pytest.approx(before.cost.step_ms)
    assert change["gain_ms"] == pytest.approx(before.cost.step_ms - document["step_ms"])
    assert change["gain"] == pytest.approx(change["gain_ms"] / before.cost.step_ms)
    assert (change["from"], change["move_cost"], change["why_old_does_not_apply"]) == (str(plan_file), 0.0, None)
    assert change["least_moving"] is None
    assert change["moved_bytes"] == sum(move["bytes"] for move in change["moves"])
    assert change["moved_bytes"] == sum(table["moved_bytes"] for table in change["tables"]) > 0
    assert set(document) == set(cli("plan", task_file, "--model", model_file, *QUICK, "--json").document)


def test_at_an_infinite_price_nothing_moves(cli, task_file, model_file, plan_file):
    outcome = cli("plan", task_file, "--from", plan_file, "--move-cost", "inf", "--model", model_file, *QUICK)
    assert outcome.code == 0
    assert "moves 0 B of " in outcome.out
    assert "gain 0.000 ms (0.0%)" in outcome.out
    assert "what moves" not in outcome.out
    document = cli(
        "plan", task_file, "--from", plan_file, "--move-cost", "inf", "--model", model_file, *QUICK, "--json"
    ).document
    assert document["change"]["move_cost"] is None  # JSON has no infinity


def test_new_tables_and_devices_are_counted(cli, model_file, plan_file, tmp_path):
    task_of(15, 6).save(tmp_path / "grown.yaml")
    outcome = cli("plan", tmp_path / "grown.yaml", "--from", plan_file, "--model", model_file, *QUICK)
    assert outcome.code == 0
    assert "3 tables are new; 2 devices are new; " in outcome.out
    assert "are made anew" in outcome.out
    assert f"{plan_file} does not apply: 3 tables are new\nstep if only what must moves (0 B): " in outcome.out
    document = cli(
        "plan", tmp_path / "grown.yaml", "--from", plan_file, "--model", model_file, *QUICK, "--json"
    ).document
    change = document["change"]
    assert change["added"] == ["table_12", "table_13", "table_14"]
    assert (change["old_step_ms"], change["least_moving"]["moved_bytes"]) == (None, 0)
    assert change["gain_ms"] == pytest.approx(change["least_moving"]["step_ms"] - document["step_ms"])
    assert change["gain"] > 0
    assert (change["new_devices"], change["gone_devices"]) == (2, 0)
    assert change["made_bytes"] > 0


def test_a_plan_of_another_task_altogether(cli, task_file, model_file, tmp_path):
    table = sw.Table("stranger", 10, 4)
    task = sw.Task([table], sw.Topology(), 16)
    Plan(task, [Shard.whole(table, 0)]).save(tmp_path / "other.json")
    outcome = cli("plan", task_file, "--from", tmp_path / "other.json", "--move-cost", 5, "--model", model_file, *QUICK)
    assert outcome.code == 0
    assert "no table of the old plan is in this task: everything is new, nothing moves" in outcome.out


def test_of_very_many_tables_the_largest_moves_are_shown(cli, model_file, tmp_path):
    tables = [sw.Table(f"t{i}", 1000 + i, 16, i + 1.0) for i in range(30)]
    task = sw.Task(tables, sw.Topology(1, 8), 1024)
    task.save(tmp_path / "task.yaml")
    Plan(task, [Shard.whole(table, 0) for table in tables]).save(tmp_path / "all_on_one.json")
    outcome = cli("plan", tmp_path / "task.yaml", "--from", tmp_path / "all_on_one.json", "--model", model_file, *QUICK)
    assert "the largest 20 of " in outcome.out


def test_a_plan_is_brought_up_to_date_in_place(cli, task_file, model_file, plan_file):
    outcome = cli("plan", task_file, "--model", model_file, *QUICK, "--from", plan_file, "-o", plan_file)
    assert outcome.code == 0, outcome.err


def test_the_json_document_with_its_change_is_a_plan_file(cli, task_file, model_file, plan_file, tmp_path):
    outcome = cli("plan", task_file, "--model", model_file, *QUICK, "--from", plan_file, "--json")
    (tmp_path / "next.json").write_text(outcome.out)
    assert "change" in outcome.document
    assert cli("show", tmp_path / "next.json", "--model", model_file).code == 0


def test_tables_that_cross_the_border_of_replicas_are_named(cli, tmp_path, model_file):
    small = sw.Table("small", 64, 64, 20.0)
    task = sw.Task([small], sw.Topology(devices_per_host=2, intra_bandwidth="1 MB/s", memory="16 GB"), 4096, "adagrad")
    task.save(tmp_path / "task.yaml")
    Plan(task, [Shard.whole(small, 0)]).save(tmp_path / "whole.json")
    command = ("plan", tmp_path / "task.yaml", "--runs-on", "torchrec", "--model", model_file, *QUICK)
    kept = cli(*command, "--from", tmp_path / "whole.json", "--json").document
    assert kept["change"]["crossing"] == []
    told = cli(*command, "--from", tmp_path / "whole.json", "--cross-replicas")
    assert "optimizer state that TorchRec does not load, as replicas come or go: small" in told.out
