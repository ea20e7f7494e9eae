"""Running plans: what can be told without starting processes."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

pytest.importorskip("torchrec", reason="needs TorchRec")

from examples.run_torchrec.phases import _times
from examples.run_torchrec.records import RankReport, ReportFolder
from examples.run_torchrec.run import PlanRun, RunOptions, run_plan
from examples.run_torchrec.sharded import planned

from shardwright.errors import InvalidInput, InvalidPlan, MeasurementFailed
from shardwright.integrations.torchrec import save_sharding_plan
from shardwright.sharding import Plan, Shard
from shardwright.task import Table, Task, Topology

pytestmark = pytest.mark.torchrec

BAG, SEQUENCE, OTHER = Table("bag", 100, 16), Table("s", 100, 16, pooled=False), Table("o", 80, 16, pooled=False)


def task(*tables, hosts=2, memory="1 MB"):
    return Task(tables, Topology(hosts=hosts, devices_per_host=2, memory=memory), 16)


def columns(table, *widths):
    starts = [sum(widths[:i]) for i in range(len(widths))]
    return [
        Shard(table.name, (0, table.rows), (start, start + width), (rank,))
        for rank, (start, width) in enumerate(zip(starts, widths, strict=True))
    ]


def rows(table, cuts, *ranks):
    return [Shard(table.name, (cuts[i], cuts[i + 1]), (0, table.dim), (rank,)) for i, rank in enumerate(ranks)]


@pytest.mark.parametrize(
    ("shards", "kind"),
    [
        ([Shard.whole(BAG, 0, 1, 2, 3)], "data_parallel"),
        ([Shard.whole(BAG, 2)], "table_wise"),
        (columns(BAG, 8, 8), "column_wise"),
        (rows(BAG, (0, 25, 50, 75, 100), 0, 1, 2, 3), "row_wise"),
        (rows(BAG, (0, 50, 100), 2, 3), "table_row_wise"),
    ],
)
def test_every_type_is_planned_on_cpus_too(shards, kind):
    """TorchRec keeps row-wise types from its planner on CPUs, and executes them."""
    (of_module,) = planned(Plan(task(BAG), shards), "cpu").plan.values()
    assert of_module["bag"].sharding_type == kind
    assert of_module["bag"].compute_kernel == ("dense" if kind == "data_parallel" else "fused")


def test_a_saved_plan_with_columns_of_two_widths_among_sequences_is_refused(tmp_path):
    """TorchRec would take the first one's width for all of them, and crash."""
    from torchrec.distributed.types import ShardingPlan

    both = task(SEQUENCE, OTHER)
    good = Plan(both, [*columns(SEQUENCE, 8, 8), *columns(OTHER, 8, 8)])
    sharding_plan = planned(good, "cpu")
    save_sharding_plan(sharding_plan, tmp_path / "good.json")
    assert planned(good, "cpu", tmp_path / "good.json").plan.keys() == sharding_plan.plan.keys()
    narrow = planned(Plan(both, [*columns(SEQUENCE, 4, 4, 4, 4), *columns(OTHER, 4, 4, 4, 4)]), "cpu")
    (path,) = sharding_plan.plan
    sharding_plan.plan[path]["o"] = narrow.plan[path]["o"]
    save_sharding_plan(ShardingPlan(sharding_plan.plan), tmp_path / "bad.json")
    with pytest.raises(InvalidPlan, match="4, 8 wide"):
        planned(good, "cpu", tmp_path / "bad.json")


def test_a_machine_without_the_memory_is_told_before_any_process_starts(monkeypatch):
    monkeypatch.setattr("examples.run_torchrec.run.available_memory", lambda: 10**9)
    with pytest.raises(
        MeasurementFailed, match=r"4 ranks with the plan's tables need 2\.\d GB of memory, this machine has 1\.0 GB"
    ):
        run_plan(Plan(task(BAG), [Shard.whole(BAG, 0)]))


@pytest.mark.parametrize(
    "fields", [{"steps": 0}, {"warm_up": 0}, {"profiled": 0}, {"timeout_s": 0.0}, {"timeout_s": float("inf")}]
)
def test_bad_options(fields):
    with pytest.raises(InvalidInput, match=r"must be (at least 1|a finite number)"):
        RunOptions(**fields)


def report(rank, *times):
    phases = {"lookup_ms": 1.0}
    return RankReport(rank=rank, step_ms=list(times), phases=phases, weights_bytes=5, optimizer_bytes=6)


def test_a_step_takes_as_long_as_its_slowest_rank():
    ranks = (report(0, 1.0, 9.0, 2.0), report(1, 3.0, 2.0, 4.0))
    assert PlanRun(Plan(task(BAG), [Shard.whole(BAG, 0)]), ranks).step_ms == 4.0


def test_reports_survive_their_folder(tmp_path):
    reports = (report(0, 1.0), report(1, 2.0))
    for one in reversed(reports):
        ReportFolder(tmp_path).write(one)
    assert ReportFolder(tmp_path).read(2) == reports


def test_phases_add_up_over_modules_and_the_exchange_is_taken_out_of_backward():
    def event(name, ms):
        return SimpleNamespace(name=name, cpu_time_total=1e3 * ms)

    found = _times(
        [
            event("shardwright input_dist_ms", 1.0), event("shardwright lookup_ms", 2.0), event("shardwright output_dist_ms", 0.5),
            event("shardwright input_dist_ms", 0.25), event("shardwright backward_ms", 10.0),
            event("autograd::engine::evaluate_function: All2All_Pooled_WaitBackward", 3.1),
            event("All2All_Pooled_WaitBackward", 3.0), event("All2All_Seq_ReqBackward", 1.0), event("ReduceScatterBase_WaitBackward", 0.5),
            event("All2All_Pooled_Wait", 7.0), event("aten::mm", 9.0),
        ]
    )  # fmt: skip
    assert found == {
        "input_dist_ms": 1.25, "lookup_ms": 2.0, "output_dist_ms": 0.5, "backward_ms": 5.5, "gradient_dist_ms": 4.5,
    }  # fmt: skip
