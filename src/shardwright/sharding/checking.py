"""Check that a plan is valid for its task: tiling, devices, memory and constraints, for every sharding type.

One sweep over the row cuts checks that blocks tile a table: O(n log n) comparisons for n blocks.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Sequence
from itertools import combinations, pairwise

from shardwright.errors import InvalidPlan
from shardwright.sharding.memory import memory_account
from shardwright.sharding.shard import Shard, dealt_ranges, sharding_type_of
from shardwright.task.constraints import TableConstraint
from shardwright.task.quantities import format_bytes
from shardwright.task.table import Table
from shardwright.task.task import Task
from shardwright.task.topology import Topology


def check_tiling(table: Table, shards: Sequence[Shard]) -> None:
    """Check that the blocks lie inside the table, do not overlap, and leave nothing out.

    Raises:
        InvalidPlan: a block breaks one of these rules; the message names the table and the blocks.
    """
    if not shards:
        raise InvalidPlan(f"table '{table.name}' is missing from the plan; every table must be tiled exactly")
    if len({shard.row_order for shard in shards}) > 1:
        raise InvalidPlan(
            f"table '{table.name}': its shards mix row orders; all must count rows by id, or all by hotness"
        )
    for shard in shards:
        if shard.rows[1] > table.rows or shard.columns[1] > table.dim:
            raise InvalidPlan(f"{_block(shard)} reaches beyond the table's {table.rows} rows × {table.dim} columns")
    _check_disjoint(shards)
    missing = table.rows * table.dim - sum(shard.area for shard in shards)
    if missing:
        raise InvalidPlan(
            f"table '{table.name}': {missing} of its {table.rows * table.dim} elements lie in no shard; blocks must tile the table"
        )
    _check_tiers(table, shards)


def _check_tiers(table: Table, shards: Sequence[Shard]) -> None:
    """Check that the blocks of each tier fill it alone, are cut at the same rows in all columns, and differ by one row at most.

    The tiling ensures that blocks fill a tier, once no other block reaches into it.
    """
    tiers = sorted({shard.tier for shard in shards if shard.tier is not None})
    for first, second in pairwise(tiers):
        if second[0] < first[1]:
            raise InvalidPlan(
                f"table '{table.name}': its tiers {list(first)} and {list(second)} overlap; a row belongs to one tier"
            )
    for start, stop in tiers:
        inside = [shard for shard in shards if start < shard.rows[1] and shard.rows[0] < stop]
        alien = next((shard for shard in inside if shard.tier != (start, stop)), None)
        if alien is not None:
            raise InvalidPlan(
                f"{_block(alien)} overlaps the tier [{start}, {stop}) but is not part of it; set its tier to [{start}, {stop})"
            )
        row_ranges = {shard.rows for shard in inside}
        if row_ranges != set(dealt_ranges((start, stop), len(row_ranges))):
            raise InvalidPlan(
                f"table '{table.name}': the {len(row_ranges)} row ranges of its tier [{start}, {stop}) must differ by one row at most, "
                f"the larger ones first, and be the same in all columns; found {sorted(row_ranges)[:4]}"
            )


def _check_disjoint(shards: Sequence[Shard]) -> None:
    """Sweep over the rows. The blocks alive are kept sorted by first column, so only neighbours need comparing."""
    order = sorted(range(len(shards)), key=lambda i: shards[i].rows[0])
    ending = sorted(range(len(shards)), key=lambda i: shards[i].rows[1])
    alive: list[tuple[int, int]] = []  # (first column, index of the shard)
    finished = 0
    for index in order:
        shard = shards[index]
        while shards[ending[finished]].rows[1] <= shard.rows[0]:
            gone = ending[finished]
            alive.pop(bisect_left(alive, (shards[gone].columns[0], gone)))
            finished += 1
        place = bisect_left(alive, (shard.columns[0], index))
        for _, other in alive[max(place - 1, 0) : place + 1]:
            if shard.overlap(shards[other]):
                raise InvalidPlan(
                    f"{_block(shard)} overlaps {_block(shards[other])}; blocks of a table must not overlap"
                )
        insort(alive, (shard.columns[0], index))


def _block(shard: Shard) -> str:
    rows, columns = shard.rows, shard.columns
    return f"table '{shard.table}': block rows [{rows[0]}, {rows[1]}) × columns [{columns[0]}, {columns[1]})"


def shards_by_table(task: Task, shards: Sequence[Shard]) -> dict[str, list[Shard]]:
    """The shards of every table of the task, in the task's order.

    Raises:
        InvalidPlan: a shard belongs to no table of the task.
    """
    groups: dict[str, list[Shard]] = {table.name: [] for table in task.tables}
    for shard in shards:
        if shard.table not in groups:
            raise InvalidPlan(
                f"the plan holds table '{shard.table}', which the task does not have; plan this task anew"
            )
        groups[shard.table].append(shard)
    return groups


def check_plan(task: Task, shards: Sequence[Shard]) -> None:
    """Check every rule a plan must keep.

    Raises:
        InvalidPlan: a rule is broken; the message names it, with the numbers.
    """
    groups = shards_by_table(task, shards)
    for table in task.tables:
        check_tiling(table, groups[table.name])
    check_devices(task, shards)
    check_memory(task, shards)
    check_constraints(task, groups)


def check_devices(task: Task, shards: Sequence[Shard]) -> None:
    """Check that every rank exists."""
    for shard in shards:
        if shard.devices[-1] >= task.topology.devices:
            raise InvalidPlan(
                f"table '{shard.table}' has a shard on rank {shard.devices[-1]}; the topology has ranks 0 to {task.topology.devices - 1}"
            )


def check_memory(task: Task, shards: Sequence[Shard]) -> None:
    """Check that no device holds more than its memory."""
    used = memory_account(task, shards).total
    for rank, limit in enumerate(task.topology.memory_bytes):
        if used[rank] > limit:
            raise InvalidPlan(
                f"rank {rank} needs {format_bytes(used[rank])} ({used[rank]} bytes) and has {format_bytes(limit)} ({limit} bytes); "
                "no device may exceed its memory"
            )


def check_constraints(task: Task, groups: dict[str, list[Shard]]) -> None:
    """Check the task's constraints against the shards of each table."""
    held = {name: {rank for shard in shards for rank in shard.devices} for name, shards in groups.items()}
    for name, limits in task.constraints.tables.items():
        kind = sharding_type_of(groups[name], task.table_by_name[name], task.topology)
        if not limits.allows(kind):
            raise InvalidPlan(f"table '{name}' is sharded {kind}; allowed are {', '.join(limits.sharding_types or ())}")
        if limits.devices is not None and not held[name] <= set(limits.devices):
            raise InvalidPlan(
                f"table '{name}' lies on ranks {sorted(held[name])}; it is pinned to {sorted(limits.devices)}"
            )
        if limits.max_shards is not None and len(groups[name]) > limits.max_shards:
            raise InvalidPlan(f"table '{name}' has {len(groups[name])} shards; at most {limits.max_shards} are allowed")
        _check_blocks(task.table_by_name[name], limits, groups[name], task.topology)
    for group in task.constraints.colocated_groups():
        if len({frozenset(held[name]) for name in group}) > 1:
            raise InvalidPlan(f"tables {', '.join(sorted(group))} are to be colocated but lie on different devices")
    _check_apart(task, held)


def _check_blocks(table: Table, limits: TableConstraint, shards: Sequence[Shard], topology: Topology) -> None:
    narrowest = min(shard.dim for shard in shards)
    if limits.min_columns is not None and narrowest < min(limits.min_columns, table.dim):
        raise InvalidPlan(
            f"table '{table.name}' has a block of {narrowest} columns; blocks must have at least {limits.min_columns}"
        )
    widest = max((shard.dim for shard in shards if shard.dim < table.dim), default=0)
    if limits.max_columns is not None and widest > limits.max_columns:
        raise InvalidPlan(
            f"table '{table.name}' has a block of {widest} columns; blocks must have at most {limits.max_columns}"
        )
    wide = limits.column_multiple
    odd = next((shard for shard in shards if wide is not None and shard.dim < table.dim and shard.dim % wide), None)
    if odd is not None:
        raise InvalidPlan(
            f"table '{table.name}' has a block of {odd.dim} columns; the columns of every block must be a multiple of {wide}"
        )
    widths = sorted({shard.dim for shard in shards})
    if limits.equal_columns and len(widths) > 1:
        raise InvalidPlan(
            f"table '{table.name}' has blocks of {widths[0]} and of {widths[-1]} columns; all of its column blocks must have one width"
        )
    if not limits.equal_rows or all(shard.row_count == table.rows for shard in shards):
        return
    by_columns: dict[tuple[int, int], list[Shard]] = {}
    for shard in shards:
        by_columns.setdefault(shard.columns, []).append(shard)
    for blocks in by_columns.values():
        ranks = {shard.devices for shard in blocks}
        hosts = {topology.host_of(rank) for (rank, *_) in ranks}
        most = -(-table.rows // topology.devices)
        on_host = -(-table.rows // topology.devices_per_host)
        largest = max(shard.row_count for shard in blocks)
        if len(ranks) < len(blocks) or largest > (on_host if len(hosts) == 1 else most):
            raise InvalidPlan(
                f"table '{table.name}' has a row block of {largest} rows; its row blocks must be equal, one on each device of the cluster "
                f"({most} rows) or of one host ({on_host} rows)"
            )


def _check_apart(task: Task, held: dict[str, set[int]]) -> None:
    for names in task.constraints.apart:
        for first, second in combinations(sorted(set(names)), 2):
            common = held[first] & held[second]
            if common:
                raise InvalidPlan(f"tables {first} and {second} are to be kept apart but share rank {min(common)}")
