"""Planning sharding groups for `DMPCollection`, on one process; `tests/integration/test_torchrec_groups.py` trains on them."""

import pytest

pytest.importorskip("torchrec", reason="needs TorchRec")

from torchrec.distributed.planner.types import PlannerError
from torchrec.distributed.types import ShardingStrategy

from shardwright.integrations.torchrec import SavedPlanLoader, dmp_arguments, save_sharding_plan
from shardwright.integrations.torchrec.sharding_groups import group_topology
from shardwright.task import ShardingGroups

from .made import SHARDERS, Model, bags, planner, ranks_of, refused, tables_of, topology

pytestmark = pytest.mark.torchrec

MB = 1 << 20


def grouped(size="auto", where=None, **fields):
    return planner(where or topology(8, 4, intra_host_bw=1e8, inter_host_bw=1e7), sharding_group_size=size, **fields)


def test_a_plan_is_for_the_ranks_of_a_group():
    one = grouped(4, sync_interval=20)
    plan = one.plan(Model(), SHARDERS)
    assert all(rank < 4 for table in tables_of(plan).values() for rank in ranks_of(table))
    task = one.last_problem.task
    assert (task.groups, task.batch_size) == (ShardingGroups(4, 2, 4, sync_interval=20), 4 * 64)
    assert (task.topology.hosts, task.topology.devices_per_host) == (2, 2)
    assert one.last_groups == task.groups
    assert [size.plan for size in one.last_group_sizes] == [one.last_plan]


def test_auto_takes_the_shortest_step_of_all_sizes():
    one = grouped(sync_interval=1000, use_inter_host_allreduce=True)
    one.plan(Model(), SHARDERS)
    steps = {size.groups.size: size.step_ms for size in one.last_group_sizes}
    assert list(steps) == [1, 2, 4, 8]
    assert one.last_groups.size == min(steps, key=steps.get)
    assert one.last_plan.cost.step_ms == min(steps.values())
    assert one.last_problem.task.topology.devices == one.last_groups.size


def test_a_size_without_room_is_left_out():
    small = topology(4, 4, device="cpu", ddr_cap=30 * MB)
    one = grouped(where=small, sync_interval=10**6)
    one.plan(bags([(100_000, 64)] * 2), SHARDERS)
    why_not = {size.groups.size: size.why_not for size in one.last_group_sizes}
    assert "storage" in why_not[1]
    assert not why_not[4]
    assert one.last_groups.size > 1
    with pytest.raises(PlannerError, match="insufficient storage"):
        grouped(1, small).plan(bags([(100_000, 64)] * 2), SHARDERS)


def test_rows_in_host_memory_are_synchronised_too():
    """A device has room for a part of the table: the rest lies in host memory, and crosses the bus with every synchronisation."""
    where = topology(2, 2, hbm=20 * MB, intra_host_bw=1e8, hbm_to_ddr_mem_bw=1e6)  # bytes per ms
    often, seldom = (grouped(1, where, sync_interval=n) for n in (1, 1000))
    model = bags([(100_000, 64)])
    (table,) = tables_of(often.plan(model, SHARDERS)).values()
    seldom.plan(model, SHARDERS)
    assert table.compute_kernel == "fused_uvm_caching"
    held = 100_000 * (64 * 4 + 4) * (1 - table.cache_params.load_factor)
    bus = held / 1e6  # 2 (n - 1) / n of it among two replicas
    sync_ms = often.last_plan.cost.step_ms - seldom.last_plan.cost.step_ms
    assert sync_ms > 0.999 * bus
    assert sync_ms == pytest.approx(bus * 0.999, rel=0.05)  # and the cached rows over the link
    assert often.last_plan.bound_ms <= often.last_plan.cost.step_ms


def test_arguments_of_dmp_collection():
    one = grouped(4, use_inter_host_allreduce=True, sharding_strategy=ShardingStrategy.FULLY_SHARDED)
    one.plan(Model(), SHARDERS)
    assert dmp_arguments(one.last_groups) == {
        "world_size": 8,
        "sharding_group_size": 4,
        "node_group_size": 4,
        "use_inter_host_allreduce": True,
        "sharding_strategy": ShardingStrategy.FULLY_SHARDED,
    }
    assert dmp_arguments(ShardingGroups(4, 2, 4))["node_group_size"] == 2


def test_the_topology_of_a_group_has_the_least_storage_of_its_replicas():
    whole = topology(4, 2, intra_host_bw=5.0, inter_host_bw=3.0, hbm_mem_bw=7.0)
    for rank, device in enumerate(whole.devices):
        device.storage.hbm = 100 + rank
    of_group = group_topology(whole, ShardingGroups(2, 2, 2))
    assert [device.storage.hbm for device in of_group.devices] == [100, 102]
    assert (of_group.world_size, of_group.local_world_size, of_group.compute_device) == (2, 1, "cuda")
    assert (of_group.intra_host_bw, of_group.inter_host_bw, of_group.hbm_mem_bw) == (5.0, 3.0, 7.0)


def test_fully_sharded_groups_leave_room_for_the_exchange():
    limits = []
    for strategy in (ShardingStrategy.DEFAULT, ShardingStrategy.FULLY_SHARDED):
        one = grouped(4, sharding_strategy=strategy)
        one.plan(Model(), SHARDERS)
        limits.append(one.last_problem.task.topology.memory_bytes[0])
    assert limits[1] == limits[0] * 2 // 3


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"size": 3}, "size is 3, must divide the 8 devices"),
        ({"size": 0}, "size is 0"),
        ({"size": "best"}, "'best', must be a number of ranks, or 'auto'"),
        ({"sync_interval": 0}, "sync_interval is 0"),
        ({"sync_interval": 4, "sharding_strategy": ShardingStrategy.FULLY_SHARDED}, "leave it 1"),
        ({"where": topology(6, 4)}, "world_size 6 is no multiple of the 4 ranks of a host"),
    ],
)
def test_options_that_break_a_rule(fields, message):
    with refused("INPUT_VALIDATION", message):
        grouped(**fields)


def test_callbacks_and_statistics_see_the_best_size_only():
    seen, logged = [], []

    class Recorder:
        def log(self, **given):
            logged.append((given["topology"].world_size, given["sharding_plan"]))

    def callback(options):
        seen.append(len(options))
        return options

    one = grouped(sync_interval=1000, callbacks=[callback], stats=[Recorder()])
    plan = one.plan(Model(), SHARDERS)
    assert seen == [5]
    assert logged == [(one.last_groups.size, plan)]


def test_a_saved_plan_of_a_group_is_taken(tmp_path):
    plan = grouped(4).plan(Model(), SHARDERS)
    save_sharding_plan(plan, tmp_path / "plan.json")
    again = grouped(4, plan_loader=SavedPlanLoader(tmp_path / "plan.json"))
    assert str(again.plan(Model(), SHARDERS)) == str(plan)
    assert again.last_groups.size == 4
    assert again.last_plan is None


def test_a_model_without_tables_has_an_empty_plan():
    from torch import nn

    assert grouped().plan(nn.Linear(2, 2), SHARDERS).plan == {}
