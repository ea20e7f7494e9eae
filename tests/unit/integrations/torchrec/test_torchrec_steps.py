"""Running plans: behaviour that needs no processes."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

pytest.importorskip("torchrec", reason="needs TorchRec")

from shardwright.cost import cost_model_for
from shardwright.cost.score import scored
from shardwright.errors import InvalidInput, InvalidPlan, MeasurementFailed
from shardwright.integrations.torchrec.models import Batches
from shardwright.integrations.torchrec.steps import modules
from shardwright.integrations.torchrec.steps.modules import ModuleProbe
from shardwright.integrations.torchrec.steps.phases import PHASES, _times
from shardwright.integrations.torchrec.steps.rank import RankReport, Rounds
from shardwright.integrations.torchrec.steps.run import Steps, rank_program, ranks, run_here
from shardwright.integrations.torchrec.steps.sharded import planned
from shardwright.integrations.torchrec.steps.shared import RuntimeModel
from shardwright.measure.collectives.rank import PlaceInGroup
from shardwright.sharding import DeviceCost, Plan, PlanCost, Shard
from shardwright.task import DenseTime, Exchange, Links, LinkSpeed, Table, Task, Topology
from shardwright.task.link_files import Cluster, MeasuredLinks

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


def test_columns_of_two_widths_among_sequences_become_alike():
    """TorchRec would take the first one's width for all of them, and crash."""
    both = Plan(task(SEQUENCE, OTHER), [*columns(SEQUENCE, 8, 8), *columns(OTHER, 4, 4, 4, 4)])
    (of_module,) = planned(both, "cpu").plan.values()
    assert {shard.shard_sizes[1] for table in of_module.values() for shard in table.sharding_spec.shards} == {4}


def test_tables_in_another_exchange_are_not_made_torchrecs():
    shared = replace(task(BAG), exchange=Exchange(collectives="shared"))
    with pytest.raises(InvalidPlan, match="collectives"):
        planned(Plan(shared, [Shard.whole(BAG, 0)]), "cpu")


def test_the_runtime_trains_features_that_share_a_table_and_weighted_lookups():
    tables = [Table("shared", 100, 8, (2.0, 3.0)), Table("s", 50, 4, pooled=False), Table("w", 60, 8, weighted=True)]
    alone = Task(tables, Topology(memory="1 MB"), 16)
    member = SimpleNamespace(rank=0, device=torch.device("cpu"))
    model = RuntimeModel.of(Plan(alone, [Shard.whole(table, 0) for table in tables]), member)
    before = [weights.detach().clone() for weights in model.module.storage.weights]
    batch = Batches(alone, 0).draw(0, 0)
    outputs = model.outputs(batch)
    assert [tuple(output.shape) for output in outputs] == [(16, 8), (16, 8), (batch["s"].values().numel(), 4), (16, 8)]
    model.update(outputs, [torch.ones_like(output) for output in outputs])
    assert all(not torch.equal(*pair) for pair in zip(before, model.module.storage.weights, strict=True))


def test_tiers_are_not_trained_on_ids_without_ranks():
    tiers = [Shard(SEQUENCE.name, (0, 10), (0, 16), (0, 1, 2, 3), "hotness"), *(
        Shard(SEQUENCE.name, rows, (0, 16), (rank,), "hotness") for rank, rows in enumerate([(10, 40), (40, 70), (70, 85), (85, 100)])
    )]  # fmt: skip
    with pytest.raises(InvalidPlan, match="table 's' lies in order of hotness"):
        run_here([Plan(task(SEQUENCE), tiers)])


def whole():
    return Plan(task(BAG), [Shard.whole(BAG, 0)])


def test_too_little_memory_is_refused_before_any_process_starts(monkeypatch):
    monkeypatch.setattr("shardwright.integrations.torchrec.steps.run.available_memory", lambda: 10**9)
    with pytest.raises(
        MeasurementFailed, match=r"4 ranks with the plan's tables need 2\.\d GB of memory, this machine has 1\.0 GB"
    ):
        run_here([whole()])


@pytest.mark.parametrize("fields", [{"rounds": 0}, {"steps": 0}, {"warm_up": 0}, {"profiled": 0}])
def test_bad_rounds(fields):
    with pytest.raises(InvalidInput, match="must be at least 1"):
        Rounds(**fields)


@pytest.mark.parametrize("timeout_s", [0.0, float("inf"), float("nan")])
def test_bad_timeouts(timeout_s):
    with pytest.raises(InvalidInput, match="must be a finite number"):
        run_here([whole()], timeout_s=timeout_s)


def test_a_group_of_another_size_is_refused():
    with (
        pytest.raises(InvalidInput, match="for 4 devices, and torchrun started 2 ranks"),
        ranks([whole()], 4, PlaceInGroup(0, 2, 0, 2)),
    ):
        pass


def test_ranks_get_no_huge_pages_that_the_user_does_not_ask_for(monkeypatch):
    monkeypatch.delenv("GLIBC_TUNABLES", raising=False)
    assert "hugetlb" not in rank_program()[1]
    monkeypatch.setenv("GLIBC_TUNABLES", "glibc.malloc.hugetlb=1")
    assert "'glibc.malloc.hugetlb=1'" in rank_program()[1]


def report(*times, **phases):
    filled = {phase: [0.0] * len(times) for phase in PHASES} | {name: list(ms) for name, ms in phases.items()}
    return RankReport(step_ms=list(times), phases=filled, weights_bytes=5, optimizer_bytes=6)


def test_a_step_takes_as_long_as_its_slowest_rank():
    first = [report(1.0, 9.0, 2.0), report(3.0, 2.0, 4.0)]
    steps = Steps(whole(), [first, [report(5.0), report(1.0)], [report(8.0), report(1.0)]])
    assert steps.rounds("step") == [4.0, 5.0, 8.0]
    assert steps.step_ms == 5.0
    assert steps.spread == pytest.approx(0.8)
    assert steps.predicted("step") is None


def test_a_training_without_dense_layers_is_not_compared_with_traffic_that_they_hide():
    plan = scored(whole(), cost_model_for("cpu"))
    exchange = Exchange(pipeline="sparse_dist", dense_ms=DenseTime(1e3, 1e3, 1e3))
    beside = scored(replace(plan, task=replace(plan.task, exchange=exchange)), cost_model_for("cpu"))
    assert beside.cost.step_ms < plan.cost.step_ms
    assert Steps(beside, []).predicted("step") == plan.cost.step_ms


def test_phases_are_sums_of_their_parts_beside_the_slowest_predicted_device():
    ranks = [
        report(1.0, 1.0, input_dist_ms=(1.0, 2.0), output_dist_ms=(4.0, 2.0), lookup_ms=(1.0, 1.0)),
        report(1.0, 1.0, input_dist_ms=(3.0, 1.0), output_dist_ms=(1.0, 1.0), lookup_ms=(2.0, 1.0)),
    ]
    costs = tuple(
        DeviceCost(rank=rank, forward_ms=1.0 + rank, forward_communication_ms=5.0 - rank, backward_communication_ms=1.0, backward_ms=1.0,
                   memory_bytes=1)
        for rank in range(4)
    )  # fmt: skip
    steps = Steps(replace(whole(), cost=PlanCost(costs)), [ranks])
    assert steps.measured("forward communication") == 4.5
    assert steps.measured("forward kernel") == 1.5
    assert steps.predicted("forward kernel") == 4.0
    assert steps.predicted("forward communication") == 5.0
    assert steps.predicted("step") == steps.plan.cost.step_ms


def test_phases_add_up_over_modules_and_the_exchange_is_taken_out_of_backward():
    def event(name, ms, start=0.0):
        return SimpleNamespace(
            name=name, cpu_time_total=1e3 * ms, time_range=SimpleNamespace(start=start, end=start + 1e3 * ms)
        )

    phase_ms = _times(
        [
            event("shardwright input_dist_ms", 1.0), event("shardwright lookup_ms", 2.0), event("shardwright output_dist_ms", 0.5),
            event("shardwright input_dist_ms", 0.25), event("shardwright backward_ms", 10.0, start=5e3),
            event("autograd::engine::evaluate_function: All2All_Pooled_WaitBackward", 3.1),
            event("All2All_Pooled_WaitBackward", 3.0), event("All2All_Seq_ReqBackward", 1.0), event("ReduceScatterBase_WaitBackward", 0.5),
            event("gloo:all_reduce", 0.75, start=7e3), event("gloo:all_reduce", 6.0, start=4e3),
            event("All2All_Pooled_Wait", 7.0), event("aten::mm", 9.0),
        ]
    )  # fmt: skip
    assert phase_ms == {
        "input_dist_ms": 1.25, "lookup_ms": 2.0, "output_dist_ms": 0.5, "backward_ms": 4.75, "gradient_dist_ms": 5.25,
    }  # fmt: skip


def probed(device, hosts, near, cpu_ms=9.0):
    """Times of modules, if steps last 20 ms on links that hardly take any time."""
    fast = (LinkSpeed(0.001, 1e12), LinkSpeed(0.001, 1e12))
    measured = MeasuredLinks(Cluster(device, hosts, near, "gloo", "2.13"), Links(all_to_all=fast), {}, "2026-11-29")
    reply = {"step_ms": 20.0, "cpu_ms": cpu_ms}
    return ModuleProbe().with_modules(lambda request, doing: reply, measured).links.modules


@pytest.mark.parametrize(("hosts", "near"), [(1, 1), (2, 1), (1, 3), (2, 2), (1, 8), (3, 3)])
def test_every_device_has_tables_of_several_dims_for_the_runtime(hosts, near, monkeypatch):
    plans = []
    monkeypatch.setattr(modules, "_kernels_ms", lambda given: plans.extend(given) or [0.0] * len(given))
    probed("cpu", hosts, near)
    pooled, _, shared = ([{table.dim for table in held} for held in _held(plan)] for plan in plans)
    assert all(len(dims) == 1 for dims in pooled)
    assert all(dims == shared[0] and len(dims) == 3 for dims in shared)


def _held(plan):
    """The tables of each device."""
    return [[plan.task.table_by_name[shard.table] for shard in shards] for shards in plan.by_device]


@pytest.mark.parametrize("device", ["cpu", "h100"])
@pytest.mark.parametrize(("cpu_ms", "most"), [(9.0, 6.0), (30.0, pytest.approx(17.0, abs=1.0)), (2.5, 0.0)])
def test_a_module_takes_the_cpu_time_without_its_kernels_or_at_most_the_rest_of_the_step(
    cpu_ms, most, device, monkeypatch
):
    """Steps last 20 ms beyond collectives that hardly take any time; the kernels take 3 ms of it."""
    monkeypatch.setattr(modules, "_kernels_ms", lambda plans: [3.0] * len(plans))
    times = probed(device, 1, 2, cpu_ms)
    assert times.shared_ms == most
    torchrec = max(cpu_ms - 3.0, 0.0) if device == "cpu" else most
    assert (times.pooled_ms, times.sequence_ms) == (torchrec, torchrec)
