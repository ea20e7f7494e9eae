import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardwright.errors import InvalidInput, InvalidPlan
from shardwright.sharding import Shard
from shardwright.sharding.layout import RowLayout, dealt_ranges
from shardwright.sharding.tiling import check_tiling
from shardwright.sharding.work import shard_work
from shardwright.task import AccessProfile, Table, Task, Topology


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


def test_dealt_blocks_share_the_lookups_evenly() -> None:
    table = Table("t", 1000, 8, pooling=10.0, pooled=False, access=AccessProfile.zipf(1000, 1.2))
    task = Task([table], Topology(2, 2, "cpu", "1 GB"), 64)
    cold = [shard_work(task, shard) for shard in tiered(10, 100, 1000)[3:]]
    share = table.access.share_of(100, 1000)
    assert [work.lookups for work in cold] == pytest.approx([640 * share / 4] * 4)
    assert cold[0].access == table.access.block(100, 1000).thinned(225)


def test_a_tier_needs_rows_in_order_of_hotness_inside_it() -> None:
    with pytest.raises(InvalidInput, match="only rows in order of hotness are dealt out"):
        Shard("t", (0, 4), (0, 8), (0,), "id", (0, 8))
    with pytest.raises(InvalidInput, match=r"rows \[2, 9\) must lie in its tier \[0, 8\)"):
        Shard("t", (2, 9), (0, 8), (0,), "hotness", (0, 8))


@pytest.mark.parametrize(
    ("blocks", "message"),
    [
        ([((0, 6), (0, 8)), ((6, 8), (0, 8)), ((8, 10), None)], "must differ by one row at most"),
        ([((0, 4), (0, 8)), ((4, 8), None), ((8, 10), None)], "reaches into the tier"),
        ([((0, 4), (0, 8)), ((4, 8), (4, 10)), ((8, 10), (4, 10))], "overlap; a row belongs to one tier"),
    ],
)
def test_tiers_that_are_not_dealt_out(blocks: list, message: str) -> None:
    shards = [Shard("t", rows, (0, 8), (0,), "hotness", tier) for rows, tier in blocks]
    with pytest.raises(InvalidPlan, match=message):
        check_tiling(Table("t", 10, 8), shards)
