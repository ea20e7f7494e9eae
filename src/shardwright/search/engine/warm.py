"""A plan to start from, in the terms of a search: what each device holds of every item, and the price of what it would have to receive.

What a device holds of a table in column blocks is the same share of all its rows, so a piece of w row units on a device with the share s of
the columns has to receive w (1 − s) units; the other way round likewise. Between pieces of one form the widths are subtracted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from shardwright.search.engine.assembly import NOTHING, Assembly, Home, spread_shards
from shardwright.search.engine.blocks import Floats, Ints
from shardwright.search.engine.catalog import row_units
from shardwright.sharding.carry import Carried
from shardwright.sharding.diff import by_holder, element_bytes
from shardwright.sharding.shard import Shard
from shardwright.task.table import Table
from shardwright.task.task import Task


@dataclass(frozen=True)
class Holding:
    """What devices hold of an item.

    Attributes:
        form: a form of the item whose units these are.
        runs: device, first unit and the unit after the last of each unbroken range, in the order of devices.
    """

    form: int
    runs: tuple[tuple[int, int, int], ...]


def holding_of(carried: Carried, task: Task, assembly: Assembly, item: int) -> Holding | None:
    """What devices hold of an item, or None where its forms cannot say it: grids, tiers, parts of groups."""
    names = [task.tables[table].name for table in assembly.members[item]]
    shards = [carried.shards.get(name, []) for name in names]
    if len(names) > 1:
        return _holding_of_group(task, assembly, item, shards)
    table, blocks = task.tables[assembly.members[item][0]], shards[0]
    if not blocks or any(block.row_order != "id" for block in blocks):
        return None
    forms = assembly.forms_of(item)
    if all(block.row_count == table.rows for block in blocks):
        form = _form_of_blocks(assembly, [form for form in forms if not assembly.rows[form]], table, blocks)
        units = assembly.units(form)
        return _holding(form, blocks, "columns", np.arange(units + 1) * table.dim // units)
    row_form = next((form for form in forms if assembly.rows[form]), None)
    if all(block.dim == table.dim for block in blocks) and row_form is not None:
        units = row_units(table.rows)
        return _holding(row_form, blocks, "rows", np.arange(units + 1) * table.rows // units)
    return None


def _form_of_blocks(assembly: Assembly, forms: Sequence[int], table: Table, blocks: Sequence[Shard]) -> int:
    """The form with units as wide as the narrowest block, else the one with the most units."""
    narrowest = min(block.dim for block in blocks)
    fitting = (form for form in forms if table.dim == narrowest * assembly.units(form))
    return next(fitting, max(forms, key=assembly.units))


def _holding(form: int, blocks: Sequence[Shard], ranges: str, cuts: Ints) -> Holding | None:
    """Runs of units between `cuts` that lie wholly in a device's blocks."""
    runs = []
    for device, held in sorted(by_holder(blocks).items()):
        for begin, end in _joined([getattr(block, ranges) for block in held]):
            start, stop = int(np.searchsorted(cuts, begin)), int(np.searchsorted(cuts, end, side="right")) - 1
            if start < stop:
                runs.append((device, start, stop))
    return Holding(form, tuple(runs)) if runs else None


def _joined(ranges: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """The ranges with neighbours made one."""
    result: list[tuple[int, int]] = []
    for begin, end in sorted(ranges):
        if result and result[-1][1] == begin:
            result[-1] = (result[-1][0], end)
        else:
            result.append((begin, end))
    return result


def _holding_of_group(task: Task, assembly: Assembly, item: int, shards: list[list[Shard]]) -> Holding | None:
    """For each unit of a group's columns the devices that hold it of all its tables, or else one that holds it of most bytes of them."""
    units = assembly.units(item)
    tables = [task.tables[table] for table in assembly.members[item]]
    sizes = [_bytes_of(task, table) if blocks else 0.0 for table, blocks in zip(tables, shards, strict=True)]
    held: dict[int, Floats] = {}
    for table, blocks, size in zip(tables, shards, sizes, strict=True):
        columns = [block for block in blocks if block.row_count == table.rows and block.row_order == "id"]
        own = _holding(item, columns, "columns", np.arange(units + 1) * table.dim // units)
        for device, start, stop in own.runs if own else ():
            held.setdefault(device, np.zeros(units))[start:stop] += size
    if not held:
        return None
    most, runs, taken = np.max(list(held.values()), axis=0), [], np.zeros(units, dtype=bool)
    for device, of_device in sorted(held.items()):
        mine = (most > 0) & (of_device == most) & ((most == sum(sizes)) | ~taken)
        taken |= mine
        edges = np.flatnonzero(np.diff(np.concatenate([[False], mine, [False]]).astype(np.int8)))
        runs += [(device, int(start), int(stop)) for start, stop in edges.reshape(-1, 2)]
    return Holding(item, tuple(runs))


def home_of(carried: Carried, task: Task, assembly: Assembly, price_ms_per_byte: float) -> Home:
    """What devices hold, and the price of what they would have to receive.

    Args:
        carried: the plan to start from, on the task's devices.
        task: the task.
        assembly: the arrays of the search.
        price_ms_per_byte: ms of step time that a byte to be received counts for.
    """
    arrays, items = assembly.arrays, len(assembly.members)
    holdings = [holding_of(carried, task, assembly, item) for item in range(items)]
    widest = [_widest(holding) for holding in holdings]
    units = np.diff(arrays.first)
    item_ms = price_ms_per_byte * np.array([_kept_bytes(carried, task, tables) for tables in assembly.members])
    item_of_spread = np.repeat(np.arange(items), np.diff(arrays.spread_first))
    spread_ms = price_ms_per_byte * _spread_bytes(carried, task, assembly, holdings)
    least = item_ms * (1 - np.array([_covered(holding, units) for holding in holdings]))
    np.minimum.at(least, item_of_spread, spread_ms)
    runs = np.array([run for ranges in widest for run in ranges], dtype=np.int64).reshape(-1, 3)
    return Home(
        form=np.array([NOTHING if holding is None else holding.form for holding in holdings], dtype=np.int64),
        first=np.cumsum([0, *(len(ranges) for ranges in widest)]).astype(np.int64),
        device=runs[:, 0].copy(),
        width=runs[:, 2] - runs[:, 1],
        start=runs[:, 1].copy(),
        unit_ms=item_ms[arrays.item] / units,
        spread_ms=spread_ms,
        least_ms=least,
    )


def with_home(assembly: Assembly, home: Home) -> Assembly:
    """The same search, with a plan to start from."""
    return replace(assembly, home=home)


def everything_ms(assembly: Assembly) -> float:
    """Price of all bytes that can be kept or moved."""
    home, first = assembly.home, assembly.arrays.first
    items = home.form.size
    return float(home.unit_ms[:items] @ np.diff(first)[:items])


def _widest(holding: Holding | None) -> list[tuple[int, int, int]]:
    """The widest run of each device."""
    best: dict[int, tuple[int, int, int]] = {}
    for device, start, stop in holding.runs if holding else ():
        _, begin, end = best.get(device, (device, 0, 0))
        if stop - start > end - begin:
            best[device] = (device, start, stop)
    return [best[device] for device in sorted(best)]


def _bytes_of(task: Task, table: Table) -> float:
    """Bytes of a table's weights and optimizer state."""
    return table.rows * table.dim * element_bytes(task, table)


def _covered(holding: Holding | None, units: Ints) -> float:
    """Share of an item that some device holds."""
    if holding is None:
        return 0.0
    covered = np.zeros(int(units[holding.form]), dtype=bool)
    for _, start, stop in holding.runs:
        covered[start:stop] = True
    return float(covered.mean())


def _kept_bytes(carried: Carried, task: Task, tables: Sequence[int]) -> float:
    """Bytes of the tables that can be kept or moved; those that have to be made anew count nothing."""
    return sum(_bytes_of(task, task.tables[table]) for table in tables if task.tables[table].name in carried.shards)


def _spread_bytes(carried: Carried, task: Task, assembly: Assembly, holdings: Sequence[Holding | None]) -> Floats:
    """`(spreads,)` bytes that all devices of each spread together have to receive."""
    first = assembly.arrays.spread_first
    received = [
        _bytes_for_spread(carried, task, assembly, holdings[item], item, spread)
        for item in range(len(assembly.members))
        for spread in range(int(first[item]), int(first[item + 1]))
    ]
    return np.array(received, dtype=np.float64)


def _bytes_for_spread(
    carried: Carried, task: Task, assembly: Assembly, holding: Holding | None, item: int, spread: int
) -> float:
    devices, copies = assembly.spread_devices[spread], bool(assembly.spread_replicated[spread])
    copied = float(devices.size) if copies else 1.0
    if holding is not None and not assembly.rows[holding.form]:  # a share of the columns is that share of any row block
        units = assembly.units(holding.form)
        inside = np.zeros(assembly.arrays.memory.size, dtype=bool)
        inside[devices] = True
        stays = sum(stop - start for device, start, stop in holding.runs if inside[device]) / units
        stays *= 1.0 if copies else 1.0 / devices.size
        return (copied - stays) * _kept_bytes(carried, task, assembly.members[item])
    total = 0.0
    for index in assembly.members[item]:
        table = task.tables[index]
        if table.name in carried.shards:
            held = by_holder(carried.shards[table.name])
            blocks = by_holder(spread_shards(task, index, devices, copies))
            stays = sum(
                new.common(old)
                for device, old_blocks in held.items()
                for old in old_blocks
                for new in blocks.get(device, [])
            )
            total += (copied - stays / (table.rows * table.dim)) * _bytes_of(task, table)
    return total
