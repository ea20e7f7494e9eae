import json
import os

import numpy as np
import pytest

import shardwright as sw
from shardwright.learned.policy_files import SavedPolicy, save_policy
from shardwright.sharding.rank_map import RankMap
from shardwright.sharding.rank_map_files import save_rank_maps

QUICK = ("--time-limit", 0.3)


def test_a_task_becomes_a_plan_file(cli, task_file, model_file, tmp_path):
    target = tmp_path / "plan.json"
    outcome = cli("plan", task_file, "-o", target, "--model", model_file, "--strategy", "dim", "--seed", 3)
    assert outcome.code == 0
    assert f"saved {target}" in outcome.out
    plan = sw.Plan.load(target)
    assert plan.task == sw.Task.load(task_file)
    assert (plan.strategy, plan.seed, plan.cost_model) == ("dim", 3, "cpu/convex")
    rows = {words[0]: words for line in outcome.out.splitlines() if (words := line.split())}
    for rank, device in enumerate(plan.cost.devices):
        phases = (
            device.forward_ms,
            device.forward_communication_ms,
            device.backward_communication_ms,
            device.backward_ms,
        )
        assert rows[str(rank)][1:6] == [f"{value:.3f}" for value in (*phases, device.total_ms)]
        assert rows[str(rank)][6] == str(len(plan.by_device[rank]))
    assert f"step {plan.cost.step_ms:.3f} ms" in outcome.out


def test_without_output_nothing_is_saved(cli, task_file, model_file, tmp_path):
    before = set(tmp_path.iterdir())
    outcome = cli("plan", task_file, "--model", model_file, *QUICK)
    assert outcome.code == 0
    assert "not saved" in outcome.out
    assert set(tmp_path.iterdir()) == before


def test_the_json_document_is_a_plan_file(cli, task_file, model_file, tmp_path):
    outcome = cli("plan", task_file, "--model", model_file, "--json", *QUICK)
    assert outcome.code == 0
    assert outcome.err == ""
    assert len(outcome.document["devices"]) == 4
    (tmp_path / "plan.json").write_text(outcome.out)
    assert sw.Plan.load(tmp_path / "plan.json").cost.step_ms == outcome.document["step_ms"]


def test_of_very_many_devices_the_slowest_are_shown(cli, tmp_path):
    task = sw.Task([sw.Table(f"t{i}", 1000, 16, i + 1.0) for i in range(40)], sw.Topology(5, 8, "h100"), 1024)
    task.save(tmp_path / "task.yaml")
    outcome = cli("plan", tmp_path / "task.yaml", *QUICK)
    assert "the slowest 32 of 40 devices" in outcome.out


TASK = """
batch_size: 1024
topology: {devices_per_host: 2, device: h100, memory: 1 GB}
tables:
  - {name: user, rows: 1_000_000, dim: 64}
  - {name: item, rows: 1000, dim: 16}
"""


@pytest.mark.parametrize(
    ("old", "new", "code", "says"),
    [
        ("rows: 1000,", "rowz: 1000,", 2, "tables[1]: unknown field 'rowz'; did you mean 'rows'?"),
        ("{devices_per_host: 2, device: h100, memory: 1 GB}", "{preset: h900-8}", 2, "unknown preset 'h900-8'"),
        ("device: h100", "device: abacus", 2, "no cost model for device 'abacus'"),
        ("rows: 1_000_000,", "rows: 10_000_000_000,", 1, "together have 2.0 GB"),
        ("\ntables", "\nconstraints: [{colocate: [user, item]}, {apart: [user, item]}]\ntables", 2, "contradict"),
    ],
)
def test_bad_tasks(cli, tmp_path, old, new, code, says):
    path = tmp_path / "task.yaml"
    assert old in TASK
    path.write_text(TASK.replace(old, new))
    outcome = cli("plan", path, "-o", tmp_path / "plan.json", "--json")
    assert outcome.code == code
    assert says in outcome.document["error"]["message"]
    *notes, error, _ = outcome.err.split("\n")
    assert all("cost model" in text or "no preset" in text for text in notes)
    assert error == f"error: {outcome.document['error']['message']}"
    assert error.startswith(f"error: {path}: ")
    assert not (tmp_path / "plan.json").exists()


def test_a_table_too_large_for_any_device(cli, tmp_path):
    path = tmp_path / "task.yaml"
    constraint = "\nconstraints: [{table: user, sharding_types: [table_wise]}]\ntables"
    path.write_text(TASK.replace("1 GB", "200 MB").replace("\ntables", constraint))
    outcome = cli("plan", path)
    assert outcome.code == 1
    assert "table 'user' needs" in outcome.err
    assert "has 200.0 MB" in outcome.err


def test_rank_maps_are_not_written_over_by_those_of_the_plan(cli, task_file, model_file, tmp_path):
    maps = tmp_path / "plan.ranks.safetensors"
    maps.write_bytes(b"all ranks")
    outcome = cli("plan", task_file, "--model", model_file, "--rank-maps", maps, "-o", tmp_path / "plan.json")
    assert (outcome.code, maps.read_bytes()) == (2, b"all ranks")
    assert "is an input too" in outcome.err


def test_a_plan_is_written_to_a_pipe(cli, task_file, model_file, tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        assert cli("plan", task_file, "--model", model_file, "-o", pipe, *QUICK).code == 0
        assert json.loads(os.read(reader, 1 << 16))["strategy"] == "certified"
    finally:
        os.close(reader)


@pytest.mark.parametrize("option", ["--model", "--policy", "--rank-maps", "--from"])
def test_inputs_that_never_end_and_links_to_themselves_are_refused(cli, task_file, model_file, tmp_path, option):
    (tmp_path / "endless").symlink_to("/dev/zero")
    (tmp_path / "loop").symlink_to("loop")
    strategy = ["--strategy", "autoshard"] if option == "--policy" else []
    for name, says in [
        ("endless", "is a pipe or device"),
        ("loop", "Too many levels"),
        ("x" * 256, "File name too long"),
    ]:
        outcome = cli("plan", task_file, "--model", model_file, *strategy, option, tmp_path / name)
        assert outcome.code == 2
        assert outcome.err.startswith(f"error: {tmp_path / name}: ")
        assert says in outcome.err


def test_a_policy_and_rank_maps_that_do_not_fit_name_their_files(cli, task_file, model_file, tmp_path):
    policy, ranks = tmp_path / "policy.safetensors", tmp_path / "ranks.safetensors"
    save_rank_maps({"table_0": RankMap.identity(3)}, ranks)
    outcome = cli("plan", task_file, "--model", model_file, "--rank-maps", ranks)
    assert outcome.err.startswith(f"error: {ranks}: rank map of table 'table_0': is of 3 rows")
    for strategy in ("autoshard", "dreamshard"):
        save_policy(SavedPolicy(strategy, {"a": np.zeros(2, np.float32)}, {}), policy)
        outcome = cli("plan", task_file, "--model", model_file, "--strategy", strategy, "--policy", policy)
        assert outcome.code == 2
        assert outcome.err.startswith(f"error: {policy}: ")


def test_a_plan_file_is_checked_and_priced(cli, plan_file, model_file):
    outcome = cli("plan", "--check", plan_file, "--model", model_file)
    assert outcome.code == 0
    plan = sw.Plan.load(plan_file)
    assert f"the step takes {plan.cost.step_ms:.3f} ms by cpu/convex, the file says the same" in outcome.out
    document = cli("plan", plan_file, "--check", "--model", model_file, "--json").document
    assert document["same_cost"]
    assert document["step_ms"] == pytest.approx(plan.cost.step_ms, rel=1e-9)
    assert [device["rank"] for device in document["devices"]] == [0, 1, 2, 3]


def test_a_plan_whose_cost_is_another_is_priced_anew(cli, plan_file, model_file):
    content = json.loads(plan_file.read_text())
    for device in content["devices"]:
        device["forward_ms"] += 1.0
    plan_file.write_text(json.dumps(content))
    outcome = cli("plan", "--check", plan_file, "--model", model_file)
    assert outcome.code == 0
    assert f"the file says {sw.Plan.load(plan_file).cost.step_ms:.3f} ms" in outcome.out
    content["devices"] = []
    plan_file.write_text(json.dumps(content))
    document = cli("plan", "--check", plan_file, "--model", model_file, "--json").document
    assert (document["stated_step_ms"], document["same_cost"]) == (None, False)


def test_memory_is_balanced_within_a_tolerance(cli, task_file, model_file, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    command = ("plan", task_file, "--model", model_file, *QUICK)
    document = cli(*command, "--balance-memory", "20%", "-o", "even.json", "--json").document
    assert sw.Plan.load("even.json").cost.step_ms <= 1.2 * document["balance"]["best_ms"]
    assert document["balance"]["least_bytes"] <= document["balance"]["fullest_bytes"]
    assert "the fullest device holds" in cli(*command, "--balance-memory", "0.2").out


def test_little_moves_within_a_tolerance(cli, task_file, model_file, plan_file, tmp_path):
    options = ("plan", task_file, "--model", model_file, *QUICK, "--from", plan_file, "--json")
    free, least = (cli(*options, *more).document["change"] for more in ((), ("--least-moves", "30%")))
    assert least["moved_bytes"] <= free["moved_bytes"]
    most = free["moved_bytes"] // 4
    few = cli(*options, "--most-moved", f"{most} B", "-o", tmp_path / "few.json").document
    assert few["change"]["moved_bytes"] <= most
    old, new = sw.Plan.load(plan_file), sw.Plan.load(tmp_path / "few.json")
    assert old.diff(new).moved_bytes == few["change"]["moved_bytes"]
    assert few["step_ms"] <= old.cost.step_ms
    none = cli(*options, "--most-moved", "0").document
    assert (none["change"]["moved_bytes"], none["step_ms"]) == (0, pytest.approx(old.cost.step_ms))


def test_the_help_names_every_listed_strategy(cli):
    from shardwright.cli.options import STRATEGIES

    assert all(name in STRATEGIES.replace(".", ",") for name in sw.strategy_names())
