from dataclasses import replace

import pytest

from shardwright.search.infeasible import prove_infeasible
from shardwright.search.infeasible.proof import fewest_bins, too_many
from shardwright.sharding import Shard, shard_bytes
from shardwright.task import Constraints, Table, TableConstraint, Task, Topology
from shardwright.testing.tasks import conformance_tasks, impossible_task

BATCH = 128


def task_of(count=1, memory="1 GB", *, hosts=1, devices=4, constraints=None, rows=10_000, dim=16) -> Task:
    tables = [Table(f"t{i}", rows, dim, 2.0) for i in range(count)]
    topology = Topology(hosts=hosts, devices_per_host=devices, memory=memory)
    return Task(tables, topology, BATCH, constraints=constraints or Constraints())


def whole_bytes(task: Task, table: int = 0) -> int:
    return shard_bytes(task, Shard.whole(task.tables[table], 0))


def only(*kinds: str, devices=None, max_shards=None) -> TableConstraint:
    return TableConstraint(kinds or None, devices, max_shards)


@pytest.mark.parametrize("what", conformance_tasks())
def test_the_feasible_tasks_of_the_suite_are_not_refused(what):
    assert prove_infeasible(conformance_tasks()[what]) is None


def test_a_table_that_must_stay_whole_and_fits_no_device():
    task = task_of(constraints=Constraints({"t0": only("table_wise")}))
    need = whole_bytes(task)
    fits, lacks = (replace(task, topology=replace(task.topology, memory=size)) for size in (need, need - 1))
    assert prove_infeasible(fits) is None
    assert (
        prove_infeasible(lacks)
        == "table 't0' needs 699464 bytes on one device in the smallest blocks that table_wise allows, the largest "
        "device it may use has 699463 bytes: allow row_wise or column_wise for it, or use devices with more memory or a smaller "
        "batch"
    )


def test_remedies_are_joined_by_or_and_never_begin_with_it():
    """A table that may be cut in every way, and whose smallest block fits no device."""
    task = task_of(
        memory="1 KB", constraints=Constraints({"t0": only("table_wise", "row_wise", "column_wise")}), devices=2
    )
    assert prove_infeasible(task).endswith(": use devices with more memory or a smaller batch")


def test_the_devices_a_table_is_pinned_to_count_not_the_largest():
    task = task_of(memory=["1 MB", "1 GB", "1 GB", "1 GB"], rows=100_000)
    pinned = replace(task, constraints=Constraints({"t0": only(devices=(0,))}))
    assert prove_infeasible(task) is None
    assert "t0 may only use rank 0 and need 6.8 MB there, which have 1.0 MB" in prove_infeasible(pinned)


@pytest.mark.parametrize("kind", ["column_wise", "row_wise", "grid", "tiered"])
def test_max_shards_too_small_for_the_only_allowed_way(kind):
    task = task_of(memory="200 KB", constraints=Constraints({"t0": only(kind, max_shards=3)}), devices=8)
    reason = prove_infeasible(task)
    assert "table 't0' needs 2" in reason
    assert "raise its max_shards" in reason
    assert prove_infeasible(replace(task, constraints=Constraints({"t0": only(kind, max_shards=8)}))) is None


@pytest.mark.parametrize(
    ("limits", "hosts", "says"),
    [
        (
            only("data_parallel", devices=(1,)),
            1,
            "data_parallel needs at least 2 devices: allow row_wise or column_wise",
        ),
        (only("table_row_wise"), 1, "table_row_wise needs at least 2 hosts"),
        (only("row_wise", devices=(0, 1)), 2, "row_wise needs devices on at least 2 hosts"),
        (only("grid", max_shards=2), 1, "grid needs at least 3 shards"),
    ],
)
def test_sharding_types_that_cannot_be(limits, hosts, says):
    reason = prove_infeasible(task_of(hosts=hosts, constraints=Constraints({"t0": limits})))
    assert says in reason


def test_a_single_column_cannot_be_column_wise():
    assert "2 columns" in prove_infeasible(task_of(dim=1, constraints=Constraints({"t0": only("column_wise")})))
    assert "2 rows" in prove_infeasible(task_of(rows=1, constraints=Constraints({"t0": only("row_wise")})))


def test_a_replica_needs_room_on_two_devices():
    task = task_of(
        memory=["1 GB", "500 KB", "500 KB", "500 KB"], constraints=Constraints({"t0": only("data_parallel")})
    )
    assert "on each of 2 devices" in prove_infeasible(task)
    assert "second largest device it may use has 500.0 KB" in prove_infeasible(task)


def test_colocated_tables_that_cannot_lie_on_equally_many_devices():
    limits = {"t0": only("table_wise"), "t1": only("data_parallel")}
    reason = prove_infeasible(task_of(2, constraints=Constraints(limits, colocate=(("t0", "t1"),))))
    assert "'t1' lies on at least 2 devices and 't0' on at most 1; give them the same sharding_types" in reason


def test_colocated_tables_larger_than_a_device_together():
    """One of them must stay whole, so the others lie on its device too, whatever they allow."""
    constraints = Constraints({"t0": only("table_wise")}, colocate=(("t0", "t1"), ("t1", "t2")))
    task = task_of(3, constraints=constraints)
    memory = 3 * whole_bytes(task)
    assert prove_infeasible(replace(task, topology=replace(task.topology, memory=memory))) is None
    reason = prove_infeasible(replace(task, topology=replace(task.topology, memory=memory - 100)))
    assert (
        "tables t0, t1, t2 are to be colocated and lie on one device, where they need 2098392 bytes together" in reason
    )
    cuttable = replace(task.constraints, tables={})
    assert (
        prove_infeasible(replace(task, topology=replace(task.topology, memory=memory - 100), constraints=cuttable))
        is None
    )


def test_all_memory_together_counts_buffers():
    task = task_of(4, devices=2)
    need = 4 * whole_bytes(task)
    assert prove_infeasible(replace(task, topology=replace(task.topology, memory=need // 2))) is None
    reason = prove_infeasible(replace(task, topology=replace(task.topology, memory=need // 2 - 1)))
    assert "all 2 devices together have 2797854 bytes: use at least 3 such devices" in reason


def test_tables_confined_to_a_union_of_overlapping_sets():
    """Each of two pairs of ranks has room for the tables pinned to it, but their union has not."""
    limits = {
        "t0": only(devices=(0, 1)),
        "t1": only(devices=(1, 2)),
        "t2": only(devices=(0, 1)),
        "t3": only(devices=(1, 2)),
    }
    task = task_of(4, constraints=Constraints(limits))
    one = whole_bytes(task)
    tight = replace(task, topology=replace(task.topology, memory=[one + one // 4] * 3 + [10 * one]))
    reason = prove_infeasible(tight)
    assert (
        "tables t0, t1, t2, t3 may only use ranks 0, 1, 2 and need 2.8 MB there, which have 2.6 MB together" in reason
    )
    roomy = replace(task, topology=replace(task.topology, memory=[one + one // 3 + 1] * 3 + [one]))
    assert prove_infeasible(roomy) is None


def test_whole_tables_that_fill_devices_badly():
    reason = prove_infeasible(impossible_task())
    assert (
        "must each stay on one device and take at least 104.9 KB, and all 2 devices take at most 2 of that size"
        in reason
    )
    assert "allow column_wise or row_wise" in reason


@pytest.mark.parametrize(
    ("sizes", "memory", "bins"),
    [
        ([7, 7, 7, 4, 4, 4], [10], 5),  # 33 / 10 would be 4; nothing goes with the sevens
        ([6, 6, 6, 6], [10], 4),
        ([5, 5, 5, 5], [10], 2),
        ([8, 8, 3, 3], [10, 10, 5], 4),  # the smaller bin counts as one of 10 with an item of 5
        ([8, 8, 2, 2, 5], [10, 10, 5], 3),
        ([1], [10], 1),
    ],
)
def test_the_l2_bound(sizes, memory, bins):
    assert fewest_bins(sizes, memory) == bins


def test_counting_takes_bins_of_any_size():
    assert too_many([4, 4, 4, 4], [9, 5, 3]) == (4, 3)
    assert too_many([4, 4, 4], [9, 5, 3]) is None
    assert too_many([9, 4, 4], [8, 8, 8]) == (1, 0)


def test_tables_kept_apart_on_too_few_devices():
    """Constraints alone see that three pinned tables share two ranks, but not through a fourth that may lie anywhere."""
    limits = {f"t{i}": only(devices=(0, 1)) for i in range(3)}
    task = task_of(4, constraints=Constraints(limits, apart=(("t0", "t1", "t2", "t3"),)))
    reason = prove_infeasible(task)
    assert "t0, t1, t2, t3; they need 4 devices of their own, but only 3 can be assigned" in reason
    fewer = replace(task.constraints, apart=(("t0", "t1", "t3"),))
    assert prove_infeasible(replace(task, constraints=fewer)) is None


def test_pairs_kept_apart_make_a_clique():
    pairs = (("t0", "t1"), ("t1", "t2"), ("t0", "t2"))
    assert "need 3 devices of their own" in prove_infeasible(
        task_of(3, devices=2, constraints=Constraints(apart=pairs))
    )
    assert prove_infeasible(task_of(3, devices=2, constraints=Constraints(apart=pairs[:2]))) is None


def test_a_replica_kept_apart_leaves_too_few_devices():
    constraints = Constraints({"t0": only("data_parallel")}, apart=(("t0", "t1"),))
    assert "need 3 devices of their own" in prove_infeasible(task_of(2, devices=2, constraints=constraints))
    assert prove_infeasible(task_of(2, devices=3, constraints=constraints)) is None


def test_tables_too_large_to_share_are_matched_to_the_devices_they_may_use():
    """Four whole tables, each more than half a device; two ranks are open to three of them. No sum of bytes shows it."""
    limits = {f"t{i}": only("table_wise", devices=(0, 1)) for i in range(2)} | {"t2": only("table_wise", devices=(1,))}
    task = task_of(4, constraints=Constraints(limits | {"t3": only("table_wise")}))
    memory = int(1.9 * whole_bytes(task))
    reason = prove_infeasible(replace(task, topology=replace(task.topology, memory=memory)))
    assert "must each stay on one device" in reason
    assert "ranks 0, 1 take at most 2" in reason


def test_large_and_separated_tables_together_find_too_few_devices():
    """Two large whole tables and one that is kept apart from both: three devices are needed, and there are two."""
    limits = {"t0": only("table_wise"), "t1": only("table_wise")}
    constraints = Constraints(limits, apart=(("t0", "t2"), ("t1", "t2")))
    tables = [Table("t0", 10_000, 16), Table("t1", 10_000, 16), Table("t2", 10, 4)]
    task = Task(tables, Topology(devices_per_host=2), BATCH, constraints=constraints)
    tight = replace(task, topology=replace(task.topology, memory=int(1.9 * whole_bytes(task))))
    assert "need 3 devices of their own" in prove_infeasible(tight)
    roomy = replace(task, topology=replace(task.topology, memory=int(2.1 * whole_bytes(task))))
    assert prove_infeasible(roomy) is None


def test_sizes_near_the_largest_numbers_do_not_overflow():
    """Memory of nearly 2**63 bytes a device: sums go beyond 64 bits."""
    limits = {"t0": only(devices=(0, 1)), "t1": only(devices=(1, 2)), "t2": only("table_wise", devices=(1,))}
    assert prove_infeasible(task_of(3, memory=2**63 - 1, constraints=Constraints(limits))) is None
