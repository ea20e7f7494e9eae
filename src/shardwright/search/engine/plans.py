"""From plans to solutions of the engine and back: holdings of devices, prices of moves, the solution that keeps a plan, and its shards.

A device that holds the share s of a table's columns holds that share of all its rows. A piece of w row units there therefore has to
receive w (1 − s) units, and likewise the other way round. Between pieces of one form the widths are subtracted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from shardwright._engine import Solution, best_order
from shardwright.arrays import Floats, Ints
from shardwright.cost.collectives import way_of
from shardwright.cost.model import CostModel
from shardwright.cost.score import score
from shardwright.search.engine.catalog import NOTHING, Assembly, Home
from shardwright.sharding.diff import Carried, by_holder, carry, element_bytes, moved_bytes
from shardwright.sharding.memory import shard_bytes
from shardwright.sharding.plan import Plan
from shardwright.sharding.shard import Shard
from shardwright.sharding.ways import ROW_UNITS, row_units
from shardwright.task.table import Table
from shardwright.task.task import Task

if TYPE_CHECKING:
    from shardwright.search.engine.session import Prepared, SearchSession

_ROWS_APART = 1  # rows by which a block differs from those that collectives reduce


@dataclass(frozen=True)
class Holding:
    """The parts of an item that devices hold.

    Attributes:
        form: the form of the item whose units these are.
        runs: device, first unit and the unit after the last of each unbroken range, in the order of devices.
    """

    form: int
    runs: tuple[tuple[int, int, int], ...]


def holding_of(carried: Carried, assembly: Assembly, item: int) -> Holding | None:
    """The parts of an item that devices hold; None if its forms cannot express them: grids, tiers, parts of groups."""
    tables = assembly.tables_of(item)
    shards = [carried.shards.get(table.name, []) for table in tables]
    if len(tables) > 1:
        return _holding_of_group(assembly, item, shards)
    table, blocks = tables[0], shards[0]
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
    """The runs of units between `cuts` that lie wholly in a device's blocks; None if there are none."""
    runs, slack = [], _ROWS_APART if ranges == "rows" and cuts.size > ROW_UNITS else 0
    for device, held in sorted(by_holder(blocks).items()):
        for begin, end in _joined([getattr(block, ranges) for block in held]):
            start, stop = np.searchsorted(cuts, begin - slack), np.searchsorted(cuts, end + slack, side="right") - 1
            if start < stop:
                runs.append((device, int(start), int(stop)))
    return Holding(form, tuple(runs)) if runs else None


def _joined(ranges: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """The ranges, with adjacent ones joined."""
    result: list[tuple[int, int]] = []
    for begin, end in sorted(ranges):
        if result and result[-1][1] == begin:
            result[-1] = (result[-1][0], end)
        else:
            result.append((begin, end))
    return result


def _holding_of_group(assembly: Assembly, item: int, shards: list[list[Shard]]) -> Holding | None:
    """For each unit of a group's columns: the devices that hold it for all tables, else the one that holds it for the most bytes."""
    units = assembly.units(item)
    tables = assembly.tables_of(item)
    sizes = [_bytes_of(assembly.task, table) if blocks else 0.0 for table, blocks in zip(tables, shards, strict=True)]
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


def home_of(carried: Carried, assembly: Assembly, price_ms_per_byte: float) -> Home:
    """The bytes that devices hold, and the price of those that they would have to receive.

    Args:
        carried: the plan to start from, on the task's devices.
        assembly: the arrays of the search.
        price_ms_per_byte: ms of step time that a byte to be received counts for.
    """
    arrays, items = assembly.arrays, len(assembly.members)
    holdings = [holding_of(carried, assembly, item) for item in range(items)]
    widest = [_widest(holding) for holding in holdings]
    units = np.diff(arrays.first)
    item_ms = price_ms_per_byte * np.array([_kept_bytes(carried, assembly, item) for item in range(items)])
    spread_ms = price_ms_per_byte * _spread_bytes(carried, assembly, holdings)
    least = item_ms * (1 - np.array([_covered(holding, units) for holding in holdings]))
    np.minimum.at(least, assembly.spread_item, spread_ms)
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


def _kept_bytes(carried: Carried, assembly: Assembly, item: int) -> float:
    """Bytes of an item's tables that can be kept or moved; tables that must be made anew count 0."""
    return sum(_bytes_of(assembly.task, table) for table in assembly.tables_of(item) if table.name in carried.shards)


def _spread_bytes(carried: Carried, assembly: Assembly, holdings: Sequence[Holding | None]) -> Floats:
    """`(spreads,)` bytes that all devices of each spread together have to receive."""
    first = assembly.arrays.spreads.first
    received = [
        _bytes_for_spread(carried, assembly, holdings[item], item, spread)
        for item in range(len(assembly.members))
        for spread in range(int(first[item]), int(first[item + 1]))
    ]
    return np.array(received, dtype=np.float64)


def _bytes_for_spread(carried: Carried, assembly: Assembly, holding: Holding | None, item: int, spread: int) -> float:
    ways = assembly.dealt[spread]
    devices = ways[0].devices
    alike = len({way.copies for way in ways}) == 1 and all(way.columns == 1 for way in ways)
    if alike and holding is not None and not assembly.rows[holding.form]:
        units = assembly.units(holding.form)  # a share of the columns is that share of any row block
        inside = np.zeros(assembly.arrays.memory.size, dtype=bool)
        inside[devices] = True
        stays = sum(stop - start for device, start, stop in holding.runs if inside[device]) / units
        copied, stays = (float(devices.size), stays) if ways[0].copies else (1.0, stays / devices.size)
        return (copied - stays) * _kept_bytes(carried, assembly, item)
    total = 0.0
    for table, way in zip(assembly.tables_of(item), ways, strict=True):
        copied = float(devices.size) if way.copies else 1.0
        if table.name in carried.shards:
            held = by_holder(carried.shards[table.name])
            blocks = by_holder(way.shards(table))
            stays = sum(
                new.common(old)
                for device, old_blocks in held.items()
                for old in old_blocks
                for new in blocks.get(device, [])
            )
            total += (copied - stays / (table.rows * table.dim)) * _bytes_of(assembly.task, table)
    return total


Lost: TypeAlias = tuple[int, set[int]]
"""An unplaced piece for a range that no device holds any more, and the holders of the units beside it."""
_ATTEMPTS = 4  # times the devices: attempts to cut or move pieces before the start plan is given up


def resumed(carried: Carried, assembly: Assembly, cold: Solution) -> Solution | None:
    """Turn the start plan into a full solution.

    Args:
        carried: the part of the plan that lies on the task's devices.
        assembly: the arrays of the search.
        cold: a solution in which every item has a way; items that the plan does not settle are cut as in this one.

    Returns:
        The solution; None if the items that the plan does not settle find no place.
    """
    solution = Solution(assembly.problem)
    items = range(len(assembly.members))
    left = [item for item in items if not _take_spread(carried, assembly, solution, item)]
    size = {item: int(assembly.arrays.bytes[assembly.whole[item]]) for item in left}
    left.sort(key=lambda item: -size[item])  # if memory has become tight, large pieces stay
    lost: list[Lost] = []
    waiting = [item for item in left if not _take_pieces(carried, assembly, solution, item, lost)]
    _place_lost(solution, assembly, lost)
    for count, item in enumerate(waiting):
        if not _take_way_of(assembly, solution, cold, item, len(waiting) - count):
            return None
    return solution if _place_rest(solution, assembly) else None


def _take_spread(carried: Carried, assembly: Assembly, solution: Solution, item: int) -> bool:
    """Take the spread that the start plan has the item in, if the search knows it; return whether it does."""
    tables = assembly.tables_of(item)
    held = {shard for table in tables for shard in carried.shards.get(table.name, [])}
    for spread in assembly.spreads_of(item):
        ways = assembly.dealt[spread]
        if len(held) != sum(1 if way.copies else way.devices.size * way.per_device for way in ways):
            continue
        blocks = {shard for table, way in zip(tables, ways, strict=True) for shard in way.shards(table)}
        if blocks == held and spread_fits(assembly, solution, item, spread):
            solution.take_spread(item, spread)
            return True
    return False


def spread_fits(assembly: Assembly, solution: Solution, item: int, spread: int) -> bool:
    """Whether the devices of a spread have room for an item, and pinning and rivals let it lie there."""
    devices = assembly.dealt[spread][0].devices.tolist()
    return solution.spread_fits(spread) and all(solution.may_lie(item, device) for device in devices)


def _take_pieces(carried: Carried, assembly: Assembly, solution: Solution, item: int, lost: list[Lost]) -> bool:
    """Give an item the pieces of the start plan; pieces whose device no longer exists or may no longer hold them stay unplaced."""
    arrays, holding = assembly.arrays, holding_of(carried, assembly, item)
    if holding is None:
        return False
    begin = int(arrays.first[holding.form])
    owner = _owners(holding, assembly.units(holding.form), item)
    if not any(table.name in carried.lost for table in assembly.tables_of(item)):
        owner = _filled(owner)
    held = {int(device): int((owner == device).sum()) for device in np.unique(owner[owner >= 0])}
    gaps = _gaps(owner)
    widths = np.array([*held.values(), *(stop - start for start, stop in gaps)])
    others = arrays.most.size  # each item has to find room for a piece
    if not arrays.legal[begin + widths - 1].all() or widths.size > arrays.most[item]:
        return False
    if widths.size + others > solution.room:
        return False
    for device, width in held.items():
        piece = solution.add(holding.form, width)
        if _may_take(solution, assembly, (holding.form, width), device):
            solution.place(piece, device)
    for start, stop in gaps:
        beside = {int(owner[unit]) for unit in (start - 1, stop) if 0 <= unit < owner.size}
        lost.append((solution.add(holding.form, stop - start), beside))
    return True


def _owners(holding: Holding, units: int, turn: int) -> Ints:
    """A device that holds each unit, or -1.

    If replicas lie on several devices, one becomes the holder; items take turns, so that not all choose the first device.
    """
    owner: Ints = np.full(units, NOTHING)
    start_at = turn % len(holding.runs)
    for device, start, stop in (*holding.runs[start_at:], *holding.runs[:start_at]):
        free = owner[start:stop] < 0
        owner[start:stop][free] = device
    return owner


def _filled(owner: Ints) -> Ints:
    """Give units that no device holds whole, because a block ends inside them, to the holder of the unit before, or else after."""
    known = np.maximum.accumulate(np.where(owner >= 0, np.arange(owner.size), 0))
    filled: Ints = owner[known]
    filled[filled < 0] = owner[int(np.argmax(owner >= 0))]
    return filled


def _gaps(owner: Ints) -> list[tuple[int, int]]:
    """Ranges of units without an owner."""
    cuts = [0, *(np.flatnonzero(np.diff(owner)) + 1).tolist(), owner.size]
    return [(start, stop) for start, stop in pairwise(cuts) if owner[start] < 0]


def _may_take(solution: Solution, assembly: Assembly, of: tuple[int, int], device: int) -> bool:
    """Whether a device may hold a piece, given by form and width, and has room for it beside its other pieces of the item."""
    arrays, (form, width) = assembly.arrays, of
    item, row = int(arrays.item[form]), int(arrays.first[form]) + width - 1
    there = solution.width_on(item, device)
    fits = int(solution.used[device]) + arrays.bytes[row] <= arrays.memory[device] and arrays.legal[row + there]
    return bool(fits) and solution.may_lie(item, device)


def _place_lost(solution: Solution, assembly: Assembly, lost: list[Lost]) -> None:
    """Place lost ranges, costly ones first, on the least busy device that holds units beside them, or none of the item.

    Any other device would have to give up the range that it holds to get this one. A piece that finds no room stays unplaced.
    """
    arrays = assembly.arrays
    solution.refresh()
    load, form, width = solution.times.sum(axis=1), solution.form, solution.width
    price = {piece: float(arrays.price[arrays.first[form[piece]] + width[piece] - 1]) for piece, _ in lost}
    for piece, beside in sorted(lost, key=lambda entry: -price[entry[0]]):
        item, of = int(arrays.item[form[piece]]), (int(form[piece]), int(width[piece]))
        for device in np.argsort(load, kind="stable").tolist():
            holds = solution.piece_on(item, device) >= 0
            if (device in beside or not holds) and _may_take(solution, assembly, of, device):
                solution.place(piece, device)
                load[device] += price[piece]
                break


def _take_way_of(assembly: Assembly, solution: Solution, other: Solution, item: int, waiting: int) -> bool:
    """Cut an item as in another solution, its pieces unplaced; in the fewest even pieces if there is no room for so many."""
    spread = int(other.spread_of[item])
    if spread >= 0 and spread_fits(assembly, solution, item, spread):
        solution.take_spread(item, spread)
        return True
    form, width = other.form, other.width
    pieces = np.flatnonzero(assembly.arrays.item[form] == item)
    if spread >= 0 or pieces.size + waiting > solution.room:
        return _cut(solution, _even(assembly, item, waiting, solution))
    return _cut(solution, [(int(form[piece]), int(width[piece])) for piece in pieces])


def _cut(solution: Solution, pieces: Sequence[tuple[int, int]]) -> bool:
    for form, width in pieces:
        solution.add(form, width)
    return bool(pieces)


def _even(assembly: Assembly, item: int, waiting: int, solution: Solution) -> list[tuple[int, int]]:
    """The fewest even pieces of an item that are allowed, as form and width; empty if that is not possible."""
    arrays, room = assembly.arrays, solution.room - waiting + 1
    for form in assembly.forms_of(item):
        begin, units = int(arrays.first[form]), assembly.units(form)
        for count in range(1, min(units, int(arrays.most[item]), room) + 1):
            widths = np.diff(np.arange(count + 1) * units // count)
            if arrays.legal[begin + widths - 1].all():
                return [(form, int(width)) for width in widths]
    return []


def _place_rest(solution: Solution, assembly: Assembly) -> bool:
    """Place all unplaced pieces, making room for those that find no device; return whether all have found one."""
    for _ in range(_ATTEMPTS * assembly.arrays.memory.size + 64):
        stuck = solution.place_greedily()
        if stuck < 0:
            solution.join()
            return True
        if not _halve(solution, assembly, stuck) and not _make_room(solution, assembly, stuck):
            return False
    return False


def _make_room(solution: Solution, assembly: Assembly, piece: int) -> bool:
    """Place a piece on the allowed device with most room, after lifting the smallest pieces there until it fits."""
    arrays, form, device_of = assembly.arrays, solution.form, solution.device
    item_of, size = arrays.item[form], arrays.bytes[arrays.first[form] + solution.width - 1]
    item, need, room = int(item_of[piece]), int(size[piece]), arrays.memory - solution.used
    for device in np.argsort(-room, kind="stable").tolist():
        if not solution.may_lie(item, device) or solution.piece_on(item, device) >= 0:
            continue
        others = np.flatnonzero((device_of == device) & (item_of != item))
        others = others[np.argsort(size[others], kind="stable")]
        lifted = int(np.searchsorted(np.cumsum(size[others]), need - room[device])) + 1
        if lifted <= others.size:
            for other in others[:lifted].tolist():
                solution.lift(other)
            solution.place(piece, device)
            return True
    return False


def _halve(solution: Solution, assembly: Assembly, piece: int) -> bool:
    """Cut an unplaced piece in two; return whether that is allowed."""
    arrays, form, width = assembly.arrays, int(solution.form[piece]), int(solution.width[piece])
    begin, half = int(arrays.first[form]), width // 2
    item = int(arrays.item[form])
    if width < 2 or solution.pieces_of[item] >= arrays.most[item] or solution.room < 1:
        return False
    if not arrays.legal[[begin + half - 1, begin + width - half - 1]].all():
        return False
    solution.drop(piece)
    solution.add(form, half)
    solution.add(form, width - half)
    return True


def shards_of(assembly: Assembly, solution: Solution) -> list[Shard]:
    """The shards of a full solution; devices keep the units that they held in the start plan, if there is one."""
    shards: list[Shard] = []
    for item, spread in enumerate(solution.spread_of.tolist()):
        if spread >= 0:
            for table, way in zip(assembly.tables_of(item), assembly.dealt[spread], strict=True):
                shards += way.shards(table)
    form_of, width_of, device_of = solution.form, solution.width, solution.device
    item_of, used = assembly.arrays.item[form_of], solution.used.copy()
    order = np.lexsort((device_of, item_of))
    for pieces in np.split(order, np.flatnonzero(np.diff(item_of[order])) + 1) if order.size else ():
        form, devices, widths = int(form_of[pieces[0]]), device_of[pieces], width_of[pieces]
        starts = first_units(assembly.home, int(item_of[pieces[0]]), form, devices, widths)
        blocks: list[Shard] = []
        for device, start, stop in zip(devices.tolist(), starts.tolist(), (starts + widths).tolist(), strict=True):
            blocks += piece_shards(assembly, form, (start, stop), device)
        shards += _unequal(assembly.task, blocks, used) if assembly.rows[form] else blocks
    return shards


def _unequal(task: Task, blocks: list[Shard], used: Ints) -> list[Shard]:
    """Row blocks, but a border moved if collectives would reduce them: only spreads are priced so.

    If no device has room for a longer block, the blocks stay as they are, and the plan costs more than the search thought.

    Args:
        task: the task.
        blocks: the blocks of a table.
        used: `(devices,)` bytes in use; changed.
    """
    if way_of(task, blocks) == "all_to_all":
        return blocks
    blocks = sorted(blocks, key=lambda block: block.rows)
    longest = max(block.row_count for block in blocks[1:])
    for place, (before, block) in enumerate(pairwise(blocks)):
        (device,), border = block.devices, block.rows[0] - _ROWS_APART
        longer = replace(block, rows=(border, block.rows[1]))
        more = shard_bytes(task, longer) - shard_bytes(task, block)
        if block.row_count == longest and used[device] + more <= task.topology.memory_bytes[device]:
            used[device] += more
            return [*blocks[:place], replace(before, rows=(before.rows[0], border)), longer, *blocks[place + 2 :]]
    return blocks


def first_units(home: Home, item: int, form: int, devices: Ints, widths: Ints) -> Ints:
    """The first unit of each piece of an item; the pieces cover its units without gaps.

    As far as possible, devices keep the units that they held before.

    Args:
        home: the units that devices held before.
        item: the item.
        form: form of its pieces.
        devices: `(n,)` the device of each piece, no two equal.
        widths: `(n,)` units of each piece.
    """
    order = np.arange(widths.size)
    if home.first.size and home.form[item] == form:
        held = {
            int(home.device[place]): (int(home.start[place]), int(home.start[place] + home.width[place]))
            for place in range(int(home.first[item]), int(home.first[item + 1]))
        }
        ranges = [held.get(device, (0, 0)) for device in devices.tolist()]
        order = best_order(widths.tolist(), [start for start, _ in ranges], [stop for _, stop in ranges])
    result = np.empty_like(widths)
    result[order] = np.concatenate([[0], np.cumsum(widths[order])[:-1]])
    return result


def piece_shards(assembly: Assembly, form: int, units: tuple[int, int], device: int) -> list[Shard]:
    """The blocks of units `[start, stop)` of a form, for each table of its item."""
    if assembly.rows[form]:
        table = assembly.task.tables[assembly.catalog.forms.table[assembly.forms[form]]]
        start, stop = (table.rows * unit // row_units(table.rows) for unit in units)
        return [Shard(table.name, (start, stop), (0, table.dim), (device,))]
    whole, members = assembly.units(form), assembly.members[assembly.arrays.item[form]]
    shards = []
    for index in members:
        table = assembly.task.tables[index]
        own = assembly.forms[form] if len(members) == 1 else index
        start, stop = (unit * table.dim // whole for unit in units)
        uncut = assembly.task.constraints.of(table.name).allows("table_wise")
        equal = assembly.catalog.forms.equal[own] and (stop - start < table.dim or not uncut)
        width = table.dim // int(assembly.catalog.forms.units[own]) if equal else stop - start
        cuts = range(start, stop, width)
        shards += [Shard(table.name, (0, table.rows), (cut, cut + width), (device,)) for cut in cuts]
    return shards


_FORBIDDING = 1e9
"""Ms per GB above which a price is as good as infinite: 1 ms a byte, more than any step can gain."""


class WarmStart:
    """A plan that a search starts from, and the price of moving away from it.

    Args:
        task: the task.
        cost_model: scores plans.
        start: the plan; its task may have other tables and devices.
        move_cost: ms of step time that moving a GB counts for.

    Attributes:
        kept: the plan's own shards if they are a plan of the task; None if something must change.
    """

    def __init__(self, task: Task, cost_model: CostModel, start: Plan, move_cost: float) -> None:
        self._task, self._model = task, cost_model
        self._carried = carry(start, task)
        self._ms_per_byte = min(move_cost, _FORBIDDING) / 1e9
        self.kept = self._carried.all_shards() if self._carried.why_no_plan(task) is None else None

    def settle(self, prepared: Prepared) -> None:
        """Give a search the parts that devices already hold."""
        home = home_of(self._carried, prepared.assembly, self._ms_per_byte)
        prepared.assembly = replace(prepared.assembly, home=home)

    def resume(self, session: SearchSession) -> bool:
        """Resume from the plan, and improve it unless time is up; return whether a search from scratch may also pay."""
        late, prepared = session.late, session.prepared
        if not session.resume(self._carried, improve=not late):
            return True
        # A plan from scratch leaves few tables in place, so it pays only if it gains more than half the price of moving everything.
        return not late and session.best_ms - prepared.bound_ms > 0.5 * everything_ms(prepared.assembly)

    def chosen(self, shards: Sequence[Shard]) -> tuple[Sequence[Shard], float]:
        """The shards that a search has found, or the start plan's if these cost no more once moves are priced; and their step time."""
        ms, moved = self._scored(shards)
        if self.kept is None:
            return shards, ms
        kept, _ = self._scored(self.kept)
        worth = kept - ms - self._ms_per_byte * moved > 1e-7 * kept
        return (shards, ms) if worth else (self.kept, kept)

    def _scored(self, shards: Sequence[Shard]) -> tuple[float, int]:
        by_table = Plan(self._task, shards).by_table
        return score(self._task, shards, self._model).step_ms, moved_bytes(self._task, self._carried, by_table)
