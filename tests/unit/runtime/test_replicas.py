"""The ways in which replicas exchange the gradient of a whole block."""

import pytest

pytest.importorskip("torch", reason="the runtime needs torch")

from shardwright.runtime.placement import Placement
from shardwright.runtime.replicas import _at_once
from shardwright.sharding.plan import Plan
from shardwright.sharding.shard import Shard
from shardwright.task import Table, Task, Topology
from shardwright.task.topology import Exchange


@pytest.mark.parametrize(("latency_ms", "at_once"), [(0.0, False), (0.1, False), (20.0, True)])
def test_gradients_go_to_all_holders_at_once_if_waits_cost_more_than_bytes(latency_ms, at_once):
    topology = Topology(4, 1, memory="1 GB", inter_bandwidth="100 MB/s", inter_latency_ms=latency_ms)
    table = Table("t", 10_000, 32, 1.0)  # 1.28 MB, one further copy of which takes 12.8 ms
    task = Task([table], topology, 16, "sgd", exchange=Exchange("none", "whole"))
    plan = Plan(task, [Shard("t", (0, 10_000), (0, 32), (0, 1, 2, 3))])
    assert _at_once(Placement.of(plan, ["t"])) == at_once
    small = Plan(task, [Shard("t", (0, 10_000), (0, 32), (0,))])
    assert _at_once(Placement.of(small, ["t"]))  # no replicas: nothing to send
