"""Plans for the tests of the report: every pattern of shards, tiers, and names that try to be markup."""

from shardwright.cost import cost_model_for, scored
from shardwright.sharding import Plan, Shard
from shardwright.sharding.shard import dealt_ranges
from shardwright.task import AccessProfile, Table, Task, Topology

HOSTILE = (
    "<script>window.broken = 1</script>",
    "</script><img src=x onerror='window.broken = 1'>",
    "\"quotes\" & 'more' <!-- ${1 + 1} {{ x }}",
    "ünïcode 表 🙂 \\u003c",
    "__proto__",
    "long" * 100,
)


def tiered(table: Table, hot: int, warm: int, topology: Topology) -> list[Shard]:
    """Hot rows on every device, warm rows once on every host, cold rows once."""
    devices, near, columns = topology.devices, topology.devices_per_host, (0, table.dim)
    shards = [Shard(table.name, (0, hot), columns, tuple(range(devices)), "hotness")]
    for part, block in enumerate(dealt_ranges((hot, warm), near)):
        shards.append(Shard(table.name, block, columns, tuple(range(part, devices, near)), "hotness", (hot, warm)))
    for part, block in enumerate(dealt_ranges((warm, table.rows), devices)):
        shards.append(Shard(table.name, block, columns, (part,), "hotness", (warm, table.rows)))
    return shards


def mixed_plan(device: str = "cpu", **fields) -> Plan:
    """Table-, column- and row-wise tables, replicas on all devices and on some, and a tiered one, on two hosts of two; scored."""
    tables = (
        Table("whole", 1000, 16, 2.0, access=AccessProfile.zipf(1000, 1.05)),
        Table("columns", 400, 32, [1.0, 4.0]),
        Table("rows", 4000, 8, 3.0, access=AccessProfile.zipf(4000, 0.9)),
        Table("everywhere", 30, 8),
        Table("some", 50, 8, 4.0),
        Table("history", 2000, 8, 20.0, pooled=False, access=AccessProfile.zipf(2000, 1.2)),
    )
    task = Task(tables, Topology(2, 2, device, "64 MB", "10 GB/s", "2 GB/s"), batch_size=64)
    shards = [
        Shard.whole(tables[0], 1),
        Shard("columns", (0, 400), (0, 16), (0,)),
        Shard("columns", (0, 400), (16, 32), (2,)),
        Shard("rows", (0, 1000), (0, 8), (0,)),
        Shard("rows", (1000, 4000), (0, 8), (3,)),
        Shard.whole(tables[3], 0, 1, 2, 3),
        Shard.whole(tables[4], 0, 3),
        *tiered(tables[5], 40, 400, task.topology),
    ]
    plan = Plan(task, tuple(shards), strategy="by hand", **fields)
    plan.check()
    return scored(plan, cost_model_for(device))


def row_wise_plan() -> Plan:
    """The tables of `mixed_plan`, each in equal row blocks over all devices."""
    task = mixed_plan().task
    shards = [
        Shard(table.name, block, (0, table.dim), (rank,))
        for table in task.tables
        for rank, block in enumerate(dealt_ranges((0, table.rows), 4))
    ]
    return scored(Plan(task, tuple(shards), strategy="row_wise"), cost_model_for("cpu"))


def hostile_plan() -> Plan:
    """Tables whose names look like markup, on two devices."""
    tables = tuple(Table(name, 100 * (index + 1), 8) for index, name in enumerate(HOSTILE))
    task = Task(tables, Topology(1, 2, "cpu", "64 MB"), batch_size=16)
    shards = tuple(Shard.whole(table, index % 2) for index, table in enumerate(tables))
    return scored(Plan(task, shards, strategy="<b>bold</b>"), cost_model_for("cpu"))


def many_tiered_plan() -> Plan:
    """Eight tiered tables."""
    tables = tuple(Table(f"history_{index}", 500 + index, 8, 5.0, pooled=False) for index in range(8))
    task = Task(tables, mixed_plan().task.topology, 64)
    return Plan(task, tuple(shard for table in tables for shard in tiered(table, 10, 100, task.topology)))
