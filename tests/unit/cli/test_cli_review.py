import json

import pytest

import shardwright as sw
from shardwright.sharding.torchrec_files import plan_from_sharding_plan
from tests.unit.sharding.test_stats_table import log as stats_log
from tests.unit.sharding.test_stats_table import table

QUICK, WITH_BOUND = ("--time-limit", 0.3), ("--time-limit", 1)


@pytest.fixture
def torchrec_file(plan_file, tmp_path):
    plan = sw.Plan.load(plan_file)
    tables = {
        shard.table: {
            "sharding_type": "table_wise",
            "compute_kernel": "fused",
            "ranks": list(shard.devices),
            "shards": [
                {
                    "offsets": [0, 0],
                    "sizes": [shard.rows[1], shard.columns[1]],
                    "placement": f"rank:{shard.devices[0]}/cpu",
                }
            ],
        }
        for shard in plan.shards
    }
    path = tmp_path / "torchrec.json"
    path.write_text(json.dumps({"format": 1, "sharding_plan": {"bags": tables}}))
    return path


def test_a_plan_is_reviewed_and_the_better_one_saved(cli, plan_file, model_file, tmp_path):
    outcome = cli("review", plan_file, "--model", model_file, "-o", tmp_path / "better.json", *WITH_BOUND)
    assert outcome.code == 0
    assert "tables of the slowest devices" in outcome.out
    assert "the bound holds over all plans" in outcome.out
    older, better = sw.Plan.load(plan_file), sw.Plan.load(tmp_path / "better.json")
    assert better.cost.step_ms < older.cost.step_ms
    assert f"{better.cost.step_ms:.3f}" in outcome.out


def test_the_document_has_both_plans_and_the_tables_that_count(cli, plan_file, model_file):
    document = cli("review", plan_file, "--model", model_file, "--json", *WITH_BOUND).document
    assert document["bound_ms"] <= document["better_ms"] < document["step_ms"]
    assert document["moved_bytes"] > 0
    assert document["measured_compute_ms"] is None
    assert (document["elsewhere"]["bound_scope"] is None) == (document["elsewhere"]["bound_ms"] is None)
    phases = document["phases"]
    assert sum(row["now_ms"] for row in phases) == pytest.approx(document["step_ms"])
    assert sum(row["better_ms"] for row in phases) == pytest.approx(document["better_ms"])
    assert document["fullest_bytes"] == max(sw.Plan.load(plan_file).memory.total)
    saves = [table["saves_ms"] for table in document["tables"]]
    assert saves == sorted(saves, reverse=True)
    assert 0 < saves[0] < document["step_ms"]


def test_a_plan_of_torchrec_comes_back_in_its_format(cli, torchrec_file, task_file, model_file, tmp_path):
    better = tmp_path / "better.json"
    outcome = cli("review", torchrec_file, "--task", task_file, "--model", model_file, "-o", better, *QUICK)
    assert outcome.code == 0
    task = sw.Task.load(task_file)
    plan = plan_from_sharding_plan(json.loads(better.read_text()), task, "better")
    plan.check()
    assert "torchrec" in plan.runs_on


@pytest.mark.slow
def test_both_plans_are_measured(cli, plan_file, model_file):
    pytest.importorskip("torch")
    outcome = cli("review", plan_file, "--model", model_file, "--measure", "--rounds", 1, *QUICK)
    assert outcome.code == 0
    assert "measured kernels: your plan" in outcome.out
    assert "; ours" in outcome.out


def test_a_log_of_torchrecs_planner_is_reviewed(cli, model_file, tmp_path):
    log, saved, better = tmp_path / "train.log", tmp_path / "task.yaml", tmp_path / "better.json"
    log.write_text("epoch 1\n" + stats_log(table(ranks=4)))
    outcome = cli("review", log, "--model", model_file, "--save-task", saved, "-o", better, "--json", *QUICK)
    assert outcome.code == 0
    assert any("h100" in text for text in outcome.document["assumed"])
    task = sw.Task.load(saved)
    assert [logged_table.name for logged_table in task.tables] == ["user", "item", "seq"]
    plan_from_sharding_plan(json.loads(better.read_text()), task, "better").check()
    again = cli("review", log, "--model", model_file, "--task", saved, *QUICK)
    assert again.code == 0
    assert f"{outcome.document['step_ms']:.3f}" in again.out


def test_the_pipeline_of_a_logs_job_can_be_stated(cli, model_file, tmp_path):
    log, saved = tmp_path / "train.log", tmp_path / "task.yaml"
    log.write_text(stats_log(table(ranks=4)))
    stated = ("--pipeline", "sparse_dist", "--dense-ms", 4)
    common = ("--model", model_file, "--topology", "h100-8", "--json", *QUICK)
    bare, hidden = (cli("review", log, *common, *more).document for more in ((), (*stated, "--save-task", saved)))
    assert hidden["step_ms"] < bare["step_ms"]
    assert len(hidden["assumed"]) == len(bare["assumed"]) - 1
    exchange = sw.Task.load(saved).exchange
    assert (exchange.pipeline, exchange.hidden.ids) == ("sparse_dist", 4)


def test_a_log_in_utf_16_is_read(cli, model_file, tmp_path):
    log = tmp_path / "train.log"
    log.write_text(stats_log(table(ranks=4)), encoding="utf-16")
    assert cli("review", log, "--model", model_file, *QUICK).code == 0


def test_few_bytes_move(cli, model_file, tmp_path):
    log = tmp_path / "train.log"
    log.write_text(stats_log(table(ranks=4)))
    any_, few = (
        cli("review", log, "--model", model_file, "--json", *QUICK, *more).document
        for more in ((), ("--most-moved", "50 KB"))
    )
    assert few["moved_bytes"] <= 50_000 < any_["moved_bytes"]
    assert any_["better_ms"] <= few["better_ms"] <= few["step_ms"]
    assert few["elsewhere"] is None
