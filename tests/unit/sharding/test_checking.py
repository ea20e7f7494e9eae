import pytest

from shardwright.errors import InvalidPlan
from shardwright.sharding import Plan, Shard
from shardwright.sharding.checking import check_tiling
from shardwright.task import Constraints, Table, TableConstraint, Task, Topology

TABLES = [Table("a", 10, 8), Table("b", 10, 8)]
HALVES = [Shard("a", (0, 10), (0, 4), (0,)), Shard("a", (0, 10), (4, 8), (1,)), Shard.whole(TABLES[1], 1)]


def plan_of(*devices: int, constraints=None, memory="1 GB", shards=None) -> Plan:
    task = Task(TABLES, Topology(devices_per_host=4, memory=memory), 6, constraints=constraints or Constraints())
    whole = [Shard.whole(table, device) for table, device in zip(TABLES, devices, strict=True)] if devices else []
    return Plan(task, shards if shards is not None else whole)


def limits(**changes) -> Constraints:
    return Constraints({"a": TableConstraint(**changes)})


@pytest.mark.parametrize(
    ("plan", "says"),
    [
        (plan_of(0, 4), "rank 4; the topology has ranks 0 to 3"),
        (plan_of(0, 0, memory=1200), r"rank 0 needs .* no device may exceed"),
        (
            plan_of(0, 1, constraints=limits(sharding_types=("row_wise", "grid"))),
            "sharded table_wise; allowed are row_wise, grid",
        ),
        (plan_of(0, 1, constraints=limits(devices=(2, 3))), r"lies on ranks \[0\]; it is pinned to \[2, 3\]"),
        (plan_of(0, 1, constraints=Constraints(colocate=(("a", "b"),))), "a, b are to be colocated"),
        (plan_of(2, 2, constraints=Constraints(apart=(("a", "b"),))), "a and b are to be kept apart but share rank 2"),
        (plan_of(shards=HALVES, constraints=limits(max_shards=1)), "has 2 shards; at most 1"),
        (plan_of(shards=[Shard.whole(TABLES[0], 0)]), "table 'b' is missing"),
        (plan_of(shards=[Shard("c", (0, 1), (0, 1), (0,))]), "'c', which the task does not have"),
    ],
)
def test_a_broken_rule_is_named_with_its_numbers(plan, says):
    with pytest.raises(InvalidPlan, match=says):
        plan.check()


TABLE = Table("t", 4, 6)


def blocks(*ranges: tuple[int, int, int, int]) -> list[Shard]:
    return [Shard("t", (top, bottom), (left, right), (0,)) for top, bottom, left, right in ranges]


@pytest.mark.parametrize(
    ("ranges", "message"),
    [
        ([], "table 't' is missing from the plan; every table must be tiled exactly"),
        ([(0, 5, 0, 6)], "block rows [0, 5) × columns [0, 6) reaches beyond the table's 4 rows × 6 columns"),
        ([(0, 4, 0, 5)], "4 of its 24 elements lie in no shard; blocks must tile the table"),
        ([(0, 4, 0, 4), (0, 4, 3, 6)], "block rows [0, 4) × columns [3, 6) overlaps table 't': block rows [0, 4)"),
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
