"""Plans, batches and the unsharded reference of the runtime's tests: 2 hosts × 2 devices."""

from __future__ import annotations

import numpy as np
import torch

from shardwright.sharding.plan import Plan
from shardwright.sharding.rank_map import RankMap
from shardwright.sharding.shard import Shard, dealt_ranges
from shardwright.task import AccessProfile, Table, Task, Topology

HOSTS, NEAR = 2, 2
RANKS = HOSTS * NEAR
RATE, EPS = 0.05, 1e-4
KINDS = ("table_wise", "row_wise", "table_row_wise", "data_parallel", "tiered", "blocks", "mixed")


def tables(dtype="fp32"):
    sizes = [("a", 37, 8), ("b", 101, 4), ("c", 64, 8), ("d", 5, 4)]
    return tuple(
        Table(name, rows, dim, 3.0, False, AccessProfile.zipf(rows, 1.1), dtype if name in "ad" else "fp32")
        for name, rows, dim in sizes
    )


def shards_of(table, kind, index, near=NEAR):
    rows, whole, everyone = table.rows, (0, table.dim), tuple(range(RANKS))

    def blocks(start, stop, holders, order="id", dealt=False):
        cuts = dealt_ranges((start, stop), min(len(holders), stop - start))
        tier = (start, stop) if dealt else None
        return [Shard(table.name, cut, whole, held, order, tier) for cut, held in zip(cuts, holders, strict=False)]

    singles = [(rank,) for rank in everyone]
    rails = [tuple(range(local, RANKS, near)) for local in range(near)]
    if kind == "table_wise":
        return blocks(0, rows, [singles[index % RANKS]])
    if kind == "row_wise":
        return blocks(0, rows, singles)
    if kind == "table_row_wise":
        return blocks(0, rows, singles[index % HOSTS * NEAR :][:NEAR])
    if kind == "data_parallel":
        return blocks(0, rows, [everyone])
    hot, warm = max(rows // 8, 1), max(rows // 3, 2)
    if kind == "tiered":
        return [
            *blocks(0, hot, [everyone], "hotness"),
            *blocks(hot, warm, rails, "hotness", True),
            *blocks(warm, rows, singles, "hotness", True),
        ]
    # Replicas on one host's devices, and on one rail, and a tier on some of the devices.
    return [
        *blocks(0, hot, [(0, 1)], "hotness"),
        *blocks(hot, warm, [(1, 3)], "hotness"),
        *blocks(warm, rows, singles[1:], "hotness", True),
    ]


def make_plan(kind, exchange, optimizer="sgd", dtype="fp32", hosts=HOSTS):
    shards = []
    for index, table in enumerate(tables(dtype)):
        shards += shards_of(table, KINDS[index % 6] if kind == "mixed" else kind, index, RANKS // hosts)
    # Without latencies, replicas exchange gradients in as few bytes as they can.
    topology = Topology(hosts, RANKS // hosts, memory="1 GB", intra_latency_ms=0.0, inter_latency_ms=0.0)
    plan = Plan(Task(tables(dtype), topology, 16, optimizer, exchange=exchange), shards)
    plan.check()
    return plan


def rank_maps(seed=5):
    rng = np.random.default_rng(seed)
    return {table.name: RankMap(table.rows, rng.permutation(table.rows)[: table.rows // 2]) for table in tables()}


def batch(rank, step, name, rows):
    """Ids and lengths of one rank: some samples are empty, rank 2 looks up nothing in step 1."""
    rng = np.random.default_rng([rank, step, rows])
    lengths = rng.integers(0, 7, size=4 + rank)
    if (rank, step) == (2, 1):
        lengths[:] = 0
    ids = (rows * rng.random(lengths.sum()) ** 3).astype(np.int64)
    return torch.from_numpy(ids), torch.from_numpy(lengths)


def weight_of(values, name, position):
    """The factor of a value in the loss."""
    return torch.sin(torch.arange(values.numel(), dtype=torch.float32).view(values.shape) * 0.37 + position)


class Reference:
    """Whole tables in one process, trained on the samples of all ranks."""

    def __init__(self, plan, weights):
        self.plan = plan
        self.weights = {name: value.clone().float() for name, value in weights.items()}
        self.half = {table.name for table in plan.task.tables if table.dtype == "fp16"}
        self.first = {name: torch.zeros_like(value) for name, value in self.weights.items()}
        self.second = {name: torch.zeros_like(value) for name, value in self.weights.items()}
        self.time = 0

    def rows(self, name, ids):
        return self.weights[name][ids]

    def gradients(self, step):
        gradients = {}
        for table in self.plan.task.tables:
            dense = torch.zeros(table.rows, table.dim, dtype=torch.float64)
            touched = torch.zeros(table.rows, dtype=torch.bool)
            for rank in range(RANKS):
                ids, _ = batch(rank, step, table.name, table.rows)
                factor = weight_of(torch.zeros(ids.numel(), table.dim), table.name, rank + step)
                dense.index_add_(0, ids, factor.double())
                touched[ids] = True
            gradients[table.name] = dense, touched
        return gradients

    def learn(self, step):
        self.time += 1
        for name, (dense, touched) in self.gradients(step).items():
            gradient, w = dense[touched].float(), self.weights[name]
            if self.plan.task.optimizer == "sgd":
                change = RATE * gradient
            elif self.plan.task.optimizer == "adam":
                m = self.first[name][touched] = 0.9 * self.first[name][touched] + 0.1 * gradient
                v = self.second[name][touched] = 0.999 * self.second[name][touched] + 0.001 * gradient**2
                self.first[name][touched], self.second[name][touched] = m, v
                change = RATE * (m / (1 - 0.9**self.time)) / ((v / (1 - 0.999**self.time)).sqrt() + EPS)
            else:
                squares = gradient**2
                if self.plan.task.optimizer == "rowwise_adagrad":
                    squares = squares.mean(1, keepdim=True).expand_as(gradient)
                self.first[name][touched] += squares
                change = RATE * gradient / (self.first[name][touched].sqrt() + EPS)
            w[touched] -= change
            if name in self.half:
                self.weights[name] = w.half().float()


def initial(table, ids):
    """Weights that are told apart by table, id and column."""
    names = {"a": 1, "b": 2, "c": 3, "d": 4}
    columns = np.arange(table.dim)
    return np.sin(names[table.name] + 10 * ids[:, None] + columns / 7).astype(np.float32)


def whole_tables(plan):
    return {table.name: torch.from_numpy(initial(table, np.arange(table.rows))) for table in plan.task.tables}


def features_of(plan, rank, step):
    return {table.name: batch(rank, step, table.name, table.rows) for table in plan.task.tables}


def make_module(plan, maps, **options):
    from shardwright.runtime import ShardedEmbeddings

    options = {"learning_rate": RATE, "eps": EPS, "initial": initial, "debug": True, "timeout": 20.0} | options
    return ShardedEmbeddings(plan, rank_maps=maps, **options)


def one_step(module, rank, step):
    """Train one step with known gradients; return its outputs."""
    out = module(features_of(module.plan, rank, step))
    loss = sum((rows.values * weight_of(rows.values, name, rank + step)).sum() for name, rows in out.items())
    loss.backward()
    return out


def held_rows(module):
    """Ids, weights and states of this rank's rows, by table."""
    rows = {}
    for cut in module.storage.cuts():
        keys = module.placement.keys(cut.number, cut.start, cut.stop)
        ids = module.ranking.ids(module.placement, cut.part, keys)
        states = [state[cut.slots].clone() for state in module.storage.states(cut.group)]
        name = module.placement.parts[cut.part].table.name
        rows.setdefault(name, []).append(
            (torch.from_numpy(ids), module.storage.weights[cut.group].detach()[cut.slots].float(), states)
        )
    return rows


def close(values, wanted, tolerance):
    torch.testing.assert_close(values, wanted, rtol=tolerance, atol=tolerance)
