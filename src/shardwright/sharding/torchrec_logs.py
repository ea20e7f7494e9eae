"""The task and the plan of a table of statistics in a log of TorchRec: for a review of a plan that nobody saved.

The log lacks links, hosts, access statistics, the pipeline and the dense layers, and which of a table's blocks lies on which of its ranks.
`LoggedPlan.assumed` lists the assumptions made instead; a task file, a topology or an exchange replaces them.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from shardwright.errors import InvalidInput, counted
from shardwright.sharding.memory import memory_account
from shardwright.sharding.plan import Plan
from shardwright.sharding.stats_table import LoggedTable, StatsTable
from shardwright.sharding.torchrec_files import FORMAT, plan_from_sharding_plan
from shardwright.task.quantities import format_bytes
from shardwright.task.table import Dtype, Table
from shardwright.task.task import Task
from shardwright.task.topology import PRESETS, Exchange, Topology

_KINDS = {
    "TW": "table_wise",
    "CW": "column_wise",
    "RW": "row_wise",
    "DP": "data_parallel",
    "TWRW": "table_row_wise",
    "TWCW": "table_column_wise",
    "GS": "grid_shard",
}
_USUAL, _LARGER = "h100-8", ("h200-8", "b200-8", "gb300-nvl72")
_PER_HOST = 8
_ABOUT = 0.9  # this share of a card's memory is there, whether users state it in GiB or in GB
_TELLING = 100e6  # least bytes of a table whose storage shows the type of its weights
_NO_LOOKUPS = 0.001  # the log rounds to three digits, and a table has lookups


@dataclass(frozen=True)
class LoggedPlan:
    """A plan from a log.

    Attributes:
        plan: the plan of its task; not scored.
        document: the plan as `save_sharding_plan` writes it.
        assumed: assumptions that replace information missing from the log, each in a few words.
    """

    plan: Plan
    document: dict[str, Any]
    assumed: tuple[str, ...]


def plan_of_stats(
    stats: StatsTable,
    where: str,
    *,
    task: Task | None = None,
    topology: str | None = None,
    exchange: Exchange | None = None,
) -> LoggedPlan:
    """Make the task and the plan of a table of statistics.

    Args:
        stats: the table's content.
        where: the log's path, for messages.
        task: the tables and the cluster; by default they are made from the log.
        topology: preset whose devices and links the cluster has, if it is made from the log.
        exchange: pipeline, dense layers and types on the wire, if the task is made from the log; by default nothing is hidden.

    Raises:
        InvalidInput: a row's ranks do not fit its sharding type, the preset is unknown, or the task lacks a table of the log.
        InvalidPlan: the task has tables that the log lacks.
    """
    document = _document(stats, where)
    if task is not None:
        _check_size(stats, task, where)
        return LoggedPlan(plan_from_sharding_plan(document, task, where), document, (_ORDER,))
    cluster, assumed = _topology(stats, topology)
    dtype, names = _dtype(stats), _short(stats)
    tables = [_table(row, names[row.name], dtype) for row in stats.tables]
    exchange = exchange or Exchange()
    made = Task(tables, cluster, stats.batch_size * stats.ranks, exchange=exchange)
    plan = plan_from_sharding_plan(document, made, where)
    plan, more = _with_room(plan)
    moved = [row.name for row in stats.tables if "uvm" in row.kernel or "key_value" in row.kernel]
    off = (f"{len(moved)} tables whose kernels keep rows off the device count as if they lay on it",) if moved else ()
    weights = f"{dtype} weights and optimizer {made.optimizer}"
    accesses = "accesses are uniform over the rows"
    return LoggedPlan(plan, document, (*assumed, *more, weights, accesses, *_overlap(exchange), _ORDER, *off))


_ORDER = "the blocks of a table lie on its ranks in ascending order"


def _check_size(stats: StatsTable, task: Task, where: str) -> None:
    if task.topology.devices != stats.ranks:
        raise InvalidInput(
            f"{where}: the logged plan has {stats.ranks} ranks, the task's cluster {task.topology.devices} devices; name the task that "
            "this plan was made for"
        )
    names = _short(stats)
    for row in stats.tables:
        table = task.table_by_name.get(row.name) or task.table_by_name.get(names[row.name])
        if table is None:
            raise InvalidInput(
                f"{where}: line {row.line}: the task has no table '{names[row.name]}'; it has {counted(len(task.tables), 'table')}, the "
                f"logged plan {len(stats.tables)}: name the task that this plan was made for"
            )
        if (table.rows, table.dim) != (row.rows, row.dim):
            raise InvalidInput(
                f"{where}: line {row.line}: table '{row.name}' has {row.rows} rows of {row.dim} columns, the task's table '{table.name}' "
                f"{table.rows} of {table.dim}; name the task that this plan was made for"
            )


def _overlap(exchange: Exchange) -> tuple[str, ...]:
    """The assumption about hidden traffic; none if a pipeline and dense layers are stated."""
    if exchange.batches == 1:
        return ("there is no pipeline, and no traffic is hidden",)
    return () if exchange.hidden.total_ms else ("no dense layers hide traffic",)


def _short(stats: StatsTable) -> dict[str, str]:
    """Names of the tables without their modules, unless two modules have a table of the same name."""
    counts = Counter(row.name.rpartition(".")[2] for row in stats.tables)
    last = {row.name: row.name.rpartition(".")[2] for row in stats.tables}
    return {name: short if counts[short] == 1 else name for name, short in last.items()}


def _table(row: LoggedTable, name: str, dtype: Dtype) -> Table:
    lookups = [max(each, _NO_LOOKUPS) for each in row.lookups]
    return Table(name, row.rows, row.dim, lookups, row.pooled, dtype=dtype, weighted=row.weighted)


def _dtype(stats: StatsTable) -> Dtype:
    """Type of the weights, inferred from the storage of the largest table, which holds little besides weights.

    The log rounds small tables to MB.
    """
    known = [(row.rows * row.dim, row.storage) for row in stats.tables if row.storage]
    elements, storage = max(known, default=(0, 0.0))
    if storage < _TELLING:
        return "fp32"
    least = storage / elements
    return "int8" if least < 1.9 else "fp16" if least < 3.9 else "fp32"


def _topology(stats: StatsTable, preset: str | None) -> tuple[Topology, list[str]]:
    """The cluster, and the assumptions about it."""
    chosen = preset or next(
        (name for name in (_USUAL, *_LARGER) if _card(name) >= (stats.card or 0.0) * _ABOUT), _LARGER[-1]
    )
    base = Topology.preset(chosen)
    per_host = _per_host(stats, base.devices_per_host if preset else _PER_HOST)
    memory = base.memory_bytes[0] if stats.memory is None else max(1, round(stats.memory - stats.others))
    cluster = replace(base, hosts=stats.ranks // per_host, devices_per_host=per_host, memory=memory)
    assumed = [f"{counted(cluster.hosts, 'host')} of {per_host} {base.device} with the links of preset {chosen}"]
    if stats.memory is None:
        assumed.append(f"{format_bytes(memory)} of memory for tables on each device")
    return cluster, assumed


def _card(preset: str) -> float:
    return PRESETS[preset].memory_bytes[0] / 0.85


def _per_host(stats: StatsTable, usual: int) -> int:
    """Devices of a host.

    This is the number of ranks of a table spread over one host; without such a table, the largest divisor of the ranks up to the usual
    number.
    """
    spread = [len(row.ranks) // _column_blocks(row) for row in stats.tables if row.kind in ("TWRW", "GS")]
    if spread and stats.ranks % max(spread) == 0:
        return max(spread)
    return max(count for count in range(1, min(usual, stats.ranks) + 1) if stats.ranks % count == 0)


def _with_room(plan: Plan) -> tuple[Plan, list[str]]:
    """The plan, on devices with room for it by our memory account, and whether they need more memory than the log prints."""
    task = plan.task
    used = int(memory_account(task, plan.shards).total.max())
    if used <= min(task.topology.memory_bytes):
        return plan, []
    cluster = replace(task.topology, memory=used)
    roomy = replace(task, topology=cluster)
    text = f"{format_bytes(used)} of memory on each device, which the logged plan needs by our account"
    return Plan(roomy, plan.shards, plan.strategy), [text]


def _document(stats: StatsTable, where: str) -> dict[str, Any]:
    """The plan as TorchRec saves it."""
    per_host = _per_host(stats, _PER_HOST)
    modules: dict[str, dict[str, Any]] = {}
    for row in stats.tables:
        module, _, name = row.name.rpartition(".")
        if row.kind not in _KINDS:
            raise InvalidInput(
                f"{where}: line {row.line}: table '{row.name}' has sharding type '{row.kind}', must be one of {', '.join(_KINDS)}"
            )
        content: dict[str, Any] = {
            "sharding_type": _KINDS[row.kind],
            "compute_kernel": row.kernel,
            "ranks": list(row.ranks),
        }
        content["shards"] = (
            None
            if row.kind == "DP"
            else [
                {
                    "offsets": [first, column],
                    "sizes": [rows, columns],
                    "placement": f"rank:{rank}/cuda:{rank % per_host}",
                }
                for first, rows, column, columns, rank in _blocks(row, per_host, where)
            ]
        )
        modules.setdefault(module, {})[name] = content
    return {"format": FORMAT, "sharding_plan": modules}


def _column_blocks(row: LoggedTable) -> int:
    return -(-row.dim // row.block_dim) if row.block_dim else 1


def _blocks(row: LoggedTable, per_host: int, where: str) -> list[tuple[int, int, int, int, int]]:
    """First row, rows, first column, columns and rank of each block, cut as TorchRec does: equal blocks, the last one with the rest.

    Raises:
        InvalidInput: the numbers of ranks and blocks differ.
    """
    ranks = row.ranks
    across = {"CW": len(ranks), "TWCW": len(ranks), "GS": _column_blocks(row)}.get(row.kind, 1)
    along = len(ranks) // across if row.kind in ("RW", "TWRW", "GS") else 1
    width = row.block_dim if row.block_dim and row.kind in ("CW", "TWCW", "GS") else -(-row.dim // across)
    if across * along != len(ranks) or -(-row.dim // width) != across:
        raise InvalidInput(
            f"{where}: line {row.line}: table '{row.name}' is {_KINDS[row.kind]} in {across * along} blocks, but lies on "
            f"{len(ranks)} ranks; name the log as it was written"
        )
    if row.kind == "GS":  # the log sorts ranks, so that each host's come together
        ordered = np.array(ranks)
        ranks = tuple(
            rank
            for host in np.unique(ordered // along)
            for rank in np.sort(ordered[ordered // along == host]).reshape(along, -1).T.ravel().tolist()
        )
    height = -(-row.rows // along)
    cuts = [(min(index * height, row.rows), min((index + 1) * height, row.rows)) for index in range(along)]
    return [
        (first, until - first, block * width, min(width, row.dim - block * width), ranks[block * along + index])
        for block in range(across)
        for index, (first, until) in enumerate(cuts)
    ]
