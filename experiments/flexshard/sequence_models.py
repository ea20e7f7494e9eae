"""Synthetic models of sequence tables in production shape, clusters for them, and the bytes that a strategy's plan sends."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from shardwright.cost import PublishedModel, communication_ms
from shardwright.cost.flows import INTER, traffic_by_kind
from shardwright.errors import InfeasibleTask
from shardwright.search import strategy_named
from shardwright.search.flexshard import FlexShard, tier_plan
from shardwright.sharding import Shard, memory_account
from shardwright.sharding.checking import check_memory
from shardwright.task import AccessProfile, Exchange, Table, Task, Topology
from shardwright.task.task import Optimizer

EXCHANGES = {
    "every lookup, whole gradients": Exchange(),
    "distinct per device, cheaper gradients": Exchange("device", "cheaper"),
    "distinct per host, cheaper gradients": Exchange("host", "cheaper"),
}
STRATEGIES = ("row_wise", "table_row_wise", "two_tiers", "flexshard")
BATCH = 4096
"""Samples per device."""
LATENCY = (0.02, 0.04)
"""Latency in ms inside a host and between hosts."""
_MODEL = PublishedModel("h100")  # a search needs a model, but uses it for pooled tables only, and there are none here


@dataclass(frozen=True)
class Sent:
    """The traffic of a plan.

    Attributes:
        bytes_between: bytes between hosts, over all devices and both passes.
        communication_ms: communication time, the slowest device of each pass summed.
        bound_ms: least communication time of any choice of the strategy's tiers; None for a strategy without tiers.
        plans_bound_ms: least communication time of any plan of the task; None for a strategy without tiers.
        hot_rows: number of rows on all devices.
        warm_rows: number of rows on several devices, but not all.
        search_s: seconds of the search.
    """

    bytes_between: float
    communication_ms: float
    bound_ms: float | None
    plans_bound_ms: float | None
    hot_rows: int
    warm_rows: int
    search_s: float


def model(seed: int, tables: int, skews: tuple[float, float], *, rows: tuple[float, float] = (1e6, 3e7)) -> list[Table]:
    """Random sequence tables: rows and mean lengths (50 to 1,000) log-uniform, dims 32, 64 or 128, Zipf exponents uniform in `skews`."""
    rng = np.random.default_rng(seed)
    drawn = []
    for index in range(tables):
        count = int(np.exp(rng.uniform(*np.log(rows))))
        length = round(float(np.exp(rng.uniform(np.log(50), np.log(1000)))))
        profile = AccessProfile.zipf(count, float(rng.uniform(*skews)))
        drawn.append(Table(f"sequence_{index}", count, int(rng.choice([32, 64, 128])), length, False, profile))
    return drawn


def cluster(
    hosts: int,
    *,
    near: int = 8,
    inside: str = "450 GB/s",
    between: str = "50 GB/s",
    waits: tuple[float, float] = LATENCY,
) -> Topology:
    """A topology of hosts with `near` devices each and ample memory."""
    return Topology(hosts, near, "h100", "1 PB", inside, between, *waits)


def task_of(
    tables: Sequence[Table], topology: Topology, *, optimizer: Optimizer = "rowwise_adagrad", batch: int = BATCH
) -> Task:
    """A task with `batch` samples per device."""
    return Task(tables, topology, batch * topology.devices, optimizer=optimizer)


def with_memory(task: Task, *factors: float) -> list[Task]:
    """Copies of the task, one for each factor: a device holds that multiple of a row-wise plan's rows, and the plan's buffers."""
    account = memory_account(task, strategy_named("row_wise").search(task, _MODEL, seed=0, deadline=None).shards)
    rows, most = (account.weights + account.optimizer).max(), account.total.max()
    memories = [int(most + (factor - 1) * rows) for factor in factors]
    return [replace(task, topology=replace(task.topology, memory=memory)) for memory in memories]


def sent(task: Task, strategy: str) -> Sent | None:
    """Plan by a strategy and count the plan's traffic; None if no plan fits the memory."""
    start = time.perf_counter()
    try:
        shards, bound, plans_bound = _planned(task, strategy)
    except InfeasibleTask:
        return None
    seconds = time.perf_counter() - start
    check_memory(task, shards)
    between = sum(float(flow.sent[INTER].sum()) for flow in traffic_by_kind(task, shards).values())
    ms = sum(float(of_pass.max()) for of_pass in communication_ms(task, shards))
    hot, warm = _replicated_rows(shards, task.topology.devices)
    return Sent(between, ms, bound, plans_bound, hot, warm, seconds)


def _planned(task: Task, name: str) -> tuple[Sequence[Shard], float | None, float | None]:
    """Shards and both bounds of a strategy's plan. FlexShard strategies go through `tier_plan`, as a plan holds the second bound only."""
    strategy = strategy_named(name)
    if isinstance(strategy, FlexShard):
        tiered = tier_plan(task, tiers=strategy.tiers)
        return tiered.shards, tiered.bound_ms, tiered.plans_bound_ms
    return strategy.search(task, _MODEL, seed=0, deadline=None).shards, None, None


def _replicated_rows(shards: Sequence[Shard], devices: int) -> tuple[int, int]:
    """Numbers of rows on all devices and on several; assumes that sequence tables are not cut into columns."""
    hot = sum(shard.row_count for shard in shards if len(shard.devices) == devices)
    warm = sum(shard.row_count for shard in shards if 1 < len(shard.devices) < devices)
    return hot, warm


ONE_TABLE, MODELS, CLUSTERS, SWEEP = "one table", "models", "clusters", "sweep"
EVERY, PER_DEVICE, PER_HOST = EXCHANGES
SKEWS = (0.8, 0.9, 1.0, 1.1, 1.15, 1.2, 1.3)
SHAPES = {"Zipf 0.8-1.3": (0.8, 1.3), "Zipf 1.1-1.3": (1.1, 1.3)}
FACTORS = (1.1, 1.25, 1.5)
CLUSTER_FACTOR = 1.25
SWEEP_SKEWS, SWEEP_BATCHES, SWEEP_GBITS = (0.8, 1.0, 1.2), (4, 16, 64, 256, 1024, 4096), (10, 100, 400)
LINES = {
    "row_wise": ("row_wise", EVERY),
    "two_tiers": ("two_tiers", EVERY),
    "flexshard": ("flexshard", EVERY),
    "row_wise, distinct per host": ("row_wise", PER_HOST),
    "flexshard, distinct per device": ("flexshard", PER_DEVICE),
}
"""Strategies and exchanges of the part on clusters, by their names in pictures."""
SWEPT = (
    ("row_wise", PER_HOST), ("flexshard", PER_HOST), ("row_wise", EVERY), ("two_tiers", EVERY), ("flexshard", EVERY),
)  # fmt: skip
"""Strategies and exchanges of the sweep."""
