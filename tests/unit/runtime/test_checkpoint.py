import pytest

pytest.importorskip("torch", reason="the runtime needs torch")

import msgspec
import torch

from shardwright.documents.json_text import parse_json
from shardwright.errors import InvalidInput
from shardwright.files import MAX_BYTES, MAX_VALUES
from shardwright.runtime.checkpoint import (
    FORMAT,
    MOST_PARTS,
    Manifest,
    Part,
    RowsOfTable,
    SavedTable,
    check_readable,
    largest_part,
    measure,
    planned_parts,
)
from shardwright.runtime.optimizers import Optimizer
from shardwright.runtime.placement import Placement
from shardwright.runtime.storage import Storage
from shardwright.sharding.plan import Plan
from shardwright.sharding.shard import Shard, dealt_ranges
from shardwright.task import Table, Task, Topology

TEXT = msgspec.json.encode(
    Manifest(
        FORMAT,
        "sgd",
        3,
        [SavedTable("a, [b] {ü}", 10, 4, "fp32")],
        [Part("rank-0-part-0-0123456789abcdef.safetensors", 9, 8, [RowsOfTable("a, [b] {ü}", 10, 0, 9)])],
    )
)


def test_values_are_counted_as_the_reader_does():
    size, values = measure(TEXT)
    assert size == len(TEXT)
    parse_json(TEXT.decode(), "m", values)
    with pytest.raises(InvalidInput, match=f"more than {values - 1} values"):
        parse_json(TEXT.decode(), "m", values - 1)


@pytest.mark.parametrize("more", [(1, 0), (0, 1)])
def test_a_manifest_that_could_not_be_read_is_refused(more):
    check_readable(MAX_BYTES, MAX_VALUES)
    with pytest.raises(InvalidInput, match="spread the tables over several modules"):
        check_readable(MAX_BYTES + more[0], MAX_VALUES + more[1])


MB = 2**20
META = torch.device("meta")  # rows that take no memory


def storages(tables, ranks, optimizer="sgd"):
    """The storages of all ranks, each table in row blocks on all of them."""
    task = Task(tables, Topology(1, ranks, memory="1 GB"), ranks, optimizer)
    cuts = [(table, dealt_ranges((0, table.rows), ranks)) for table in tables]
    shards = [
        Shard(table.name, rows, (0, table.dim), (rank,)) for table, blocks in cuts for rank, rows in enumerate(blocks)
    ]
    placement = Placement.of(Plan(task, shards), [table.name for table in tables])
    return [Storage(placement, rank, META, Optimizer(optimizer), True, False) for rank in range(ranks)]


def rows_of(parts):
    return sum(cut.rows for content in parts for cut in content)


def test_parts_have_about_the_size_asked_for():
    (storage,) = storages([Table("a", 100_000, 64, 1.0, False), Table("b", 3, 4, 1.0, False)], 1, "adagrad")
    parts = planned_parts(storage, MB)
    assert rows_of(parts) == 100_003
    sizes = [sum(cut.rows * (2 * 4 * (64, 4)[cut.group == 0] + 8) for cut in content) for content in parts]
    assert max(sizes) <= 2.1 * MB  # weights of the size asked for, and their states
    assert len(parts) == 26


@pytest.mark.parametrize("ranks", [1, 64])
def test_tables_of_any_size_have_a_manifest_that_can_be_read(ranks):
    table = Table("a_table_with_a_name_of_some_length", 2**36, 128, 1.0, False)  # 32 TB: 1,048,576 parts of 32 MB
    listed, rows, count = [], 0, 0
    for rank, storage in enumerate(storages([table], ranks, "rowwise_adagrad")):
        parts = planned_parts(storage, 32 * MB)
        rows, count = rows + rows_of(parts), count + len(parts)
        for number, content in enumerate(parts):
            name = f"rank-{rank}-part-{number}-0123456789abcdef.safetensors"
            listed.append(largest_part(storage, name, content))
    assert rows == table.rows
    assert MOST_PARTS // 2 < count <= 2 * MOST_PARTS + ranks
    size, values = measure(msgspec.json.encode(listed))
    assert size < MAX_BYTES // 2
    assert values < MAX_VALUES // 2
