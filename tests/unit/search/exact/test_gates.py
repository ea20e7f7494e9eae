"""The optimum against every placement, if a call's widest table sets the price of its lookups."""

from collections.abc import Iterable, Sequence
from itertools import product

import pytest

from shardwright.cost.model import CostModel
from shardwright.cost.score import score
from shardwright.search.exact.formulation import Effort, all_ways, solve
from shardwright.sharding import Shard
from shardwright.task import Constraints, Table, TableConstraint, Task, Topology
from tests.wide import GatedModel, wide_model

BATCH = 1024
WHOLE = TableConstraint(("table_wise",))


def check_best(task: Task, model: CostModel, placements: Iterable[Sequence[Shard]]) -> None:
    """The optimum is the least score over all placements."""
    expected = min(score(task, list(shards), model).step_ms for shards in placements)
    answer = solve(task, model, all_ways(task, model, None), Effort(None, None, 1e-6))
    assert answer.shards is not None
    assert answer.bound_ms == pytest.approx(expected, rel=2e-6)
    assert score(task, answer.shards, model).step_ms == pytest.approx(expected, rel=2e-6)


def anywhere(task: Task, table: Table, columns: tuple[int, int]) -> list[Shard]:
    """A block of the columns, on each device."""
    return [Shard(table.name, (0, table.rows), columns, (rank,)) for rank in range(task.topology.devices)]


@pytest.mark.parametrize("pooled", [True, False])
@pytest.mark.parametrize("dims", [(16, 48, 48, 96), (16, 48, 96, 160), (48, 96, 96, 160)])
def test_each_gate_of_a_learned_model_is_priced_in_each_call(dims, pooled):
    """On two devices, tables of three or four widths cannot avoid all gates. Sequence tables have a separate call."""
    tables = [Table(f"t{i}", 2000, dim, 30.0 - 4 * i, pooled=pooled or i > 1) for i, dim in enumerate(dims)]
    limits = Constraints({table.name: WHOLE for table in tables})
    task = Task(tables, Topology(devices_per_host=2), BATCH, constraints=limits)
    check_best(task, wide_model(), product(*[anywhere(task, table, (0, table.dim)) for table in tables]))


@pytest.mark.parametrize("devices", [1, 2])
def test_a_gate_is_open_whether_a_device_takes_one_or_two_of_a_tables_equal_blocks(devices):
    """Both blocks of 80 columns open it, and so does each alone: a gate is never open by half."""
    wide, *narrow = tables = [Table("wide", 2000, 160, 30.0), Table("n0", 2000, 16, 2.0), Table("n1", 2000, 16, 3.0)]
    halves = TableConstraint(("column_wise",), max_shards=2, equal_columns=True)
    limits = Constraints({"wide": halves} | {table.name: WHOLE for table in narrow})
    task = Task(tables, Topology(devices_per_host=devices), BATCH, constraints=limits)
    blocks = [anywhere(task, wide, columns) for columns in ((0, 80), (80, 160))]
    blocks += [anywhere(task, table, (0, table.dim)) for table in narrow]
    check_best(task, GatedModel(), product(*blocks))


def test_two_blocks_of_a_table_lie_on_one_device_if_the_whole_table_would_open_a_gate():
    """Without gates, one block as wide as both never costs more, and the program leaves such pairs out."""
    wide, *narrow = tables = [Table("wide", 2000, 96, 2.0), Table("n0", 2000, 16, 20.0), Table("n1", 2000, 16, 30.0)]
    limits = Constraints({"wide": TableConstraint(max_shards=2)} | {table.name: WHOLE for table in narrow})
    task = Task(tables, Topology(devices_per_host=1), BATCH, constraints=limits)
    cuts = [[(0, 96)], *([(0, first), (first, 96)] for first in range(4, 96, 4))]
    others = [Shard.whole(table, 0) for table in narrow]
    check_best(task, GatedModel(), [[anywhere(task, wide, c)[0] for c in cut] + others for cut in cuts])
