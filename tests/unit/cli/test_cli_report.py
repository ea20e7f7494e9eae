import json
import re

import pytest

import shardwright as sw
from shardwright.report import entry_of, verdict
from tests.unit.report.plans import mixed_plan, row_wise_plan
from tests.unit.report.test_entry import verified


@pytest.fixture
def plan_files(tmp_path):
    """Two plans of one task."""
    files = [tmp_path / "before.json", tmp_path / "after.json"]
    for plan, file in zip((row_wise_plan(), mixed_plan()), files, strict=True):
        plan.save(file)
    return files


def data_of(page):
    return json.loads(re.search(r'id="data">(.*?)</script>', page.read_text(), re.DOTALL)[1])


def test_plans_become_one_page(cli, plan_files, tmp_path):
    target = tmp_path / "report.html"
    outcome = cli("report", *plan_files, "-o", target)
    assert (outcome.code, outcome.err) == (0, "")
    assert outcome.out.startswith(f"saved {target} (")
    data = data_of(target)
    assert [plan["name"] for plan in data["plans"]] == ["before", "after"]
    assert data["changes"][1]["movedBytes"] > 0


def test_a_plan_may_have_a_name_that_is_no_text(cli, plan_files, tmp_path):
    target = tmp_path / "report.html"
    outcome = cli("report", plan_files[0].rename(tmp_path / "a\udcff.json"), "-o", target)
    assert (outcome.code, outcome.err) == (0, "")
    assert [plan["name"] for plan in data_of(target)["plans"]] == ["a?"]


def test_the_json_document_lists_written_files(cli, plan_files, tmp_path):
    target = tmp_path / "report.html"
    outcome = cli("report", plan_files[0], "-o", target, "--json")
    assert (outcome.code, outcome.err) == (0, "")
    assert outcome.document["saved"] == [str(target)]
    assert outcome.document["bytes"] == target.stat().st_size
    (plan,) = outcome.document["plans"]
    assert plan["verdict"] == data_of(target)["plans"][0]["verdict"] == verdict(entry_of(row_wise_plan(), "before"))
    assert (plan["plan"], plan["step_ms"], plan["notes"]) == (str(plan_files[0]), row_wise_plan().cost.step_ms, [])


def test_a_measurement_finds_its_plan(cli, plan_files, tmp_path):
    file = tmp_path / "measured.json"
    file.write_text(json.dumps(verified(mixed_plan())))
    outcome = cli("report", *plan_files, "-o", tmp_path / "report.html", "--measured", file, "--json")
    assert outcome.code == 0
    before, after = outcome.document["plans"]
    assert before["measured_compute_ms"] is None
    assert after["measured_compute_ms"] == pytest.approx(1.1 * mixed_plan().cost.compute_ms)
    assert data_of(tmp_path / "report.html")["plans"][1]["measured"] is not None


def test_another_model_is_noted(cli, plan_files, model_file, tmp_path):
    outcome = cli("report", plan_files[0], "-o", tmp_path / "report.html", "--model", model_file, "--json")
    assert outcome.code == 0
    assert outcome.err.startswith("note: before: Shares of tables are by cost model cpu/convex, which predicts")
    assert outcome.document["plans"][0]["notes"]


@pytest.mark.slow
def test_kernels_are_measured_now(cli, tmp_path):
    pytest.importorskip("torch", reason="measuring needs torch")
    task = sw.Task((sw.Table("a", 1000, 16, 2.0), sw.Table("b", 500, 8)), sw.Topology(1, 2, "cpu", "64 MB"), 64)
    sw.plan(task, strategy="greedy").save(tmp_path / "plan.json")
    outcome = cli("report", tmp_path / "plan.json", "-o", tmp_path / "r.html", "--measure", "--rounds", 1, "--json")
    assert outcome.code == 0
    assert outcome.document["plans"][0]["measured_compute_ms"] > 0
    assert len(data_of(tmp_path / "r.html")["plans"][0]["measured"][0]) == 2
