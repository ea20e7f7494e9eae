"""Small tasks and cost models, drawn by number."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np

from shardwright.cost import PublishedModel, load_model
from shardwright.cost.files import bundled_models
from shardwright.cost.for_task import for_task
from shardwright.cost.model import CostModel, Pricing
from shardwright.errors import InvalidInput
from shardwright.sharding.memory import shard_bytes
from shardwright.sharding.shard import Shard
from shardwright.task import AccessProfile, Constraints, Table, TableConstraint, Task, Topology
from shardwright.task.constraints import SHARDING_TYPES
from shardwright.task.links import COLLECTIVES, Links, LinkSpeed
from shardwright.task.sharding_groups import ShardingGroups
from shardwright.task.topology import DenseTime, Exchange
from shardwright.testing.model import SimpleCostModel
from tests.strategies import faster_alone
from tests.wide import GatedModel, wide_model

CLUSTERS = ((1, 1), (1, 2), (2, 1), (1, 3), (3, 1), (1, 4), (2, 2), (4, 1))
ROWS = (1, 2, 3, 5, 7, 9, 17, 40, 200, 1023, 1024, 1030, 3000, 50_000)
DIMS = (1, 2, 3, 4, 4, 8, 8, 12, 16, 64, 128)
MOST_COLUMNS = 16
COUNTED = 6  # of the sharding types, tiers are not among the ways that the bound speaks of


class Drawn(SimpleCostModel):
    """A random convex head over the simple model's encodings, which may bend."""

    def __init__(self, seed: int, head: Pricing, power: np.ndarray) -> None:
        object.__setattr__(self, "name", f"testing/drawn{seed}")
        object.__setattr__(self, "_head", head)
        object.__setattr__(self, "_power", power)

    def encode_arrays(self, works):
        return super().encode_arrays(works) ** self._power

    @property
    def pricing(self) -> Pricing:
        return self._head


def drawn_model(seed: int) -> CostModel:
    """Many kinks; times that fall with some of the sums; encodings that are not linear in the columns; fixed times of devices."""
    rng = np.random.default_rng([seed, 5])
    units, falling = int(rng.integers(1, 12)), bool(rng.integers(2))
    power = rng.uniform(0.6, 1.4, 3) if rng.integers(2) else np.ones(3)
    linear = rng.normal(0.3, 0.5, (2, 3)) if falling else np.abs(rng.normal(1, 0.5, (2, 3)))
    once = rng.random(2) * 0.1 * rng.integers(2)
    bias = rng.normal(0, 0.3, 2) if falling else rng.random(2) * 0.01
    head = Pricing(rng.normal(0, 1, (units, 3)), rng.normal(0, 0.5, units), rng.random((2, units)), linear, bias, once)
    return Drawn(seed, head, power)


@cache
def bundled(device: str) -> CostModel:
    """The learned model of a kind of device."""
    return load_model(bundled_models()[device])


def model_of(number: int) -> CostModel:
    """One of the kinds of models: plain, drawn, with gates, learned on a CPU or a GPU, published."""
    kind = number % 10
    if kind == 0:
        return SimpleCostModel()
    if kind == 1:
        return GatedModel()
    if kind == 2:
        return wide_model()
    if kind == 3:
        return PublishedModel("h100")
    if kind == 4:
        return bundled("h100" if number % 20 < 10 else "cpu")
    return drawn_model(number)


def draw(number: int, seed: int) -> tuple[Task, CostModel, np.random.Generator]:
    """The task and the cost model of a case, and the generator of its samples."""
    rng = np.random.default_rng([seed, number])
    while True:
        try:
            task = _task(rng)
        except InvalidInput:  # constraints that contradict each other
            continue
        task = replace(task, exchange=_exchange(np.random.default_rng([seed, number, 7])))
        faster = np.random.default_rng([seed, number, 8])
        if faster.random() < 0.25:
            task = replace(task, topology=faster_alone(task.topology, 1 + 4 * faster.random()))
        if number % 7 in (3, 5):
            task = _with_own_links(task, np.random.default_rng([seed, number, 9]))
        return task, for_task(model_of(number), task), rng


def _pick(rng: np.random.Generator, values, weights=None):
    return values[int(rng.choice(len(values), p=weights))]


def _task(rng: np.random.Generator) -> Task:
    hosts, near = _pick(rng, CLUSTERS)
    devices = hosts * near
    count = int(rng.choice([1, 2, 3], p=[0.3, 0.45, 0.25]))
    kinds = _pick(rng, [(True,), (False,), (True, False)])
    tables = [_table(rng, f"t{index}", kinds) for index in range(count)]
    speeds = (float(10 ** rng.uniform(4, 11)), float(10 ** rng.uniform(4, 11)))
    latencies = (float(_pick(rng, [0.0, 0.0, 0.02, 1.0])), float(_pick(rng, [0.0, 0.0, 0.02, 1.0])))
    topology = Topology(hosts, near, "cpu", "100 GB", *speeds, *latencies)
    optimizer = _pick(rng, ["sgd", "rowwise_adagrad", "adagrad", "adam"])
    task = Task(tables, topology, int(_pick(rng, [1, 2, 37, 300, 8192])), optimizer)
    if rng.random() < 0.1:
        interval = int(rng.integers(1, 4))
        wide = ShardingGroups(devices, hosts * 2, near, interval, inter_host_allreduce=bool(rng.integers(2)))
        task = replace(task, groups=wide)
    need = sum(shard_bytes(task, Shard.whole(table, 0)) for table in tables)
    share = _pick(rng, [0.4, 0.7, 1.2, 5.0, 5.0])
    memory = [max(1, int(share * need * _pick(rng, [0.5, 1.0, 1.0, rng.random()]))) for _ in range(devices)]
    limits = _constraints(rng, tables, devices) if rng.random() < 0.6 else Constraints()
    for table in tables:
        if table.dim > MOST_COLUMNS:  # else it has too many plans
            of_table = replace(limits.of(table.name), column_multiple=table.dim // 4)
            limits = Constraints({**limits.tables, table.name: of_table}, limits.colocate, limits.apart)
    return replace(task, topology=replace(topology, memory=memory), constraints=limits)


def _exchange(rng: np.random.Generator) -> Exchange:
    """In a quarter of the cases dense layers hide some or all of the traffic."""
    if rng.random() < 0.75:
        return Exchange()
    hidden = [float(_pick(rng, [0.0, 1e-3, 0.1, 3.0, 1e6]) * rng.uniform(0.5, 1.0)) for _ in range(3)]
    return Exchange(pipeline=_pick(rng, ["none", "sparse_dist", "sparse_dist"]), dense_ms=DenseTime(*hidden))


def _with_own_links(task: Task, rng: np.random.Generator) -> Task:
    """The task with links of its own for each collective, with shared collectives, or with both."""
    kind = rng.integers(3)
    if kind > 0:
        task = replace(task, exchange=replace(task.exchange, collectives="shared"))
    if kind == 1:
        return task
    speeds = {
        name: tuple(LinkSpeed(float(rng.random()), float(10 ** rng.uniform(4, 11))) for _ in range(2))
        for name in COLLECTIVES
    }
    return replace(task, topology=replace(task.topology, links=Links(**speeds)))


def _table(rng: np.random.Generator, name: str, kinds: tuple[bool, ...]) -> Table:
    rows = int(_pick(rng, ROWS))
    access = AccessProfile.zipf(rows, float(rng.uniform(0, 2))) if rng.integers(2) else AccessProfile.uniform(rows)
    pooling = float(_pick(rng, [0.05, 1.0, 1.0, 2.5, 20.0, 150.0]))
    dtype = _pick(rng, ["fp32", "fp32", "fp16", "int8"])
    shares = rng.dirichlet(np.full(int(rng.integers(1, 9)), 0.5)).tolist() if rng.random() < 0.2 else ()
    dim, pooled = int(_pick(rng, DIMS)), bool(_pick(rng, kinds))
    return Table(name, rows, dim, pooling, pooled, access, dtype, id_shares=shares)


def _constraints(rng: np.random.Generator, tables: list[Table], devices: int) -> Constraints:
    names = [table.name for table in tables]
    limits = {table.name: _limit(rng, table, devices) for table in tables if rng.random() < 0.7}
    groups = [(tuple(names[:2]),) if len(names) > 1 and rng.random() < 0.2 else () for _ in range(2)]
    result = Constraints(limits, *groups)
    result.check(names, devices)
    return result


def _limit(rng: np.random.Generator, table: Table, devices: int) -> TableConstraint:
    kinds = None
    if rng.random() < 0.7:
        chosen = rng.random(COUNTED) < 0.5
        kinds = tuple(np.array(SHARDING_TYPES[:COUNTED])[chosen].tolist()) or ("row_wise",)
    ranks = tuple(np.flatnonzero(rng.random(devices) < 0.7).tolist()) or (0,)
    equal_columns = bool(rng.random() < 0.3)
    return TableConstraint(
        kinds,
        ranks if rng.random() < 0.2 else None,
        int(rng.integers(2, 5)) if rng.random() < 0.3 else None,
        int(rng.integers(1, table.dim + 2)) if rng.random() < 0.15 else None,
        equal_rows=bool(rng.random() < 0.3),
        column_multiple=int(_pick(rng, [1, 2, 4, 8])) if rng.random() < 0.15 else None,
        equal_columns=equal_columns,
        max_columns=int(rng.integers(1, table.dim + 2)) if equal_columns and rng.random() < 0.3 else None,
    )
