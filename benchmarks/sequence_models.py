"""Synthetic models of sequence tables in production shape, strategies on them at equal memory, and what their plans send."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from shardwright.cost import AnalyticModel, traffic
from shardwright.cost.flows import INTER
from shardwright.errors import InfeasibleTask
from shardwright.search import strategy_named
from shardwright.sharding import memory_account
from shardwright.sharding.checking import check_memory
from shardwright.task import AccessProfile, Exchange, Table, Task, Topology

EXCHANGES = {
    "every lookup, whole gradients": Exchange(),
    "distinct per device, cheaper gradients": Exchange("device", "cheaper"),
    "distinct per host, cheaper gradients": Exchange("host", "cheaper"),
}
STRATEGIES = ("row_wise", "table_row_wise", "recshard", "flexshard")
MODEL = AnalyticModel("h100")
BATCH = 4096  # samples of a device
LATENCY = (0.02, 0.04)


@dataclass(frozen=True)
class Sent:
    """What a plan sends: bytes between hosts of all devices, both passes together, and communication ms."""

    bytes: float
    ms: float


def model(seed: int, tables: int, skews: tuple[float, float], *, rows: tuple[float, float] = (1e6, 3e7)) -> list[Table]:
    """Tables with rows and mean lengths (50 to 1,000) log-uniform, dims 32, 64 or 128, Zipf exponents uniform in a range."""
    rng = np.random.default_rng(seed)
    found = []
    for index in range(tables):
        count = int(np.exp(rng.uniform(*np.log(rows))))
        length = round(float(np.exp(rng.uniform(np.log(50), np.log(1000)))))
        profile = AccessProfile.zipf(count, float(rng.uniform(*skews)))
        found.append(Table(f"sequence_{index}", count, int(rng.choice([32, 64, 128])), length, False, profile))
    return found


def cluster(
    hosts: int,
    *,
    near: int = 8,
    inside: str = "450 GB/s",
    between: str = "50 GB/s",
    waits: tuple[float, float] = LATENCY,
) -> Topology:
    """Hosts with plenty of memory."""
    return Topology(hosts, near, "h100", "1 PB", inside, between, *waits)


def task_of(tables: list[Table], topology: Topology, *, optimizer: str = "rowwise_adagrad", batch: int = BATCH) -> Task:
    """A task without limits."""
    return Task(tables, topology, batch * topology.devices, optimizer=optimizer)  # type: ignore[arg-type]


def with_memory(task: Task, *factors: float) -> list[Task]:
    """The task with multiples of the rows of a row-wise plan on each device, and room for the buffers that such a plan needs."""
    account = memory_account(task, strategy_named("row_wise").search(task, MODEL, seed=0, deadline=None).shards)
    rows, most = (account.weights + account.optimizer).max(), account.total.max()
    memories = [int(most + (factor - 1) * rows) for factor in factors]
    return [replace(task, topology=replace(task.topology, memory=memory)) for memory in memories]


def sent(task: Task, strategy: str) -> Sent | None:
    """What a strategy's plan sends; None where it finds none in the memory."""
    try:
        plan = strategy_named(strategy).search(task, MODEL, seed=0, deadline=None)
    except InfeasibleTask:
        return None
    check_memory(task, plan.shards)
    flows = traffic(task, plan.shards)
    passes = (flows.forward, flows.backward)
    between = sum(float(flow.sent[INTER].sum()) for flow in passes)
    return Sent(between, sum(float(flow.milliseconds(task.topology).max()) for flow in passes))


def against(one: Sent | None, base: Sent) -> str:
    """Bytes saved and times as fast, as a cell."""
    if one is None:
        return "does not fit"
    return f"{one.bytes / base.bytes - 1:+.1%} · {base.ms / one.ms:.2f}×"
