from dataclasses import replace

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from shardwright.errors import InvalidInput, InvalidPlan
from shardwright.sharding import Shard, shard_work, sharding_type_of
from shardwright.sharding.checking import check_tiling
from shardwright.task import SHARDING_TYPES, Table, Task, Topology
from tests.strategies import tables, tasks, tilings, topologies


@st.composite
def tiled_tables(draw: st.DrawFn) -> tuple[Table, Topology, tuple[Shard, ...]]:
    table = draw(tables(max_rows=60, max_dim=24))
    topology = draw(topologies())
    return table, topology, draw(tilings(table, topology))


@given(tiled_tables())
def test_exact_tilings_pass(tiled: tuple[Table, Topology, tuple[Shard, ...]]) -> None:
    table, topology, shards = tiled
    check_tiling(table, shards)
    assert sum(shard.area for shard in shards) == table.rows * table.dim
    assert sharding_type_of(shards, table, topology) in SHARDING_TYPES


@given(tiled_tables(), st.data())
def test_a_dropped_block_is_found(tiled: tuple[Table, Topology, tuple[Shard, ...]], data: st.DataObject) -> None:
    table, _, shards = tiled
    index = data.draw(st.integers(0, len(shards) - 1))
    with pytest.raises(InvalidPlan, match=r"is missing|lie in no shard"):
        check_tiling(table, shards[:index] + shards[index + 1 :])


@given(tiled_tables(), st.data())
def test_a_block_held_twice_is_found(tiled: tuple[Table, Topology, tuple[Shard, ...]], data: st.DataObject) -> None:
    table, _, shards = tiled
    twice = data.draw(st.sampled_from(shards))
    position = data.draw(st.integers(0, len(shards)))
    with pytest.raises(InvalidPlan, match="overlaps"):
        check_tiling(table, (*shards[:position], replace(twice, devices=(0,)), *shards[position:]))


@given(tiled_tables(), st.data())
def test_a_block_moved_grown_or_shrunk_is_found(
    tiled: tuple[Table, Topology, tuple[Shard, ...]], data: st.DataObject
) -> None:
    table, _, shards = tiled
    index = data.draw(st.integers(0, len(shards) - 1))
    field = data.draw(st.sampled_from(["rows", "columns"]))
    start, stop = getattr(shards[index], field)
    start += data.draw(st.integers(-3, 3))
    stop += data.draw(st.integers(-3, 3))
    assume((start, stop) != getattr(shards[index], field))
    try:
        changed = replace(shards[index], **{field: (start, stop)})  # type: ignore[arg-type]
    except InvalidInput:
        return
    with pytest.raises(InvalidPlan, match=r"reaches beyond|overlaps|lie in no shard"):
        check_tiling(table, (*shards[:index], changed, *shards[index + 1 :]))


@given(st.data(), tables(max_rows=12, max_dim=8))
def test_the_check_agrees_with_counting_every_element(data: st.DataObject, table: Table) -> None:
    def ranges(size: int) -> st.SearchStrategy[tuple[int, int]]:
        return st.tuples(st.integers(0, size - 1), st.integers(1, size)).filter(lambda pair: pair[0] < pair[1])

    rectangles = data.draw(st.lists(st.tuples(ranges(table.rows), ranges(table.dim)), min_size=1, max_size=4))
    covered = [0] * (table.rows * table.dim)
    for (top, bottom), (left, right) in rectangles:
        for row in range(top, bottom):
            for column in range(left, right):
                covered[row * table.dim + column] += 1
    shards = [Shard(table.name, rows, columns, (0,)) for rows, columns in rectangles]
    if set(covered) == {1}:
        check_tiling(table, shards)
    else:
        with pytest.raises(InvalidPlan, match="overlaps" if max(covered) > 1 else "lie in no shard"):
            check_tiling(table, shards)


@given(tasks(max_tables=1), st.data())
def test_every_lookup_is_made_once_per_column(task: Task, data: st.DataObject) -> None:
    (table,) = task.tables
    shards = data.draw(tilings(table, task.topology))
    made = sum(shard_work(task, shard).lookups * len(shard.devices) * shard.dim for shard in shards)
    once = task.batch_size * table.pooling * table.dim
    # Shares of lookups by range of ids: a block counts as the busiest of its size.
    assert made >= once * (1 - 1e-9) if table.id_shares else made == pytest.approx(once, rel=1e-9)
