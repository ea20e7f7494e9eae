"""The runtimes of a plan, and the task with the limits of a runtime."""

import json
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import shardwright as sw
from shardwright.errors import InfeasibleTask
from shardwright.questions.review import elsewhere_line, plan_elsewhere
from shardwright.search.infeasible import prove_infeasible
from shardwright.sharding.runtimes import preferred_runtimes, task_for
from shardwright.task import Exchange, Links, LinkSpeed
from shardwright.testing.model import SimpleCostModel
from tests.strategies import plans, tasks

MODEL = SimpleCostModel()
POOLED = sw.Table("pooled", 1600, 16, 3.0)
SEQUENCE = sw.Table("sequence", 1600, 16, 3.0, pooled=False)
TASK = sw.Task([POOLED, SEQUENCE], sw.Topology(2, 2), 64)
HALVES = [sw.Shard("sequence", (0, 1600), (0, 8), (0,)), sw.Shard("sequence", (0, 1600), (8, 16), (1,))]


def rows(*cuts, name="sequence", order="id"):
    return [sw.Shard(name, block, (0, 16), (rank,), order) for rank, block in enumerate(pairwise(cuts))]


def plan_of(*shards):
    return sw.Plan(TASK, [sw.Shard.whole(POOLED, 3), *shards])


@pytest.mark.parametrize(
    ("shards", "runs_on"),
    [
        ([sw.Shard.whole(SEQUENCE, 1)], ("shardwright", "torchrec")),
        ([sw.Shard.whole(SEQUENCE, 0, 1, 2, 3)], ("shardwright",)),  # TorchRec replicates sequences on GPUs only
        ([sw.Shard.whole(SEQUENCE, 0, 2)], ("shardwright",)),  # a replica on each host
        ([sw.Shard.whole(SEQUENCE, 0, 3)], ()),  # other local ranks of one host than of the other
        (HALVES, ("shardwright", "torchrec")),
        (rows(0, 400, 800, 1200, 1600), ("shardwright", "torchrec")),
        (rows(0, 800, 1600), ("shardwright",)),  # on the two devices of a host, where TorchRec runs pooled tables only
        (rows(0, 700, 1600), ("shardwright",)),
        (rows(0, 400, 800, 1200, 1600, order="hotness"), ("shardwright",)),
    ],
)
def test_a_plan_names_the_runtimes_that_can_run_it(shards, runs_on, tmp_path):
    plan = plan_of(*shards)
    plan.check()
    assert plan.runs_on == runs_on
    plan.save(tmp_path / "plan.json")
    assert json.loads((tmp_path / "plan.json").read_text())["runs_on"] == list(runs_on)
    assert sw.Plan.load(tmp_path / "plan.json").runs_on == runs_on


WIDE = replace(POOLED, dim=4096)  # than the kernels of GPUs


@pytest.mark.parametrize(
    ("table", "device", "shards", "runs_on"),
    [
        (WIDE, "h100", [sw.Shard.whole(WIDE, 0)], ()),
        (WIDE, "cpu", [sw.Shard.whole(WIDE, 0)], ("shardwright", "torchrec")),
        (SEQUENCE, "h100", [sw.Shard.whole(SEQUENCE, 0, 1, 2, 3)], ("shardwright", "torchrec")),
        (POOLED, "cpu", rows(0, 700, 1600, name="pooled"), ("shardwright",)),
        (replace(POOLED, dim=6), "cpu", [sw.Shard("pooled", (0, 1600), (0, 6), (0,))], ("shardwright",)),
        (
            replace(POOLED, dim=6),
            "cpu",
            [sw.Shard("pooled", (0, 1600), (0, 6), (0, 1, 2, 3))],
            ("shardwright", "torchrec"),
        ),
        (replace(SEQUENCE, dim=6), "cpu", [sw.Shard("sequence", (0, 1600), (0, 6), (0,))], ("shardwright",)),
        (replace(SEQUENCE, dim=6, dtype="int8"), "cpu", [sw.Shard("sequence", (0, 1600), (0, 6), (0,))], ("torchrec",)),
        (replace(SEQUENCE, dim=6), "cpu", [sw.Shard("sequence", (0, 1600), (0, 6), (0, 1, 2, 3))], ("shardwright",)),
        (
            replace(SEQUENCE, dim=6),
            "h100",
            [sw.Shard("sequence", (0, 1600), (0, 6), (0, 1, 2, 3))],
            ("shardwright", "torchrec"),
        ),
    ],
)
def test_runtimes_depend_on_the_device_and_the_kind_of_table(table, device, shards, runs_on):
    assert sw.Plan(sw.Task([table], sw.Topology(2, 2, device), 64), shards).runs_on == runs_on


@pytest.mark.slow
@given(st.data())
@settings(max_examples=40, deadline=None)
def test_a_plan_for_a_runtime_can_be_run_by_it_and_is_of_the_callers_task(data):
    task, runtime = (
        data.draw(tasks(max_tables=4, constrained=True)),
        data.draw(st.sampled_from(["shardwright", "torchrec"])),
    )
    try:
        plan = sw.plan(task, cost_model=MODEL, runs_on=runtime, time_limit=1.0)
    except InfeasibleTask:
        return
    assert runtime in plan.runs_on
    assert plan.task == task


@given(st.data())
@settings(max_examples=100, deadline=None)
def test_limits_bar_no_plan_that_the_runtime_can_run(data):
    task = data.draw(tasks(max_tables=3))
    plan = sw.Plan(task, data.draw(plans(task)))
    for runtime in plan.runs_on:
        limited = task_for(task, runtime)
        sw.Plan(limited, plan.shards).check()
        assert prove_infeasible(limited) is None


def test_a_table_that_a_runtime_cannot_run_is_named_with_the_other():
    limits = sw.Constraints({"sequence": sw.TableConstraint(sharding_types=("column_wise",))})
    for runtime in ("shardwright", "torchrec"):
        plan = sw.plan(replace(TASK, constraints=limits), cost_model=MODEL, runs_on=runtime)
        assert plan.sharding_type("sequence") == "column_wise"
    tiered = sw.Constraints({"sequence": sw.TableConstraint(sharding_types=("tiered",))})
    with pytest.raises(InfeasibleTask, match="only tiered, which TorchRec does not run.*'shardwright'"):
        sw.plan(replace(TASK, constraints=tiered), cost_model=MODEL, runs_on="torchrec")


@pytest.mark.parametrize(
    ("limits", "cannot", "says"),
    [
        ({"tables": [replace(POOLED, dtype="int8"), SEQUENCE]}, "shardwright", "table 'pooled' has int8 weights"),
        ({"exchange": Exchange(values="int8")}, "shardwright", "exchange: values is int8"),
        ({"exchange": Exchange(gradients="fp8")}, "shardwright", "exchange: gradients is fp8"),
        ({"exchange": Exchange("host")}, "torchrec", "deduplicate 'host'.*leave exchange out"),
    ],
)
def test_tasks_that_one_runtime_cannot_train_are_planned_for_the_other(limits, cannot, says):
    task = replace(TASK, **limits)
    with pytest.raises(InfeasibleTask, match=says):
        sw.plan(task, cost_model=MODEL, runs_on=cannot)
    assert {cannot, *sw.plan(task, cost_model=MODEL).runs_on} == {"shardwright", "torchrec"}


def test_torchrec_is_planned_for_unless_tiers_are_asked_for():
    assert sw.plan(TASK, cost_model=MODEL).runs_on == ("shardwright", "torchrec")
    for limits in (("tiered",), ("tiered", "row_wise")):
        asked = replace(TASK, constraints=sw.Constraints({"sequence": sw.TableConstraint(sharding_types=limits)}))
        assert preferred_runtimes(asked, "auto")[0] == "shardwright"
    tiered = sw.plan(TASK, cost_model=MODEL, strategy="flexshard")
    assert tiered.tiered == sw.plan(TASK, cost_model=MODEL, strategy="flexshard", runs_on="shardwright").tiered
    assert preferred_runtimes(TASK, "auto", tiered)[0] == ("shardwright" if tiered.tiered else "torchrec")


SMALL = sw.Topology(1, 2, memory="10 KB")
TIERED = sw.Constraints({"sequence": sw.TableConstraint(sharding_types=("tiered",))})


@pytest.mark.parametrize(
    "limits",
    [
        {"tables": [replace(POOLED, dtype="int8"), SEQUENCE], "topology": SMALL},  # shardwright.runtime trains no int8
        {"exchange": Exchange(values="int8"), "topology": SMALL},
        {"constraints": TIERED, "topology": SMALL},  # TorchRec runs no tiers
        {"exchange": Exchange("host"), "topology": SMALL},
    ],
)
def test_tasks_that_are_too_large_are_not_refused_for_the_limits_of_a_runtime_that_nobody_asked_for(limits):
    with pytest.raises(InfeasibleTask, match="10.0 KB|20.0 KB"):
        sw.plan(replace(TASK, **limits), cost_model=MODEL)


def test_a_plan_for_the_other_runtime_is_not_started_from_for_torchrec():
    """The strategy cannot take the exchange of the plan's runtime: that is the reason, not that TorchRec could not either."""
    ours = replace(TASK, exchange=Exchange("host"))
    start = sw.plan(ours, cost_model=MODEL)
    with pytest.raises(InfeasibleTask, match="use flexshard or auto"):
        sw.plan(ours, cost_model=MODEL, strategy="certified", start=start)


def test_the_plan_for_the_other_runtime_lies_beside():
    plan = sw.plan(TASK, cost_model=MODEL)
    elsewhere = plan_elsewhere(plan, cost_model=MODEL)
    assert elsewhere is not None
    assert "shardwright" in elsewhere.runs_on
    assert elsewhere_line(plan, elsewhere).startswith(
        f"the best plan found with --runs-on shardwright takes {elsewhere.cost.step_ms:.3f} ms"
    )
    only = sw.Constraints({"sequence": sw.TableConstraint(sharding_types=("tiered",))})
    barred = sw.plan(replace(TASK, constraints=only), cost_model=MODEL)
    assert elsewhere_line(barred, plan_elsewhere(barred, cost_model=MODEL)) == "no plan with --runs-on torchrec"


def test_the_plan_for_the_other_runtime_is_priced_by_its_measured_exchange():
    slow, fast = (LinkSpeed(1.0, bandwidth) for bandwidth in (1e6, 1e9))
    links = Links(all_to_all=(slow, slow), exchange=(fast, fast))
    task = replace(TASK, tables=[POOLED, replace(POOLED, name="other")], topology=replace(TASK.topology, links=links))
    ours = sw.plan(task, cost_model=MODEL, strategy="size")
    elsewhere = plan_elsewhere(ours, cost_model=MODEL)
    assert elsewhere is not None
    assert elsewhere.task.exchange.collectives == "shared"
    assert elsewhere.cost.step_ms < ours.cost.step_ms
    assert "exchange: {collectives: shared}" in elsewhere_line(ours, elsewhere)
    back = plan_elsewhere(elsewhere, cost_model=MODEL)
    assert back is not None
    assert back.task == task
    assert "torchrec" in back.runs_on


def test_torchrec_runs_no_task_of_shared_collectives():
    task = replace(TASK, tables=[POOLED], exchange=Exchange(collectives="shared"))
    plan = sw.plan(task, cost_model=MODEL, time_limit=0.2)
    assert plan.runs_on == ("shardwright",)
    with pytest.raises(InfeasibleTask, match="collectives"):
        sw.plan(task, cost_model=MODEL, runs_on="torchrec")
