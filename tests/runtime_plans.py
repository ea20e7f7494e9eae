"""Hypothesis strategies for plans that the runtime can run."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import strategies as st

from shardwright.sharding.plan import Plan
from shardwright.sharding.shard import Shard, dealt_ranges
from shardwright.task import Table, Task, Topology
from shardwright.task.topology import Exchange


@st.composite
def runnable_plans(draw: st.DrawFn) -> Plan:
    """Sequence tables of two widths and types in blocks and tiers: on one device each, on rails, on a host, on all devices."""
    hosts, near = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    tables = [
        Table(
            f"t{index}",
            draw(st.integers(1, 60)),
            draw(st.sampled_from([4, 8])),
            2.0,
            False,
            dtype=draw(st.sampled_from(["fp32", "fp16"])),
        )
        for index in range(draw(st.integers(1, 4)))
    ]
    shards = [shard for table in tables for shard in draw(_shards(table, hosts, near))]
    exchange = Exchange(
        draw(st.sampled_from(["none", "device", "host"])), draw(st.sampled_from(["whole", "touched", "cheaper"]))
    )
    return Plan(Task(tables, Topology(hosts, near, memory="1 GB"), 32, exchange=exchange), shards)


@st.composite
def _shards(draw: st.DrawFn, table: Table, hosts: int, near: int) -> list[Shard]:
    order = draw(st.sampled_from(["id", "hotness"]))
    cuts = sorted({0, table.rows, *draw(st.lists(st.integers(0, table.rows), max_size=3))})
    shards = []
    for start, stop in pairwise(cuts):
        holders = draw(_holders(hosts, near))[: stop - start]
        dealt = order == "hotness" and draw(st.booleans())
        for rows, devices in zip(dealt_ranges((start, stop), len(holders)), holders, strict=True):
            shards.append(Shard(table.name, rows, (0, table.dim), devices, order, (start, stop) if dealt else None))
    return shards


@st.composite
def _holders(draw: st.DrawFn, hosts: int, near: int) -> list[tuple[int, ...]]:
    everyone = tuple(range(hosts * near))
    rails = [tuple(range(local, hosts * near, near)) for local in range(near)]
    host = draw(st.integers(0, hosts - 1))
    singles = [(rank,) for rank in draw(st.permutations(everyone))]
    some = singles[: draw(st.integers(1, len(singles)))]
    return draw(st.sampled_from([some, rails, [everyone], [everyone[host * near :][:near]]]))


@st.composite
def cut_plans(draw: st.DrawFn, devices: int = 4) -> Plan:
    """A pooled and a sequence table, each cut again and again by rows or columns, on any devices of two hosts, or of one process."""
    tables = [
        Table(
            name,
            draw(st.integers(1, 20)),
            draw(st.integers(1, 9)),
            [1.0, 2.0] if pooled else 2.0,
            pooled,
            weighted=draw(st.booleans()),
        )
        for name, pooled in (("bags", True), ("rows", False))
    ]
    ranks = st.integers(0, devices - 1)
    shards = []
    for table in tables:
        blocks = [((0, table.rows), (0, table.dim))]
        for _ in range(draw(st.integers(0, 4))):
            rows, columns = blocks.pop(draw(st.integers(0, len(blocks) - 1)))
            by_rows = draw(st.booleans())
            start, stop = rows if by_rows else columns
            at = draw(st.integers(start, stop))
            for part in ((start, at), (at, stop)):
                if part[0] < part[1]:
                    blocks.append((part, columns) if by_rows else (rows, part))
        shards += [Shard(table.name, rows, columns, (draw(ranks),)) for rows, columns in blocks]
    topology = Topology(2, devices // 2, memory="1 GB") if devices > 1 else Topology(1, 1, memory="1 GB")
    plan = Plan(Task(tables, topology, 32, draw(st.sampled_from(["sgd", "rowwise_adagrad"]))), shards)
    plan.check()
    return plan
