import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardwright.errors import InvalidInput, InvalidPlan
from shardwright.sharding import Shard, sharding_type_of
from shardwright.sharding.checking import check_tiling
from shardwright.sharding.shard import RowLayout, dealt_ranges
from shardwright.sharding.work import shard_work
from shardwright.task import AccessProfile, Table, Task, Topology

TABLE = Table("t", 12, 8)
TWO_HOSTS = Topology(hosts=2, devices_per_host=2)
ONE_HOST = Topology(hosts=1, devices_per_host=4)


def block(rows: tuple[int, int], columns: tuple[int, int], *devices: int, hot: bool = False) -> Shard:
    return Shard("t", rows, columns, devices, "hotness" if hot else "id")


def test_overlap() -> None:
    shard = block((2, 7), (4, 8), 0)
    assert shard.overlap(shard) == shard.area
    assert shard.overlap(block((6, 12), (0, 5), 1)) == 1
    assert shard.overlap(block((7, 12), (4, 8), 1)) == 0
    assert shard.overlap(block((2, 7), (0, 4), 1)) == 0
    assert shard.overlap(block((8, 12), (0, 2), 1)) == 0


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"rows": (3, 3)}, "shard of 't': rows [3, 3) must be a range with 0 <= start < stop"),
        ({"rows": (5, 3)}, "rows [5, 3)"),
        ({"columns": (-1, 3)}, "columns [-1, 3) must be a range"),
        ({"devices": ()}, "devices [] must be at least one rank"),
        ({"devices": (1, 0)}, "devices [1, 0] must be at least one rank, ascending and without repeats"),
        ({"devices": (2, 2)}, "without repeats"),
        ({"devices": (-1, 0)}, "device -1 must not be negative"),
        ({"row_order": "size"}, "row_order 'size' must be 'id' or 'hotness'"),
        ({"tier": (0, 12)}, "tier needs row_order 'hotness'; set it, or leave tier out"),
        ({"rows": (2, 9), "row_order": "hotness", "tier": (0, 8)}, "rows [2, 9) must lie in its tier [0, 8)"),
    ],
)
def test_bad_shards(fields: dict[str, object], message: str) -> None:
    good: dict[str, object] = {"table": "t", "rows": (0, 12), "columns": (0, 8), "devices": (0,)}
    with pytest.raises(InvalidInput) as error:
        Shard(**(good | fields))  # type: ignore[arg-type]
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("kind", "topology", "shards"),
    [
        ("table_wise", TWO_HOSTS, [block((0, 12), (0, 8), 3)]),
        ("data_parallel", TWO_HOSTS, [block((0, 12), (0, 8), 0, 1, 2, 3)]),
        ("column_wise", TWO_HOSTS, [block((0, 12), (0, 4), 0), block((0, 12), (4, 8), 3)]),
        ("column_wise", ONE_HOST, [block((0, 12), (0, 4), 1), block((0, 12), (4, 8), 1)]),
        ("row_wise", TWO_HOSTS, [block((0, 6), (0, 8), 0), block((6, 12), (0, 8), 2)]),
        ("row_wise", ONE_HOST, [block((0, 6), (0, 8), 0), block((6, 12), (0, 8), 1)]),
        ("table_row_wise", TWO_HOSTS, [block((0, 6), (0, 8), 2), block((6, 12), (0, 8), 3)]),
        ("grid", TWO_HOSTS, [block((a, a + 6), (b, b + 4), 2 * (b > 0) + (a > 0)) for a in (0, 6) for b in (0, 4)]),
        ("grid", ONE_HOST, [block((0, 6), (0, 8), 0), block((6, 12), (0, 3), 1), block((6, 12), (3, 8), 2)]),
        ("tiered", TWO_HOSTS, [block((0, 6), (0, 8), 0, hot=True), block((6, 12), (0, 8), 1, hot=True)]),
        ("tiered", TWO_HOSTS, [block((0, 12), (0, 8), 0, hot=True)]),
        (
            "tiered",
            TWO_HOSTS,
            [
                block((0, 2), (0, 8), 0, 1, 2, 3, hot=True),
                block((2, 4), (0, 8), 0, 2, hot=True),
                block((4, 6), (0, 8), 1, 3, hot=True),
                *(block((6 + i, 7 + i if i < 3 else 12), (0, 8), i, hot=True) for i in range(4)),
            ],
        ),
        ("tiered", TWO_HOSTS, [block((0, 6), (0, 8), 0, 2), block((6, 12), (0, 8), 1)]),
    ],
)  # fmt: skip
def test_sharding_types(kind: str, topology: Topology, shards: list[Shard]) -> None:
    assert sharding_type_of(shards, TABLE, topology) == kind
    assert sharding_type_of(shards[::-1], TABLE, topology) == kind


def tiered(hot: int, warm: int, rows: int, dim: int = 8) -> list[Shard]:
    """Tiers on two hosts of two devices."""
    shards = [Shard("t", (0, hot), (0, dim), (0, 1, 2, 3), "hotness")] if hot else []
    for part, block in enumerate(dealt_ranges((hot, warm), min(2, warm - hot)) if warm > hot else []):
        shards.append(Shard("t", block, (0, dim), (part, part + 2), "hotness", (hot, warm)))
    for part, block in enumerate(dealt_ranges((warm, rows), min(4, rows - warm)) if rows > warm else []):
        shards.append(Shard("t", block, (0, dim), (part,), "hotness", (warm, rows)))
    return shards


@given(st.integers(1, 60), st.data())
def test_every_row_lies_in_one_place(rows: int, data: st.DataObject) -> None:
    hot = data.draw(st.integers(0, rows))
    shards = tiered(hot, data.draw(st.integers(hot, rows)), rows)
    check_tiling(Table("t", rows, 8), shards)
    layout = RowLayout.of(shards)
    number, place = layout.locate(np.arange(rows))
    for index, (start, stop) in enumerate(layout.ranges):
        held = layout.rows_of(index)
        assert held.size == stop - start
        assert (number[held] == index).all()
        assert (place[held] == np.arange(held.size)).all()
    assert sum(stop - start for start, stop in layout.ranges) == rows


def test_blocks_without_a_tier_hold_their_rows() -> None:
    layout = RowLayout.of([Shard("t", (0, 4), (0, 8), (0,)), Shard("t", (4, 10), (0, 8), (1,))])
    assert layout.rows_of(1).tolist() == [4, 5, 6, 7, 8, 9]
    assert [array.tolist() for array in layout.locate(np.array([9, 0]))] == [[1, 0], [5, 0]]


def test_the_layout_of_many_blocks() -> None:
    count = 20_000  # comparing every range with every segment takes a minute
    layout = RowLayout.of([Shard("t", (row, row + 1), (0, 8), (0,)) for row in range(count)])
    assert (layout.starts == np.arange(count)).all()
    assert (layout.first == np.arange(count)).all()
    assert (layout.parts == 1).all()


def test_dealt_blocks_share_the_lookups_evenly() -> None:
    table = Table("t", 1000, 8, pooling=10.0, pooled=False, access=AccessProfile.zipf(1000, 1.2))
    task = Task([table], Topology(2, 2, "cpu", "1 GB"), 64)
    cold = [shard_work(task, shard) for shard in tiered(10, 100, 1000)[3:]]
    share = table.access.share_of(100, 1000)
    assert [work.lookups for work in cold] == pytest.approx([640 * share / 4] * 4)
    assert cold[0].access == table.access.block(100, 1000).thinned(225)


@pytest.mark.parametrize(
    ("blocks", "message"),
    [
        ([((0, 6), (0, 8)), ((6, 8), (0, 8)), ((8, 10), None)], "must differ by one row at most"),
        (
            [((0, 4), (0, 8)), ((4, 8), None), ((8, 10), None)],
            r"overlaps the tier \[0, 8\) but is not part of it; set its tier to \[0, 8\)",
        ),
        ([((0, 4), (0, 8)), ((4, 8), (4, 10)), ((8, 10), (4, 10))], "overlap; a row belongs to one tier"),
    ],
)
def test_tiers_that_are_not_dealt_out(blocks: list, message: str) -> None:
    shards = [Shard("t", rows, (0, 8), (0,), "hotness", tier) for rows, tier in blocks]
    with pytest.raises(InvalidPlan, match=message):
        check_tiling(Table("t", 10, 8), shards)
