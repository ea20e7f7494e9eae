import numpy as np
import pytest
from experiments.experiment import Piece
from experiments.neuroshard.production import FILL, WORLDS, NeuroShardProduction, heaviest_ms, production_task
from experiments.neuroshard.production_page import PUBLISHED
from experiments.summaries import NOTHING

from shardwright.task import Table, Task, Topology
from shardwright.workload import table_pool
from tests.unit.experiments.rows import outcome, table_with

EXPERIMENT = NeuroShardProduction()
CPU = WORLDS[0]


def row(strategy, ms, *, world="cpu", seed=0, **others):
    return outcome(strategy, ms, **others) | {
        "world": world,
        "seed": seed,
        "by": strategy,
        "limit_s": 60,
        "heaviest_ms": 5.0,
    }


@pytest.mark.parametrize("world", WORLDS, ids=lambda world: world.name)
def test_tasks_are_the_whole_pool_hashed_up(world):
    task, pool = production_task(world, 1), table_pool("dlrm-2021")
    assert (task.topology.hosts, task.topology.devices) == (16, 128)
    assert [table.pooling for table in task.tables] == [table.pooling for table in pool]
    assert [table.access.exponent for table in task.tables] == [table.access.exponent for table in pool]
    assert {table.dim for table in task.tables} == {4, 8, 16, 32, 64, 128}
    weights = sum(table.weight_bytes for table in task.tables)
    assert weights == pytest.approx(FILL * sum(task.topology.memory_bytes), rel=1e-3)
    assert weights > 1e12
    factors = np.array([table.rows / own.rows for table, own in zip(task.tables, pool, strict=True) if own.rows > 1e5])
    assert np.ptp(factors) < 1e-3 * factors.mean()
    assert production_task(world, 1) == task != production_task(world, 2)


def test_the_heaviest_table_bounds_plans_of_whole_tables():
    (lookup_row,) = EXPERIMENT.run(Piece({"world": "cpu", "seed": 0, "by": "lookup", "limit_s": 60}))
    assert lookup_row["tables"] == 856
    assert 0 < lookup_row["heaviest_ms"] == heaviest_ms(production_task(CPU, 0))
    assert lookup_row["heaviest_ms"] <= lookup_row["compute_ms"] * (1 + 1e-9)
    assert lookup_row["cut"] == lookup_row["oversize"] > 0


def test_tables_that_fit_no_device_do_not_count_as_heaviest():
    topology = Topology(devices_per_host=2, memory="100 MB")
    small, hot = Table("small", 1000, 16, 2.0), Table("hot", 1000, 16, 50.0)
    alone = heaviest_ms(Task([hot], topology, 256))
    assert heaviest_ms(Task([small, hot], topology, 256)) == pytest.approx(alone)
    assert alone > 1.1 * heaviest_ms(Task([small], topology, 256))
    huge = Table("huge", 10_000_000, 64, 500.0)
    assert heaviest_ms(Task([small, hot, huge], topology, 256)) == pytest.approx(alone)
    assert heaviest_ms(Task([huge], topology, 256)) == 0.0


def test_the_page_by_hand():
    rows = [
        row("random", 10.0), row("size", 8.0), row("neuroshard", 5.0), row("certified", 2.0, bound=2.0),
        row("torchrec", None, failure="no plan in time", seconds=630.0),
        row("random", 20.0, seed=1), row("size", None, seed=1, failure="no room found"), row("neuroshard", 8.0, seed=1),
        row("certified", 5.0, seed=1, bound=5.0),
        row("random", 4.0, world="a100"), row("size", 3.0, world="a100"), row("torchrec", 2.0, world="a100"),
    ]  # fmt: skip
    page = EXPERIMENT.page(rows, False)
    by_name = {line["strategy"]: line for line in table_with(page, "as the paper gives it")}
    assert [*PUBLISHED] == [name for name in by_name if name in PUBLISHED]
    assert by_name["neuroshard"]["paper, ratio"] == "0.467"
    assert by_name["neuroshard"]["cpu, ratio"] == "0.500"  # only seed 0 was placed by all
    assert by_name["torchrec"]["cpu, ratio"] == "no plan in time (630 s)"
    assert by_name["torchrec"]["a100, ratio"] == "0.500"
    assert by_name["certified"]["paper, ms"] == by_name["certified"]["a100, ratio"] == NOTHING
    cpu = {line["strategy"]: line for line in table_with(page, "`cpu`: ")}
    assert (cpu["size"]["tried"], cpu["size"]["placed"], cpu["size"]["embedding cost"]) == ("2", "50%", "8.00")
    assert cpu["certified"]["gap"] == "10.0%"
    assert "take longest needs 5.0 ms by itself" in page.text[4]
    assert "embedding cost of `certified`'s plans is 3.5 ms" in page.text[4]
