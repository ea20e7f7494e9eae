"""Plans, batches and references of the runtime's tests with pooled tables: 2 hosts × 2 devices."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch

from shardwright.sharding.plan import Plan
from shardwright.sharding.shard import Shard, dealt_ranges
from shardwright.task import AccessProfile, Table, Task, Topology
from shardwright.task.topology import Exchange

RANKS, NEAR = 4, 2
RATE, EPS = 0.05, 1e-4
FEATURES = {"shared": ["left", "right"]}
KINDS = ("table_wise", "columns", "rows", "grid", "bricks", "data_parallel", "one_host", "rail", "tiered", "mixed")


def tables(dtype="fp32"):
    """Pooled tables, one with two features and one with weights, and a sequence table."""
    zipf = AccessProfile.zipf
    return (
        Table("plain", 101, 12, 3.0, True, zipf(101, 1.1), dtype),
        Table("shared", 64, 8, [2.0, 1.0], True, zipf(64, 1.1)),
        Table("weighted", 37, 12, 2.0, True, zipf(37, 1.1), weighted=True),
        Table("few", 5, 4, 1.0, True, zipf(5, 1.1)),
        Table("steps", 50, 8, 3.0, False, zipf(50, 1.1)),
    )


def shards_of(table, kind, turn):
    rows, dim, everyone = table.rows, table.dim, tuple(range(RANKS))

    def block(rows, columns, *devices, order="id", tier=None):
        return Shard(table.name, rows, columns, tuple(devices), order, tier)

    every_row, every_column, half = (0, rows), (0, dim), rows // 3
    if kind == "table_wise" or (kind == "columns" and dim == 4):
        return [block(every_row, every_column, turn % RANKS)]
    if kind == "columns":  # unequal ones
        return [block(every_row, (0, 4), turn % RANKS), block(every_row, (4, dim), (turn + 1) % RANKS)]
    if kind == "rows":  # uneven ones, two of them on one device
        cuts = [(0, 1), (1, half + 1), (half + 1, rows)]
        return [block(cut, every_column, rank) for cut, rank in zip(cuts, (3, 1, 3), strict=True)]
    if kind == "grid" and dim > 4:  # each range of columns with cuts of its own
        return [
            block((0, half), (0, 4), 0),
            block((half, rows), (0, 4), 1),
            block((0, 2), (4, dim), 2),
            block((2, rows), (4, dim), 0),
        ]
    if kind == "bricks" and dim > 8:  # rows whose columns are cut differently
        return [
            block((0, half), (0, 4), 0),
            block((0, half), (4, dim), 1),
            block((half, rows), (0, 8), 2),
            block((half, rows), (8, dim), 3),
        ]
    if kind == "one_host":
        return [block(every_row, every_column, 2, 3)]
    if kind == "rail":
        return [block((0, half), every_column, 1, 3), block((half, rows), every_column, 0)]
    if kind == "tiered":
        cuts = dealt_ranges((half, rows), min(RANKS, rows - half))
        cold = [block(cut, every_column, rank, order="hotness", tier=(half, rows)) for rank, cut in enumerate(cuts)]
        return [block((0, half), every_column, *everyone, order="hotness"), *cold]
    return [block(every_row, every_column, *everyone)]


def make_plan(kind, optimizer="rowwise_adagrad", dtype="fp32", exchange=None):
    """A plan whose tables all lie in one way, or each in another."""
    topology = Topology(RANKS // NEAR, NEAR, memory="1 GB")
    chosen = tables(dtype)
    shards = [
        shard
        for turn, table in enumerate(chosen)
        for shard in shards_of(table, KINDS[(turn * 2 + 1) % 9] if kind == "mixed" else kind, turn)
    ]
    plan = Plan(Task(chosen, topology, 16, optimizer, exchange=exchange or Exchange()), shards)
    plan.check()
    return plan


def unsharded(plan, rows_at=None):
    """The same tables whole on one device, with the blocks of columns as tables of row-wise optimizers see them."""
    cuts = {
        table.name: sorted({column for shard in plan.by_table[table.name] for column in shard.columns})
        for table in plan.task.tables
    }
    shards = [
        Shard(table.name, (0, table.rows), (start, stop), (0,))
        for table in plan.task.tables
        for start, stop in zip(cuts[table.name], cuts[table.name][1:], strict=False)
    ]
    task = replace(plan.task, topology=Topology(1, 1, memory="1 GB"))
    return Plan(task, shards)


def batch(rank, step, feature, table):
    """Ids, lengths and weights of one rank; rank 2 has no samples in step 1, and rank 3 only empty ones in step 2."""
    rng = np.random.default_rng([rank, step, len(feature), table.rows])
    lengths = rng.integers(0, 5, size=0 if (rank, step) == (2, 1) else 3 + rank)
    if (rank, step) == (3, 2):
        lengths[:] = 0
    ids = (table.rows * rng.random(lengths.sum()) ** 3).astype(np.int64)
    weights = rng.random(ids.size).astype(np.float32)
    parts = (torch.from_numpy(ids), torch.from_numpy(lengths), torch.from_numpy(weights))
    return parts if table.weighted else parts[:2]


def named(plan):
    """The features of a plan's tables."""
    return [(name, table) for table in plan.task.tables for name in FEATURES.get(table.name, [table.name])]


def features(plan, rank, step):
    return {name: batch(rank, step, name, table) for name, table in named(plan)}


def joined(plan, step):
    """The samples of all ranks as one batch."""
    every = [features(plan, rank, step) for rank in range(RANKS)]
    return {name: tuple(map(torch.cat, zip(*(given[name] for given in every), strict=True))) for name, _ in named(plan)}


def factor(values, start):
    """The factors of a loss on outputs; rows of outputs are counted through all ranks."""
    rows = torch.arange(start, start + values.shape[0], dtype=torch.float32)
    return torch.sin(rows[:, None] * 0.37 + torch.arange(values.shape[1]) * 1.3)


def values_of(output):
    return output if isinstance(output, torch.Tensor) else output.values


def initial(table, ids):
    columns = np.arange(table.dim)
    return np.sin(table.rows + 10 * ids[:, None] + columns / 7).astype(np.float32)


def make_module(plan, **options):
    from shardwright.runtime import ShardedEmbeddings

    names = {table: names for table, names in FEATURES.items() if table in plan.by_table}
    options = {"learning_rate": RATE, "eps": EPS, "initial": initial, "timeout": 20.0, "features": names} | options
    return ShardedEmbeddings(plan, **options)


def step_of(module, rank, step, before):
    """One step of a rank; `before` is the number of outputs of each feature on the ranks before it. Returns the outputs."""
    given = joined(module.plan, step) if rank is None else features(module.plan, rank, step)
    out = module(given)
    loss = sum((values_of(rows) * factor(values_of(rows), before.get(name, 0))).sum() for name, rows in out.items())
    loss.backward()
    return {name: values_of(rows).detach().clone() for name, rows in out.items()}


def outputs_before(plan, rank, step):
    """Rows of outputs of each feature on the ranks before this one."""
    counts = {}
    for name, table in named(plan):
        parts = [batch(earlier, step, name, table) for earlier in range(rank)]
        counts[name] = sum(part[1 if table.pooled else 0].numel() for part in parts)
    return counts


def held(module):
    """By table and columns, ids, weights and states of the rows that this rank holds."""
    pieces = []
    for cut in module.storage.cuts():
        keys = module.placement.keys(cut.number, cut.start, cut.stop)
        part = module.placement.parts[cut.part]
        ids = module.ranking.ids(module.placement, cut.part, keys)
        matrices = {
            kind: matrix[cut.slots].float().clone() for kind, matrix in module.storage.matrices(cut.group).items()
        }
        pieces.append((part.table.name, part.columns, torch.from_numpy(ids), matrices))
    return pieces
