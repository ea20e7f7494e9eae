"""TorchRec trains on our plans as the unsharded module does: every sharding type that it executes on CPUs, on real gloo processes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from shardwright.errors import InvalidPlan
from shardwright.sharding import Plan, Shard
from shardwright.task import AccessProfile, Table, Task, Topology

pytest.importorskip("torchrec", reason="needs TorchRec")

from shardwright.measure.collectives.group import GroupOptions, RankGroup

pytestmark = [pytest.mark.slow, pytest.mark.torchrec]

PROGRAM = (str(Path(__file__).with_name("torchrec_rank.py")),)
TOLERANCE = 1e-5
BATCH = 12


def table(name: str, pooled: bool = True) -> Table:
    """37 rows: no number of ranks divides them. Two features look up in them."""
    return Table(name, 37, 16, [2.0, 1.0], pooled, AccessProfile.zipf(37, 1.05))


def whole(one: Table, *ranks: int) -> list[Shard]:
    return [Shard.whole(one, *ranks)]


def in_columns(one: Table, *ranks: int) -> list[Shard]:
    """A pooled table in blocks of 4 columns, one on each rank and the rest on the last; a sequence table in one block a rank."""
    width = 4 if one.pooled else one.dim // len(ranks)
    cuts = list(range(0, one.dim + 1, width))
    ranks += ranks[-1:] * (len(cuts) - 1 - len(ranks))
    return [Shard(one.name, (0, one.rows), (cuts[i], cuts[i + 1]), (rank,)) for i, rank in enumerate(ranks)]


def in_rows(one: Table, *ranks: int, columns: tuple[int, int] | None = None) -> list[Shard]:
    size = -(-one.rows // len(ranks))
    cuts = [*range(0, one.rows, size), one.rows]
    return [Shard(one.name, (cuts[i], cuts[i + 1]), columns or (0, one.dim), (rank,)) for i, rank in enumerate(ranks)]


def in_grid(one: Table, *hosts: tuple[int, ...]) -> list[Shard]:
    """Equal column ranges, each in row blocks over the ranks of one host."""
    width = one.dim // len(hosts)
    return [
        shard for i, ranks in enumerate(hosts) for shard in in_rows(one, *ranks, columns=(width * i, width * (i + 1)))
    ]


BAG, SEQUENCE = table("bag"), table("sequence", pooled=False)
TOPOLOGY = {2: Topology(1, 2, memory="1 GB"), 4: Topology(2, 2, memory="1 GB")}
CASES = {
    2: {
        "data_parallel": whole(BAG, 0, 1),
        "table_wise": whole(BAG, 1),
        "column_wise": in_columns(BAG, 1, 0, 1),
        "row_wise": in_rows(BAG, 0, 1),
        "grid_shard": in_grid(BAG, (0, 1), (0, 1)),
        "table_wise sequence": whole(SEQUENCE, 1),
        "column_wise sequence": in_columns(SEQUENCE, 1, 0),
        "row_wise sequence": in_rows(SEQUENCE, 0, 1),
    },
    4: {
        "data_parallel": whole(BAG, 0, 1, 2, 3),
        "table_wise": whole(BAG, 3),
        "column_wise": in_columns(BAG, 3, 0, 1),
        "row_wise": in_rows(BAG, 0, 1, 2, 3),
        "table_row_wise": in_rows(BAG, 2, 3),
        "grid_shard": in_grid(BAG, (2, 3), (0, 1)),
        "table_wise sequence": whole(SEQUENCE, 2),
        "column_wise sequence": in_columns(SEQUENCE, 2, 0, 3, 1),
        "row_wise sequence": in_rows(SEQUENCE, 0, 1, 2, 3),
    },
}


def mixed(world: int) -> tuple[list[Table], list[Shard], dict[str, str]]:
    """All cases of a world as one plan, each on a table of its own."""
    tables, shards, kinds = [], [], {}
    for index, (kind, parts) in enumerate(CASES[world].items()):
        own = table(f"table_{index}", pooled="sequence" not in kind)
        tables.append(own)
        shards += [Shard(own.name, part.rows, part.columns, part.devices) for part in parts]
        kinds[own.name] = kind.split()[0]
    return tables, shards, kinds


@pytest.fixture(scope="module", params=[2, 4])
def ranks(request):
    with RankGroup(GroupOptions(request.param, program=PROGRAM, timeout_s=60)) as group:
        yield request.param, group


def run(ranks, tables, shards, folder, optimizer="sgd"):
    world, group = ranks
    plan = Plan(Task(tables, TOPOLOGY[world], BATCH, optimizer), shards)
    plan.check()
    plan.save(folder / "plan.json")
    reply = group.ask({"kind": "numerics", "plan": str(folder / "plan.json")}, "for a comparison")
    assert reply["moved"] > 0.01  # the steps did something that could differ
    return reply


def test_every_type_trains_as_the_unsharded_module(ranks, tmp_path):
    world, _ = ranks
    for kind, shards in CASES[world].items():
        reply = run(ranks, [SEQUENCE if "sequence" in kind else BAG], shards, tmp_path, "adagrad")
        assert max(reply["differences"]) < TOLERANCE, (kind, reply["differences"])
        assert list(reply["kinds"].values()) == [kind.split()[0]]


def test_column_blocks_of_two_sequences_may_differ_in_width(ranks, tmp_path):
    """TorchRec runs one width only: the conversion cuts them further."""
    other = replace(SEQUENCE, name="other")
    shards = [*in_columns(SEQUENCE, 1, 0), *in_columns(other, 0, 1, 1, 0)]
    reply = run(ranks, [SEQUENCE, other], shards, tmp_path, "adagrad")
    assert max(reply["differences"]) < TOLERANCE


@pytest.mark.parametrize("optimizer", ["sgd", "rowwise_adagrad", "adagrad"])
def test_a_mixed_plan_trains_as_the_unsharded_module(ranks, tmp_path, optimizer):
    tables, shards, kinds = mixed(ranks[0])
    reply = run(ranks, tables, shards, tmp_path, optimizer)
    assert max(reply["differences"]) < TOLERANCE, reply["differences"]
    # A table of one column block is declared as those of several beside it, which saves a set of collectives.
    alike = {"table_wise": "column_wise", "table_row_wise": "grid_shard"}
    pooled = {one.name for one in tables if one.pooled}
    assert reply["kinds"] == {name: alike.get(kind, kind) if name in pooled else kind for name, kind in kinds.items()}


def test_plans_that_torchrec_cannot_run_are_refused_before_they_run():
    """FBGEMM's dense kernel for CPUs sums sequences, and TorchRec shards no sequence by the rows or columns of one host."""
    from shardwright.integrations.torchrec.steps.sharded import planned

    task = Task([SEQUENCE], TOPOLOGY[4], BATCH)
    for shards in (whole(SEQUENCE, 0, 1, 2, 3), in_rows(SEQUENCE, 2, 3), in_grid(SEQUENCE, (0, 1), (2, 3))):
        with pytest.raises(InvalidPlan, match="sequence"):
            planned(Plan(task, shards), "cpu")
