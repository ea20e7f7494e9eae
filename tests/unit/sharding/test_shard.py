import pytest

from shardwright.errors import InvalidInput
from shardwright.sharding import Shard, sharding_type_of
from shardwright.task import Table, Topology

TABLE = Table("t", 12, 8)
TWO_HOSTS = Topology(hosts=2, devices_per_host=2)
ONE_HOST = Topology(hosts=1, devices_per_host=4)


def block(rows: tuple[int, int], columns: tuple[int, int], *devices: int, hot: bool = False) -> Shard:
    return Shard("t", rows, columns, devices, "hotness" if hot else "id")


def test_sizes() -> None:
    shard = block((2, 7), (4, 8), 0)
    assert (shard.row_count, shard.dim, shard.area) == (5, 4, 20)


def test_whole() -> None:
    assert Shard.whole(TABLE, 3, 1) == block((0, 12), (0, 8), 1, 3)


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
        (
            "grid",
            TWO_HOSTS,
            [block((a, a + 6), (b, b + 4), 2 * (b > 0) + (a > 0)) for a in (0, 6) for b in (0, 4)],
        ),
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
)
def test_sharding_types(kind: str, topology: Topology, shards: list[Shard]) -> None:
    assert sharding_type_of(shards, TABLE, topology) == kind
    assert sharding_type_of(shards[::-1], TABLE, topology) == kind
