import io
import logging

import pytest

from shardwright.errors import InvalidInput
from shardwright.sharding.stats_table import LoggedTable, StatsTable, read_stats
from shardwright.sharding.torchrec_files import sharding_plan_from_plan
from shardwright.sharding.torchrec_logs import plan_of_stats
from shardwright.task import Table, Task, Topology


def row(name="m.a", kind="TW", ranks=(0,), rows=1000, dim=64, block_dim=None, lookups=(2.0,), storage=None, **fields):
    fields = {"pooled": True, "weighted": False, "kernel": "fused", "line": 7} | fields
    return LoggedTable(name, kind, ranks, rows, dim, block_dim, lookups, storage=storage, **fields)


def stats(*rows, ranks=8, memory=None, card=None, others=0.0):
    return StatsTable(1, rows, ranks, 512, memory, card, others)


def blocks(logged, name):
    return [(shard.rows, shard.columns, shard.devices) for shard in logged.plan.by_table[name]]


def test_blocks_are_those_that_torchrec_cuts():
    logged = plan_of_stats(
        stats(
            row("m.tw", ranks=(5,)),
            row("m.cw", "CW", (1, 1, 3), dim=80, block_dim=32),
            row("m.rw", "RW", tuple(range(8)), rows=10),
            row("m.twrw", "TWRW", (4, 5, 6, 7), rows=9),
            row("m.gs", "GS", (0, 0, 1, 1, 2, 2, 3, 3), rows=9, block_dim=32),
            row("m.dp", "DP", tuple(range(8))),
        ),
        "x.log",
    )
    logged.plan.check()
    assert logged.plan.task.topology.devices_per_host == 4
    assert blocks(logged, "tw") == [((0, 1000), (0, 64), (5,))]
    assert [(columns, devices) for _, columns, devices in blocks(logged, "cw")] == [
        ((0, 32), (1,)), ((32, 64), (1,)), ((64, 80), (3,)),
    ]  # fmt: skip
    assert [rows for rows, _, _ in blocks(logged, "rw")] == [(0, 2), (2, 4), (4, 6), (6, 8), (8, 10)]
    assert [(rows, devices) for rows, _, devices in blocks(logged, "twrw")] == [
        ((0, 3), (4,)), ((3, 6), (5,)), ((6, 9), (6,)),
    ]  # fmt: skip
    assert {devices for _, _, devices in blocks(logged, "gs")} == {(0,), (1,), (2,)}
    assert blocks(logged, "dp") == [((0, 1000), (0, 64), tuple(range(8)))]


def test_the_plan_is_written_as_torchrec_saves_it():
    logged = plan_of_stats(stats(row("m.x", ranks=(5,)), row("n.x", "RW", tuple(range(8)))), "x.log")
    assert "torchrec" in logged.plan.runs_on
    assert sharding_plan_from_plan(logged.plan, logged.document, "x.log") == logged.document


def test_the_task_is_that_of_the_log():
    big = row(
        "m.big", rows=50_000_000, dim=64, lookups=(0.0, 3.0), storage=50e6 * 64 * 2.1, pooled=False, weighted=True
    )
    logged = plan_of_stats(stats(big, row("n.x"), row("o.x"), ranks=16, memory=60e9, card=140e9, others=10e9), "x.log")
    task, table = logged.plan.task, logged.plan.task.tables[0]
    assert (table.rows, table.dim, table.dtype, table.pooled, table.weighted) == (50_000_000, 64, "fp16", False, True)
    assert table.poolings == (0.001, 3.0)
    assert [t.name for t in task.tables] == ["big", "n.x", "o.x"]  # two modules have a table x
    assert task.batch_size == 512 * 16
    assert (task.topology.hosts, task.topology.devices_per_host, task.topology.device) == (2, 8, "h200")
    assert task.topology.memory_bytes[0] == 50_000_000_000
    assert any("h200" in text for text in logged.assumed)


def test_assumptions_can_be_set():
    one = stats(row(), ranks=8)
    assert plan_of_stats(one, "x.log", topology="a10g-4").plan.task.topology.hosts == 2
    task = Task([Table("a", 1000, 64, 9.0)], Topology(2, 4, "h100"), 64)
    assert plan_of_stats(one, "x.log", task=task).plan.task is task
    with pytest.raises(InvalidInput, match="unknown preset 'a10g'"):
        plan_of_stats(one, "x.log", topology="a10g")


def test_a_plan_gets_the_memory_it_needs_beyond_that_of_the_log():
    logged = plan_of_stats(stats(row(rows=100_000_000), memory=1e9), "x.log")
    logged.plan.check()
    assert any("memory on each device" in text for text in logged.assumed)


@pytest.mark.parametrize(
    ("rows", "task", "error", "says"),
    [
        ([row(kind="XX")], None, InvalidInput, "sharding type 'XX'"),
        ([row(ranks=(0, 1))], None, InvalidInput, "table_wise in 1 blocks, but lies on 2 ranks"),
        ([row(kind="CW", ranks=(0, 1, 2), block_dim=32)], None, InvalidInput, "lies on 3 ranks"),
        ([row(kind="GS", ranks=(0, 1, 2), block_dim=32)], None, InvalidInput, "lies on 3 ranks"),
        ([row()], Task([Table("a", 1000, 64)], Topology(1, 4, "h100"), 64), InvalidInput, "the logged plan has 8 ranks"),
        ([row()], Task([Table("a", 1001, 64)], Topology(1, 8, "h100"), 64), InvalidInput, "line 7: table 'm.a' has 1000 rows"),
        ([row(), row("m.b")], Task([Table("a", 1000, 64)], Topology(1, 8, "h100"), 64), InvalidInput, "line 7: the task has no table 'b'"),
    ],
)  # fmt: skip
def test_bad_rows_are_one_line(rows, task, error, says):
    with pytest.raises(error) as raised:
        plan_of_stats(stats(*rows), "x.log", task=task)
    assert says in str(raised.value)
    assert "\n" not in str(raised.value)


@pytest.mark.slow
def test_the_log_of_the_installed_torchrec_is_its_plan():
    pytest.importorskip("torchrec")
    import torch
    from torchrec import EmbeddingBagCollection, EmbeddingBagConfig
    from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
    from torchrec.distributed.planner import EmbeddingShardingPlanner, ParameterConstraints
    from torchrec.distributed.planner import Topology as Cluster

    kinds = {
        "t": "table_wise",
        "c": "column_wise",
        "r": "row_wise",
        "h": "table_row_wise",
        "g": "grid_shard",
        "d": "data_parallel",
    }
    configs = [
        EmbeddingBagConfig(
            name=name,
            num_embeddings=1003,
            embedding_dim=128,
            feature_names=[f"{name}{i}" for i in range(1 + index % 2)],
        )
        for index, name in enumerate(kinds)
    ]
    limits = {
        name: ParameterConstraints(sharding_types=[kind], pooling_factors=[3.0] * (1 + index % 2))
        for index, (name, kind) in enumerate(kinds.items())
    }
    logger, text = logging.getLogger("torchrec.distributed.planner.stats"), io.StringIO()
    handler, level = logging.StreamHandler(text), logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        planner = EmbeddingShardingPlanner(
            topology=Cluster(world_size=4, local_world_size=2, compute_device="cuda"),
            batch_size=64,
            constraints=limits,
            debug=True,
        )
        module = torch.nn.ModuleDict({"ebc": EmbeddingBagCollection(tables=configs, device=torch.device("meta"))})
        planned = planner.plan(module, [EmbeddingBagCollectionSharder()]).plan["ebc"]
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)
    (table,) = read_stats(text.getvalue(), "x.log")
    logged = plan_of_stats(table, "x.log")
    logged.plan.check()
    assert logged.plan.task.batch_size == 4 * 64
    assert [t.poolings for t in sorted(logged.plan.task.tables, key=lambda t: t.name)] == [
        (3.0,) * (1 + list(kinds).index(name) % 2) for name in sorted(kinds)
    ]
    for name in kinds:
        spec = planned[name].sharding_spec
        if spec is not None:
            theirs = [(*shard.shard_offsets, *shard.shard_sizes) for shard in spec.shards]
            ours = [
                (shard.rows[0], shard.columns[0], shard.rows[1] - shard.rows[0], shard.columns[1] - shard.columns[0])
                for shard in logged.plan.by_table[name]
            ]
            assert sorted(ours) == sorted(theirs)
            assert sorted(shard.devices[0] for shard in logged.plan.by_table[name]) == sorted(planned[name].ranks)
