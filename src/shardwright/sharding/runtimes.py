"""The runtimes that can train a plan, and the blocks that each of them runs.

- `torchrec`: DistributedModelParallel runs all tables. It knows whole tables, replicas on all ranks, column blocks of one width, and equal
  row blocks on all ranks or on those of one host. It exchanges every looked-up row of a sequence table.
- `shardwright`: `shardwright.runtime` runs all tables, in any blocks: unequal columns, rows on any devices, grids, tiers. Replicas of a
  block lie on the same local ranks of each of their hosts. It trains fp32 and fp16 weights, sends values and gradients of at least two
  bytes, and has no sharding groups.

TorchRec cuts R rows over n ranks into blocks of ceil(R / n); the last ones are shorter or empty. Block i lies on rank i of all ranks
(`row_wise`) or of one host (`table_row_wise`, `grid_shard`). That division also finds a row's rank, so no other row blocks can run.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal, TypeAlias, get_args

from shardwright.errors import InfeasibleTask, InvalidInput, InvalidPlan
from shardwright.sharding.shard import COLUMN_UNIT, Shard
from shardwright.sharding.ways import MOST_COLUMNS, most_columns, within_kernels
from shardwright.task.constraints import SHARDING_TYPES, Constraints, TableConstraint
from shardwright.task.table import Table
from shardwright.task.task import Task
from shardwright.task.topology import VALUE_BYTES, Topology

if TYPE_CHECKING:
    from shardwright.sharding.plan import Plan

Range = tuple[int, int]
_OURS = {
    "grid_shard": "grid",
    "table_column_wise": "column_wise",
}  # our names of TorchRec's sharding types, where they differ
_LEAST_WIRE_BYTES = 2  # of a value or gradient that shardwright.runtime sends


@dataclass(frozen=True)
class Pattern:
    """The sharding of a table in TorchRec's terms.

    Attributes:
        kind: TorchRec's sharding type.
        blocks: rows, columns and rank of each shard in TorchRec's order, with empty ones; no blocks for data_parallel.
    """

    kind: str
    blocks: tuple[tuple[Range, Range, int], ...]


def row_blocks(rows: int, ranks: Sequence[int], columns: Range) -> list[tuple[Range, Range, int]]:
    """Return the row blocks into which TorchRec cuts these columns on these ranks."""
    size = -(-rows // len(ranks))
    cuts = [min(size * index, rows) for index in range(len(ranks) + 1)]
    return [((cuts[index], cuts[index + 1]), columns, rank) for index, rank in enumerate(ranks)]


def pattern_of(shards: Sequence[Shard], table: Table, topology: Topology, types: Sequence[str]) -> Pattern:
    """Return the pattern of the first sharding type that fits the blocks; row blocks may differ by rounding.

    Args:
        shards: all shards of the table, tiling it.
        table: the table.
        topology: the cluster.
        types: TorchRec's sharding types that the table may take.

    Raises:
        InvalidPlan: none of the types fits; the message names the table.
    """
    fitting = patterns_like(shards, table, topology)
    for kind in types:
        if kind in fitting:
            return Pattern(kind, tuple(fitting[kind]))
    if fitting:
        raise InvalidPlan(
            f"table '{table.name}' is sharded {' or '.join(fitting)}; its sharder and constraints allow {', '.join(types)} only: plan anew"
        )
    raise InvalidPlan(
        f"table '{table.name}': TorchRec cannot run its {len(shards)} blocks ({_said(shards)}): it runs whole tables, replicas on all "
        "ranks, column blocks of one width, and equal row blocks on all ranks or on those of one host, on GPUs in blocks of at most "
        f"{MOST_COLUMNS} columns; plan it with equal_rows and equal_columns and without tiers"
    )


def patterns_like(
    shards: Sequence[Shard], table: Table, topology: Topology
) -> dict[str, list[tuple[Range, Range, int]]]:
    """Return every TorchRec sharding type that fits the shards, with its blocks; empty if TorchRec cannot run them."""
    barred = _not_of_torchrec(table, topology)
    everyone = tuple(range(topology.devices))
    most = most_columns(topology.device) or table.dim
    if any(shard.row_order != "id" or shard.dim > most for shard in shards):
        return {}
    patterns: dict[str, list[tuple[Range, Range, int]]] = {}
    if len(shards) == 1 and shards[0].devices == everyone and "data_parallel" not in barred:
        patterns["data_parallel"] = []
    if any(len(shard.devices) > 1 for shard in shards):
        return patterns
    blocks = sorted((shard.columns, shard.rows, shard.devices[0]) for shard in shards)
    as_given = [(rows, columns, rank) for columns, rows, rank in blocks]
    hosts = {topology.host_of(rank) for _, _, rank in as_given}
    if len(shards) == 1:
        patterns["table_wise"] = as_given
    of_one_width = len({stop - start for _, (start, stop), _ in as_given}) == 1
    if of_one_width and all(rows == (0, table.rows) for rows, _, _ in as_given):
        patterns["column_wise"] = as_given
        if len(hosts) == 1:
            patterns["table_column_wise"] = as_given
    whole = (0, table.dim)
    if all(columns == whole for _, columns, _ in as_given) and _equal(as_given, table.rows, everyone):
        patterns["row_wise"] = row_blocks(table.rows, everyone, whole)
    if of_one_width and (grid := _on_hosts(as_given, table, topology)):
        if all(columns == whole for _, columns, _ in as_given):
            patterns["table_row_wise"] = grid
        patterns["grid_shard"] = grid
    return {kind: blocks for kind, blocks in patterns.items() if _OURS.get(kind, kind) not in barred}


def _on_hosts(
    blocks: Sequence[tuple[Range, Range, int]], table: Table, topology: Topology
) -> list[tuple[Range, Range, int]]:
    """Return TorchRec's row blocks on one host for each range of columns; empty if the given blocks do not have this form."""
    per_host, result = topology.devices_per_host, []
    for columns in sorted({columns for _, columns, _ in blocks}):
        of_columns = [block for block in blocks if block[1] == columns]
        host = topology.host_of(of_columns[0][2])
        ranks = tuple(range(host * per_host, (host + 1) * per_host))
        if not _equal(of_columns, table.rows, ranks):
            return []
        result += row_blocks(table.rows, ranks, columns)
    return result


def _equal(blocks: Sequence[tuple[Range, Range, int]], rows: int, ranks: Sequence[int]) -> bool:
    """Whether the blocks are TorchRec's row blocks on these ranks, up to rounding and to the order of ranks.

    If a table has fewer rows than there are ranks, any of the ranks may hold them.
    """
    used = {rank for _, _, rank in blocks}
    largest = max(stop - start for (start, stop), _, _ in blocks)
    return largest <= -(-rows // len(ranks)) and len(used) == len(blocks) and used <= set(ranks)


def _said(shards: Sequence[Shard]) -> str:
    first = shards[0]
    return f"the first: rows {list(first.rows)} by {first.row_order}, columns {list(first.columns)} on ranks {list(first.devices)[:8]}"


Runtime: TypeAlias = Literal["shardwright", "torchrec"]
RunsOn: TypeAlias = Runtime | Literal["auto"]
RUNTIMES: tuple[Runtime, ...] = get_args(Runtime)


def _not_of_torchrec(table: Table, topology: Topology) -> tuple[str, ...]:
    """Our sharding types that TorchRec does not run.

    For sequence tables: rows dealt to a host, and replicas on CPUs (its dense kernel pools). If the dim is no multiple of 4: all but
    replicas, one on each device, since of the kernels that train only the dense one takes such dims.
    """
    odd = table.dim % COLUMN_UNIT != 0 and table.dtype != "int8"
    barred = {"tiered", *(() if table.pooled else ("table_row_wise", "grid"))}
    if odd:
        replicas = ("data_parallel", "table_wise") if topology.devices == 1 else ("data_parallel",)
        barred |= set(SHARDING_TYPES) - set(replicas)
    if not table.pooled and topology.device == "cpu":
        barred |= set(SHARDING_TYPES) if odd else {"data_parallel"}
    return tuple(kind for kind in SHARDING_TYPES if kind in barred)


def runtimes_of(plan: Plan) -> tuple[str, ...]:
    """Return the runtimes that can run every table of a plan."""
    runs = {"shardwright": _shardwright_runs(plan), "torchrec": _torchrec_runs(plan)}
    return tuple(runtime for runtime in RUNTIMES if runs[runtime])


def _shardwright_runs(plan: Plan) -> bool:
    if _not_of_shardwright(plan.task) is not None:
        return False
    topology = plan.task.topology
    per_host, most = topology.devices_per_host, most_columns(topology.device)
    if most is not None and any(shard.dim > most for shard in plan.shards):
        return False
    for shard in plan.shards:
        hosts, local = {rank // per_host for rank in shard.devices}, {rank % per_host for rank in shard.devices}
        if len(shard.devices) != len(hosts) * len(local):
            return False
    return True


def _not_of_shardwright(task: Task) -> str | None:
    """Why `shardwright.runtime` can train no plan of the task, with the remedy; None if it can."""
    if task.groups is not None:
        return (
            "sharding groups need TorchRec's DMPCollection; shardwright.runtime has none: plan for runs_on 'torchrec'"
        )
    for table in task.tables:
        if table.dtype == "int8":
            return f"table '{table.name}' has int8 weights; shardwright.runtime trains fp32 and fp16 ones: state one of these as its dtype"
    for name in ("values", "gradients"):
        wire = getattr(task.exchange, name)
        if VALUE_BYTES[wire] < _LEAST_WIRE_BYTES:
            return f"exchange: {name} is {wire}; shardwright.runtime sends fp32, fp16 or bf16: state one, or plan for runs_on 'torchrec'"
    return None


def _torchrec_runs(plan: Plan) -> bool:
    task = plan.task
    return exchanges_otherwise(task) is None and all(
        patterns_like(plan.by_table[table.name], table, task.topology) for table in task.tables
    )


def preferred_runtimes(
    task: Task, runs_on: RunsOn | None, like: Plan | None = None, *, tiers: bool = False
) -> tuple[Runtime | None, ...]:
    """Return the runtimes to plan for, in this order: each is asked only if the one before has no plan.

    Args:
        task: the task.
        runs_on: one runtime, None for any blocks, or "auto", which prefers TorchRec unless tiers are asked for or `like` runs on
            `shardwright.runtime` only, and leaves out a runtime that trains no such task.
        like: a plan in use, whose runtime is preferred.
        tiers: whether tiers are asked for; a constraint that names them asks too.

    Raises:
        InvalidInput: there is no such runtime.
    """
    if runs_on is None or runs_on in RUNTIMES:
        return (runs_on,)
    if runs_on != "auto":
        raise InvalidInput(f"runs_on is {runs_on!r}, must be auto, {' or '.join(RUNTIMES)}")
    asks_for_tiers = tiers or any(
        "tiered" in (limits.sharding_types or ()) for limits in task.constraints.tables.values()
    )
    of_ours_only = like is not None and training_runtime(like) == "shardwright"
    order: tuple[Runtime, ...] = (
        ("shardwright", "torchrec") if asks_for_tiers or of_ours_only else ("torchrec", "shardwright")
    )
    return tuple(runtime for runtime in order if _takes(runtime, task)) or order[:1]


def _takes(runtime: Runtime, task: Task) -> bool:
    """Whether a runtime trains tasks like this one, if they have enough memory."""
    try:
        task_for(task, runtime)
    except InfeasibleTask:
        return False
    return True


def training_runtime(plan: Plan) -> Runtime:
    """Return what trains a plan: `shardwright.runtime` if TorchRec cannot."""
    return "shardwright" if plan.runs_on == ("shardwright",) else "torchrec"


def other_runtime(plan: Plan) -> Runtime:
    """Return the other one of TorchRec and `shardwright.runtime`."""
    return "shardwright" if "torchrec" in plan.runs_on else "torchrec"


def task_for(task: Task, runtime: Runtime | None) -> Task:
    """Return the task with the limits of a runtime added to its constraints; None adds nothing.

    Raises:
        InfeasibleTask: the constraints of a table leave nothing that the runtime can run.
    """
    if runtime is None:
        return task
    if runtime == "shardwright" and (why_not := _not_of_shardwright(task)) is not None:
        raise InfeasibleTask(why_not)
    if runtime == "torchrec" and (otherwise := exchanges_otherwise(task)) is not None:
        raise InfeasibleTask(f"{otherwise}: leave exchange out, or plan for runs_on 'shardwright'")
    given = task.constraints
    limits = {table.name: _limited(table, given.of(table.name), runtime, task.topology) for table in task.tables}
    changed = {name: limit for name, limit in limits.items() if limit is not given.of(name)}
    return (
        replace(task, constraints=Constraints({**given.tables, **changed}, given.colocate, given.apart))
        if changed
        else task
    )


def _limited(table: Table, limits: TableConstraint, runtime: Runtime, topology: Topology) -> TableConstraint:
    """Return a table's constraint with the limits of a runtime and of its kernels added; the same object if they add nothing."""
    if runtime == "shardwright":
        return within_kernels(table, limits, topology.device)
    barred = _not_of_torchrec(table, topology)
    allowed = tuple(kind for kind in limits.sharding_types or SHARDING_TYPES if kind not in barred)
    if not allowed and limits.sharding_types is None:
        raise InfeasibleTask(
            f"sequence table '{table.name}' has {table.dim} columns, and TorchRec trains none on CPUs whose dim is no multiple of 4: "
            "change the dim, or plan for runs_on 'shardwright'"
        )
    if not allowed:
        raise InfeasibleTask(
            f"table '{table.name}' allows only {', '.join(limits.sharding_types or ())}, which TorchRec does not run for it: allow "
            "another sharding type, or plan for runs_on 'shardwright'"
        )
    limits = replace(limits, sharding_types=allowed, equal_rows=True, equal_columns=True)
    return within_kernels(table, limits, topology.device)


def on_their_sides(task: Task, start: Plan) -> Task:
    """Return the task with constraints that keep the plan's replicated tables replicated and all its other tables without replicas.

    TorchRec trains replicas with the dense optimizer, and does not load one optimizer's state from a checkpoint into the other: a table
    that changes sides loses its state. With SGD, which has no state, or on a single device the task is returned unchanged.
    """
    limits = {}
    if task.optimizer != "sgd" and task.topology.devices > 1:
        for name, shards in start.by_table.items():
            own = task.constraints.of(name)
            replicated = any(len(shard.devices) > 1 for shard in shards)
            kinds = tuple(kind for kind in SHARDING_TYPES if own.allows(kind))
            side = tuple(kind for kind in kinds if (kind == "data_parallel") == replicated)
            if name in task.table_by_name and side and side != kinds:
                limits[name] = replace(own, sharding_types=side)
    given = task.constraints
    return (
        replace(task, constraints=Constraints({**given.tables, **limits}, given.colocate, given.apart))
        if limits
        else task
    )


def crossing(older: Plan, newer: Plan) -> list[str]:
    """Return the tables that are replicated in only one of two plans; TorchRec loads no optimizer state for them."""
    if newer.task.optimizer == "sgd":
        return []
    common = [name for name in newer.by_table if name in older.by_table]
    sides = [
        {name: any(len(shard.devices) > 1 for shard in plan.by_table[name]) for name in common}
        for plan in (older, newer)
    ]
    return [name for name in common if sides[0][name] != sides[1][name]]


def exchanges_otherwise(task: Task) -> str | None:
    """How the task's exchange differs from TorchRec's; None if it does not."""
    exchange = task.exchange
    if exchange.collectives == "shared":
        return "exchange has collectives 'shared', and TorchRec calls collectives for each sharding type"
    if exchange.as_torchrec or all(table.pooled for table in task.tables):
        return None
    return (
        f"exchange has deduplicate '{exchange.deduplicate}' and replica_gradients '{exchange.replica_gradients}', and "
        "TorchRec sends every looked-up row and whole gradients"
    )


def as_torchrec_exchanges(task: Task) -> Task:
    """Return the task with TorchRec's collectives, rows and gradients; types on the wire, pipeline and dense layers stay."""
    if exchanges_otherwise(task) is None:
        return task
    exchange = replace(task.exchange, deduplicate="none", replica_gradients="whole", collectives="by_type")
    return replace(task, exchange=exchange)
