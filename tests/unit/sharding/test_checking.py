import pytest

from shardwright.errors import InvalidPlan
from shardwright.sharding import Plan, Shard
from shardwright.task import Constraints, Table, TableConstraint, Task, Topology

TABLES = [Table("a", 10, 8), Table("b", 10, 8)]


def plan_of(*devices: int, constraints=None, memory="1 GB", shards=None) -> Plan:
    task = Task(TABLES, Topology(devices_per_host=4, memory=memory), 6, constraints=constraints or Constraints())
    whole = [Shard.whole(table, device) for table, device in zip(TABLES, devices, strict=True)] if devices else []
    return Plan(task, shards if shards is not None else whole)


def limits(**changes) -> Constraints:
    return Constraints({"a": TableConstraint(**changes)})


def test_a_good_plan_passes():
    plan_of(0, 1, constraints=limits(sharding_types=("table_wise",), devices=(0,), max_shards=1)).check()


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
        (plan_of(shards=[Shard.whole(TABLES[0], 0)]), "table 'b' is missing"),
        (plan_of(shards=[Shard("c", (0, 1), (0, 1), (0,))]), "'c', which the task does not have"),
    ],
)
def test_a_broken_rule_is_named_with_its_numbers(plan, says):
    with pytest.raises(InvalidPlan, match=says):
        plan.check()


def test_too_many_shards_are_named():
    halves = [Shard("a", (0, 10), (0, 4), (0,)), Shard("a", (0, 10), (4, 8), (1,)), Shard.whole(TABLES[1], 1)]
    with pytest.raises(InvalidPlan, match="has 2 shards; at most 1"):
        plan_of(shards=halves, constraints=limits(max_shards=1)).check()
