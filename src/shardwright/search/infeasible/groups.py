"""Tables that share their devices, as one: what they need together, and where they may lie."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from shardwright.errors import InfeasibleTask
from shardwright.search.infeasible.needs import Impossible, Need, needs_of
from shardwright.search.infeasible.where import Places, Where, compared
from shardwright.search.units import allowed_devices
from shardwright.task.table import Table
from shardwright.task.task import Task


@dataclass(frozen=True, eq=False)
class Group:
    """Colocated tables, or a single table.

    Attributes:
        tables: their names.
        where: devices they may lie on.
        bytes: what they take on all devices together, at the least.
        fewest: devices they lie on, at the least.
        single: whether all of them lie on one device.
    """

    tables: tuple[str, ...]
    where: Where
    bytes: int
    fewest: int
    single: bool


def groups_of(task: Task) -> list[Group]:
    """All tables in groups.

    Raises:
        InfeasibleTask: a table or a group can lie nowhere.
    """
    places = Places(task)
    colocated = {name: group for group in task.constraints.colocated_groups() for name in group}
    members: dict[object, list[Table]] = {}
    for table in task.tables:
        members.setdefault(colocated.get(table.name, table.name), []).append(table)
    return [_group(task, places, tables) for tables in members.values()]


def _group(task: Task, places: Places, tables: Sequence[Table]) -> Group:
    pinned = [limits for t in tables if (limits := task.constraints.of(t.name)).devices is not None]
    mask = np.ones(task.topology.devices, dtype=bool)
    for limits in pinned:
        mask &= allowed_devices(task, limits)
    where = places.of(mask)
    needs = [_possible(task, table, where) for table in tables]
    names = tuple(table.name for table in tables)
    fewest = [min(need.fewest for need in one) for one in needs]
    most = [max(need.most for need in one) for one in needs]
    if max(fewest) > min(most):
        wide, narrow = names[fewest.index(max(fewest))], names[most.index(min(most))]
        raise InfeasibleTask(
            f"constraints contradict each other: tables {', '.join(names)} are to be colocated, but '{wide}' lies on at least "
            f"{max(fewest)} devices and '{narrow}' on at most {min(most)}; give them the same sharding_types"
        )
    size = sum(min(need.total_bytes for need in one) for one in needs)
    single = min(most) == 1 or where.count == 1
    if single and size > where.memory[0] and len(tables) > 1:
        needed, present = compared(size, where.memory[0])
        raise InfeasibleTask(
            f"tables {', '.join(names)} are to be colocated and lie on one device, where they need {needed} together; the "
            f"largest device they may use has {present}: split the group, allow column_wise or row_wise for all "
            "of them, or use devices with more memory"
        )
    return Group(names, where, size, max(fewest), single)


def _possible(task: Task, table: Table, where: Where) -> list[Need]:
    """The ways of a table whose largest block fits some device."""
    found = needs_of(task, table, where)
    fitting = [
        need
        for need in found
        if isinstance(need, Need) and need.holders <= where.count and need.block_bytes <= where.memory[need.holders - 1]
    ]
    if not fitting:
        raise InfeasibleTask(_nowhere(task, table, where, found))
    return fitting


def _nowhere(task: Task, table: Table, where: Where, found: Sequence[Need | Impossible]) -> str:
    """Which rule keeps a table from every device, and what would help."""
    limits = task.constraints.of(table.name)
    needs = [need for need in found if isinstance(need, Need)]
    barred = [f"{one.kind} {one.reason}" for one in found if isinstance(one, Impossible)]
    allowed = ", ".join(one.kind for one in found)
    more = [kind for kind in ("row_wise", "column_wise") if not limits.allows(kind)]
    help_with = [f"allow {' or '.join(more)} for it"] if more else []
    help_with += ["raise its max_shards"] if limits.max_shards is not None else []
    help_with += ["let it use more devices"] if not where.everywhere else []
    if not needs:
        return f"table '{table.name}' allows only {allowed}, and {'; '.join(barred)}: {', or '.join(help_with or ['use more devices'])}"
    least = min(needs, key=lambda need: need.block_bytes)
    on, which = ("one device", "largest") if least.holders == 1 else ("each of 2 devices", "second largest")
    needed, present = compared(least.block_bytes, where.memory[least.holders - 1])
    also = f" ({'; '.join(barred)})" if barred else ""
    return (
        f"table '{table.name}' needs {needed} on {on} in the smallest blocks that {allowed} allows, the {which} "
        f"device it may use has {present}{also}: {', '.join([*help_with, 'or use'])} devices with "
        "more memory"
    )
