"""Hypothesis strategies for tables, topologies, constraints, tasks, and plans that tile tables exactly."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from hypothesis import strategies as st

from shardwright.errors import InvalidInput
from shardwright.sharding.shard import Shard
from shardwright.task import (
    DTYPE_BYTES,
    OPTIMIZERS,
    SHARDING_TYPES,
    AccessProfile,
    Constraints,
    DenseTime,
    Exchange,
    Table,
    TableConstraint,
    Task,
    Topology,
)
from shardwright.task.links import Links, LinkSpeed

Range = tuple[int, int]
Block = tuple[Range, Range]

names = st.text(min_size=1, max_size=20).filter(str.isprintable)
"""Table names: any printable text, including text that looks like a number, a comment or a keyword."""


@st.composite
def access_profiles(draw: st.DrawFn, rows: int | None = None) -> AccessProfile:
    """Uniform, Zipf, or from random counts of accesses; of `rows` rows if given."""
    total = rows if rows is not None else draw(st.integers(1, 10**6))
    kind = draw(st.sampled_from(["uniform", "zipf", "counts"]))
    if kind == "uniform":
        return AccessProfile.uniform(total)
    if kind == "zipf":
        return AccessProfile.zipf(total, draw(st.floats(0, 3)))
    counts = draw(st.lists(st.integers(0, 10**6), min_size=1, max_size=min(total, 30)).filter(any))
    return AccessProfile.from_counts(counts, rows=total)


@st.composite
def tables(
    draw: st.DrawFn,
    name: str | None = None,
    max_rows: int = 10**6,
    max_dim: int = 128,
    max_pooling: float = 50.0,
) -> Table:
    """A table of any kind, of one feature or several."""
    rows = draw(st.integers(1, max_rows))
    parts = draw(st.lists(st.integers(0, 9), min_size=1, max_size=5).filter(any) | st.just([]))
    return Table(
        name if name is not None else draw(names),
        rows,
        draw(st.integers(1, max_dim)),
        draw(st.floats(0.01, max_pooling) | st.lists(st.floats(0.01, max_pooling), min_size=1, max_size=4)),
        draw(st.booleans()),
        draw(access_profiles(rows)),
        draw(st.sampled_from(sorted(DTYPE_BYTES))),
        id_shares=[part / sum(parts) for part in parts],
    )


@st.composite
def topologies(draw: st.DrawFn, max_hosts: int = 3, max_devices_per_host: int = 4) -> Topology:
    """A topology with plenty of memory, the same on every device or not."""
    hosts, per_host = draw(st.integers(1, max_hosts)), draw(st.integers(1, max_devices_per_host))
    sizes = st.integers(10**9, 10**13)
    bandwidths = st.floats(1e6, 1e12)
    latencies = st.floats(0, 10)
    topology = Topology(
        hosts, per_host, draw(st.sampled_from(["cpu", "h100", "h200"])),
        draw(sizes | st.lists(sizes, min_size=hosts * per_host, max_size=hosts * per_host)), draw(bandwidths),
        draw(bandwidths), draw(latencies), draw(latencies),
    )  # fmt: skip
    return draw(st.just(topology) | st.floats(1.0, 8.0).map(lambda factor: faster_alone(topology, factor)))


def faster_alone(topology: Topology, factor: float) -> Topology:
    """The topology with links that carry more for a device that sends alone: `factor` times as much inside hosts, its root between."""
    classes = zip(topology.link_latency_ms, topology.link_bandwidth, (factor, factor**0.5), strict=True)
    speeds = tuple(LinkSpeed(latency, speed, None, more * speed) for latency, speed, more in classes)
    return replace(topology, links=Links(all_to_all=speeds))


@st.composite
def dense_exchanges(draw: st.DrawFn) -> Exchange:
    """Dense layers that hide none, a part or all of the traffic, with each pipeline."""
    hidden = [draw(st.sampled_from([0.0, 0.0, 1e-3, 0.1, 5.0, 1e3])) * draw(st.floats(0.5, 1.0)) for _ in range(3)]
    return Exchange(pipeline=draw(st.sampled_from(["none", "sparse_dist", "prefetch"])), dense_ms=DenseTime(*hidden))


@st.composite
def table_constraints(draw: st.DrawFn, devices: int) -> TableConstraint:
    """Limits on one table that do not contradict each other."""
    kinds = draw(st.none() | st.sets(st.sampled_from(SHARDING_TYPES), min_size=1).map(sorted).map(tuple))
    ranks = draw(st.none() | st.sets(st.integers(0, devices - 1), min_size=1).map(sorted).map(tuple))
    most, width = draw(st.none() | st.integers(2, 10)), {}
    if draw(st.integers(0, 3)) == 3:  # rarely: few tasks with such limits have a plan
        width = {
            "min_columns": draw(st.integers(1, 40)),
            "column_multiple": draw(st.sampled_from([None, 1, 4, 12, 32])),
            "equal_columns": draw(st.booleans()),
        }
        if width["equal_columns"]:
            width["max_columns"] = draw(st.none() | st.integers(4, 60))
    return TableConstraint(kinds, ranks, most, **width)


@st.composite
def constraints(draw: st.DrawFn, table_names: Sequence[str], devices: int) -> Constraints:
    """Constraints that do not contradict each other in a way that a task refuses."""
    limits = draw(st.dictionaries(st.sampled_from(table_names), table_constraints(devices), max_size=3))
    groups: st.SearchStrategy[list[tuple[str, ...]]] = st.just([])
    if len(table_names) > 1:
        group = st.lists(st.sampled_from(table_names), min_size=2, max_size=3, unique=True).map(tuple)
        groups = st.lists(group, max_size=2)
    result = Constraints(limits, tuple(draw(groups)), tuple(draw(groups)))
    try:
        result.check(table_names, devices)
    except InvalidInput:
        return Constraints(limits)
    return result


@st.composite
def tasks(
    draw: st.DrawFn,
    max_tables: int = 6,
    max_rows: int = 10**5,
    max_dim: int = 64,
    constrained: bool = False,
    topology: st.SearchStrategy[Topology] | None = None,
) -> Task:
    """A task with room for any plan of its tables; with constraints only if `constrained`."""
    chosen = draw(st.lists(names, min_size=1, max_size=max_tables, unique=True))
    cluster = draw(topology if topology is not None else topologies())
    return Task(
        tuple(draw(tables(name, max_rows, max_dim)) for name in chosen),
        cluster,
        draw(st.integers(1, 10**4)),
        draw(st.sampled_from(OPTIMIZERS)),
        draw(constraints(chosen, cluster.devices)) if constrained else Constraints(),
    )


@st.composite
def tilings(draw: st.DrawFn, table: Table, topology: Topology, max_cuts: int = 8) -> tuple[Shard, ...]:
    """Shards that tile the table exactly, in random order: random cuts, and pinwheels, which no sequence of cuts makes."""
    blocks: list[Block] = [((0, table.rows), (0, table.dim))]
    for _ in range(draw(st.integers(0, max_cuts))):
        block = blocks.pop(draw(st.integers(0, len(blocks) - 1)))
        blocks += draw(_parts(block))
    row_order = draw(st.sampled_from(["id", "hotness"]))
    ranks = st.sets(st.integers(0, topology.devices - 1), min_size=1, max_size=4).map(sorted).map(tuple)
    shards = [Shard(table.name, rows, columns, draw(ranks), row_order) for rows, columns in blocks]  # type: ignore[arg-type]
    return tuple(draw(st.permutations(shards)))


@st.composite
def plans(draw: st.DrawFn, task: Task) -> tuple[Shard, ...]:
    """Shards that tile every table of the task exactly."""
    return tuple(shard for table in task.tables for shard in draw(tilings(table, task.topology)))


@st.composite
def _parts(draw: st.DrawFn, block: Block) -> list[Block]:
    (top, bottom), (left, right) = block
    ways = [way for way, size in (("rows", bottom - top), ("columns", right - left)) if size > 1]
    if min(bottom - top, right - left) > 2:
        ways.append("pinwheel")
    if not ways:
        return [block]
    way = draw(st.sampled_from(ways))
    if way == "rows":
        cut = draw(st.integers(top + 1, bottom - 1))
        return [((top, cut), (left, right)), ((cut, bottom), (left, right))]
    if way == "columns":
        cut = draw(st.integers(left + 1, right - 1))
        return [((top, bottom), (left, cut)), ((top, bottom), (cut, right))]
    a, b = draw(_two_cuts(top, bottom))
    c, d = draw(_two_cuts(left, right))
    return [
        ((top, a), (left, d)),
        ((top, b), (d, right)),
        ((b, bottom), (c, right)),
        ((a, bottom), (left, c)),
        ((a, b), (c, d)),
    ]


@st.composite
def _two_cuts(draw: st.DrawFn, start: int, stop: int) -> Range:
    first = draw(st.integers(start + 1, stop - 2))
    return first, draw(st.integers(first + 1, stop - 1))
