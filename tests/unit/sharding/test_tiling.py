import pytest

from shardwright.errors import InvalidPlan
from shardwright.sharding import Shard
from shardwright.sharding.tiling import check_tiling
from shardwright.task import Table

TABLE = Table("t", 4, 6)


def blocks(*ranges: tuple[int, int, int, int]) -> list[Shard]:
    return [Shard("t", (top, bottom), (left, right), (0,)) for top, bottom, left, right in ranges]


@pytest.mark.parametrize(
    "ranges",
    [
        [(0, 4, 0, 6)],
        [(0, 1, 0, 6), (1, 4, 0, 6)],
        [(0, 4, 0, 1), (0, 4, 1, 6)],
        [(row, row + 1, column, column + 1) for row in range(4) for column in range(6)],
        [(0, 1, 0, 5), (0, 3, 5, 6), (3, 4, 1, 6), (1, 4, 0, 1), (1, 3, 1, 5)],  # a pinwheel
    ],
)
def test_exact_tilings(ranges: list[tuple[int, int, int, int]]) -> None:
    check_tiling(TABLE, blocks(*ranges))
    check_tiling(TABLE, blocks(*reversed(ranges)))


@pytest.mark.parametrize(
    ("ranges", "message"),
    [
        ([], "table 't' is missing from the plan; every table must be tiled exactly"),
        ([(0, 5, 0, 6)], "block rows [0, 5) × columns [0, 6) reaches beyond the table's 4 rows × 6 columns"),
        ([(0, 4, 0, 7)], "reaches beyond"),
        ([(0, 4, 0, 5)], "4 of its 24 elements lie in no shard; blocks must tile the table"),
        ([(0, 2, 0, 6), (3, 4, 0, 6)], "6 of its 24 elements lie in no shard"),
        ([(0, 4, 0, 6), (0, 4, 0, 6)], "overlaps"),
        ([(0, 4, 0, 4), (0, 4, 3, 6)], "block rows [0, 4) × columns [3, 6) overlaps table 't': block rows [0, 4)"),
        ([(0, 3, 0, 6), (2, 4, 0, 6)], "overlaps"),
        ([(0, 4, 0, 3), (0, 4, 3, 6), (1, 2, 2, 4)], "overlaps"),
        ([(0, 4, 0, 6), (1, 2, 2, 3)], "overlaps"),  # a block inside of another
        ([(1, 2, 2, 3), (0, 4, 0, 6)], "overlaps"),
        ([(0, 2, 0, 3), (0, 2, 2, 5), (2, 4, 0, 6)], "overlaps"),  # as many elements as the table has, not a tiling
    ],
)
def test_broken_tilings(ranges: list[tuple[int, int, int, int]], message: str) -> None:
    with pytest.raises(InvalidPlan) as error:
        check_tiling(TABLE, blocks(*ranges))
    assert message in str(error.value)


def test_mixed_row_orders() -> None:
    shards = [Shard("t", (0, 2), (0, 6), (0,), "id"), Shard("t", (2, 4), (0, 6), (0,), "hotness")]
    with pytest.raises(InvalidPlan, match="its shards mix row orders; all must count rows by id, or all by hotness"):
        check_tiling(TABLE, shards)


def test_a_table_of_billions_of_rows() -> None:
    table = Table("t", 4 * 10**9, 128)
    cuts = range(0, 4 * 10**9, 10**9)
    check_tiling(table, [Shard("t", (cut, cut + 10**9), (0, 128), (0,)) for cut in cuts])
