from dataclasses import replace

import pytest

import shardwright as sw
from shardwright.questions.scale import ClusterSize, DenseWork, Scaling
from shardwright.testing.model import SimpleCostModel
from shardwright.testing.tasks import task_of

MODEL = SimpleCostModel()


def clusters(*hosts, device="cpu"):
    return [sw.Topology(count, 2, device) for count in hosts]


def scaled(*hosts, **options):
    return sw.scale(task_of(12, 2), clusters(*hosts), cost_model=MODEL, **options)


@pytest.mark.slow
def test_each_cluster_gets_its_plan_and_its_bound():
    scaling = scaled(1, 2, 4)
    assert [size.topology.devices for size in scaling.sizes] == [2, 4, 8]
    for size in scaling.sizes:
        again = sw.plan(replace(task_of(12, 2), topology=size.topology), cost_model=MODEL, time_limit=1.0)
        assert size.batch_size == task_of(12, 2).batch_size
        assert size.step_ms == pytest.approx(again.cost.step_ms, rel=0.05)
        assert size.bound_ms <= size.step_ms
        assert size.throughput == pytest.approx(size.batch_size / size.step_ms * 1e3)
        assert size.throughput <= size.most_throughput
    assert scaling.efficiency(scaling.sizes[0]) == 1


@pytest.mark.slow
def test_the_batch_may_grow_with_the_devices():
    assert [size.batch_size for size in scaled(1, 4, batch_per_device=64).sizes] == [128, 512]


@pytest.mark.slow
def test_dense_layers_add_to_a_step_or_hide_it():
    alone, after, beside = (scaled(1, dense=dense).sizes[0] for dense in (None, DenseWork(5.0), DenseWork(1e6, True)))
    # Each against its own plan: searches that time cuts short may find different ones.
    assert alone.step_ms == alone.plan.cost.step_ms
    assert after.step_ms == pytest.approx(after.plan.cost.step_ms + 5)
    assert after.bound_ms == pytest.approx(after.plan.bound_ms + 5)
    assert beside.step_ms == beside.bound_ms == 1e6


def test_layers_that_hide_traffic_take_time_by_the_samples_of_a_device():
    exchange = sw.task.Exchange(pipeline="sparse_dist", dense_ms=4.0)
    task = replace(task_of(12, 2), exchange=exchange)
    by_batch = {64: 1.0, 128: 2.0, None: 4.0 / 2}
    for batch, ms in by_batch.items():
        batch_of_two = replace(task, batch_size=512, topology=sw.Topology(1, 2))
        (size,) = sw.scale(batch_of_two, clusters(2), cost_model=MODEL, batch_per_device=batch, strategy="size").sizes
        assert size.plan.task.exchange.hidden.ids == pytest.approx(ms)


def test_a_cluster_that_cannot_hold_the_tables_gives_the_reason():
    task = replace(task_of(12, 2), topology=sw.Topology(1, 2))
    scaling = sw.scale(task, [sw.Topology(1, 2, memory="1 KB"), sw.Topology(1, 2)], cost_model=MODEL)
    assert scaling.sizes[0].plan is None
    assert "all 2 devices together have 2.0 KB" in scaling.sizes[0].why_not
    assert (scaling.sizes[0].throughput, scaling.sizes[0].most_throughput) == (0, 0)
    assert scaling.planned == scaling.sizes[1:]


def test_constraints_that_a_cluster_cannot_keep_say_why():
    limits = sw.Constraints({"table_0": sw.TableConstraint(devices=(3,))})
    task = replace(task_of(3, 4), constraints=limits)
    scaling = sw.scale(task, clusters(1, 2), cost_model=MODEL)
    assert "rank 3" in scaling.sizes[0].why_not
    assert scaling.sizes[1].plan is not None


def size_of(devices, step_ms, bound_ms, price=None):
    """A made-up cluster; its plan has these times."""
    task = replace(task_of(2, 1), topology=sw.Topology(1, devices), batch_size=1000)
    plan = sw.plan(task, cost_model=MODEL, strategy="size")
    made = DenseWork(step_ms, True)  # in place of the plan's own times
    one = ClusterSize(task.topology, 1000, replace(plan, bound_ms=plan.cost.step_ms), "", made, price)
    return replace(one, plan=replace(one.plan, bound_ms=None)) if bound_ms is None else one


def test_from_which_size_on_no_plan_is_faster_or_cheaper():
    sizes = (size_of(1, 8.0, 8.0, 1.0), size_of(2, 4.0, 4.0, 1.0), size_of(4, 4.0, 4.0, 1.0), size_of(8, 5.0, 5.0, 1.0))
    scaling = Scaling(sizes)
    assert scaling.fast_enough is sizes[1]
    assert scaling.cheap_enough is sizes[0]
    assert scaling.sizes[0].cost == pytest.approx(1 / 3600 / (1000 / 8.0 * 1e3) * 1e6)


def test_without_a_bound_of_the_larger_cluster_nothing_is_settled():
    scaling = Scaling((size_of(1, 2.0, 2.0, 1.0), size_of(2, 4.0, None, 1.0)))
    assert scaling.fast_enough is None
    assert scaling.cheap_enough is None


def test_a_cluster_alone_settles_nothing_and_unpriced_ones_do_not_count():
    assert Scaling((size_of(1, 2.0, 2.0),)).fast_enough is None
    scaling = Scaling((size_of(1, 2.0, 2.0, 1.0), size_of(2, 2.0, 2.0, 1.0), size_of(4, 1.0, 1.0)))
    assert scaling.cheap_enough is scaling.sizes[0]
    assert scaling.sizes[2].cost is None
