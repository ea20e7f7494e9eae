"""A solution that holds a plan to start from, as far as it still can, with everything else placed around it."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import TypeAlias

import numpy as np

from shardwright._engine import Solution
from shardwright.search.engine.assembly import NOTHING, Assembly, spread_shards
from shardwright.search.engine.blocks import Ints
from shardwright.search.engine.warm import Holding, holding_of
from shardwright.sharding.carry import Carried
from shardwright.task.task import Task

Lost: TypeAlias = tuple[int, set[int]]
"""An unplaced piece that stands for a range which no device holds any more, and the holders of the units beside it."""
_ATTEMPTS = 4  # pieces cut or moved out of the way, for each device, before a plan to start from is given up


def resumed(carried: Carried, task: Task, assembly: Assembly, cold: Solution) -> Solution | None:
    """The plan to start from as a full solution.

    Args:
        carried: what is left of the plan on the task's devices.
        task: the task.
        assembly: the arrays of the search.
        cold: a solution in which all items have a way; items that the plan does not settle are cut as they are there.

    Returns:
        The solution, or None where no place is found for everything around what the plan has settled.
    """
    solution = Solution(assembly.problem)
    items = range(len(assembly.members))
    left = [item for item in items if not _take_spread(carried, task, assembly, solution, item)]
    size = {item: int(assembly.arrays.bytes[assembly.whole[item]]) for item in left}
    left.sort(key=lambda item: -size[item])  # where memory has become tight, large pieces stay
    lost: list[Lost] = []
    waiting = [item for item in left if not _take_pieces(carried, task, assembly, solution, item, lost)]
    _place_lost(solution, assembly, lost)
    for count, item in enumerate(waiting):
        if not _take_way_of(assembly, solution, cold, item, len(waiting) - count):
            return None
    return solution if _place_rest(solution, assembly) else None


def _take_spread(carried: Carried, task: Task, assembly: Assembly, solution: Solution, item: int) -> bool:
    """Book the spread that an item lies in, if it is one that the search knows."""
    members = assembly.members[item]
    held = {shard for table in members for shard in carried.shards.get(task.tables[table].name, [])}
    for spread in assembly.spreads_of(item):
        devices, copies = assembly.spread_devices[spread], bool(assembly.spread_replicated[spread])
        if len(held) != len(members) * (1 if copies else devices.size):
            continue
        blocks = {shard for table in members for shard in spread_shards(task, table, devices, copies)}
        if blocks == held and _spread_fits(assembly, solution, item, spread):
            solution.take_spread(item, spread)
            return True
    return False


def _spread_fits(assembly: Assembly, solution: Solution, item: int, spread: int) -> bool:
    devices = assembly.spread_devices[spread].tolist()
    return solution.spread_fits(spread) and all(solution.may_lie(item, device) for device in devices)


def _take_pieces(
    carried: Carried, task: Task, assembly: Assembly, solution: Solution, item: int, lost: list[Lost]
) -> bool:
    """Give an item the pieces that it has; those whose device is gone, or may not have them any more, are left unplaced."""
    arrays, holding = assembly.arrays, holding_of(carried, task, assembly, item)
    if holding is None:
        return False
    begin = int(arrays.first[holding.form])
    owner = _owners(holding, assembly.units(holding.form), item)
    if not any(task.tables[table].name in carried.lost for table in assembly.members[item]):
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

    Where replicas lie on several devices one of them becomes the holder; items take turns, so that not all choose the first.
    """
    owner: Ints = np.full(units, NOTHING)
    start_at = turn % len(holding.runs)
    for device, start, stop in (*holding.runs[start_at:], *holding.runs[:start_at]):
        free = owner[start:stop] < 0
        owner[start:stop][free] = device
    return owner


def _filled(owner: Ints) -> Ints:
    """Units that no device holds alone, because a block ends inside them, go to the holder of the unit before, or else after."""
    known = np.maximum.accumulate(np.where(owner >= 0, np.arange(owner.size), 0))
    filled: Ints = owner[known]
    filled[filled < 0] = owner[int(np.argmax(owner >= 0))]
    return filled


def _gaps(owner: Ints) -> list[tuple[int, int]]:
    """Ranges of units without an owner."""
    cuts = [0, *(np.flatnonzero(np.diff(owner)) + 1).tolist(), owner.size]
    return [(start, stop) for start, stop in pairwise(cuts) if owner[start] < 0]


def _may_take(solution: Solution, assembly: Assembly, of: tuple[int, int], device: int) -> bool:
    """Whether a device has room for a piece, given by form and width, beside what it has of the item, and may hold it."""
    arrays, (form, width) = assembly.arrays, of
    item, row = int(arrays.item[form]), int(arrays.first[form]) + width - 1
    there = solution.width_on(item, device)
    fits = int(solution.used[device]) + arrays.bytes[row] <= arrays.memory[device] and arrays.legal[row + there]
    return bool(fits) and solution.may_lie(item, device)


def _place_lost(solution: Solution, assembly: Assembly, lost: list[Lost]) -> None:
    """Place ranges that are lost, large ones first, on the least busy device that holds units beside them, or none of the item.

    On other devices, what they hold already would have to make way for a range of its own. Where no device has room the piece waits.
    """
    arrays = assembly.arrays
    solution.refresh()
    load, form, width = solution.times.sum(axis=1), solution.form, solution.width
    price = {piece: float(arrays.price[arrays.first[form[piece]] + width[piece] - 1]) for piece, _ in lost}
    for piece, beside in sorted(lost, key=lambda one: -price[one[0]]):
        item, of = int(arrays.item[form[piece]]), (int(form[piece]), int(width[piece]))
        for device in np.argsort(load, kind="stable").tolist():
            holds = solution.piece_on(item, device) >= 0
            if (device in beside or not holds) and _may_take(solution, assembly, of, device):
                solution.place(piece, device)
                load[device] += price[piece]
                break


def _take_way_of(assembly: Assembly, solution: Solution, other: Solution, item: int, waiting: int) -> bool:
    """Cut an item as it is cut in another solution, its pieces unplaced; whole where there is no room for more pieces."""
    spread = int(other.spread_of[item])
    if spread >= 0 and _spread_fits(assembly, solution, item, spread):
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
    """The fewest even pieces of an item that are allowed, as form and width; none where that is not possible."""
    arrays, room = assembly.arrays, solution.room - waiting + 1
    for form in assembly.forms_of(item):
        begin, units = int(arrays.first[form]), assembly.units(form)
        for count in range(1, min(units, int(arrays.most[item]), room) + 1):
            widths = np.diff(np.arange(count + 1) * units // count)
            if arrays.legal[begin + widths - 1].all():
                return [(form, int(width)) for width in widths]
    return []


def _place_rest(solution: Solution, assembly: Assembly) -> bool:
    """Place all pieces that lie nowhere, making room for those that find no device; whether all have found one."""
    for _ in range(_ATTEMPTS * assembly.arrays.memory.size + 64):
        stuck = solution.place_greedily()
        if stuck < 0:
            solution.join()
            return True
        if not _halve(solution, assembly, stuck) and not _make_room(solution, assembly, stuck):
            return False
    return False


def _make_room(solution: Solution, assembly: Assembly, piece: int) -> bool:
    """Place a piece on the allowed device with most room, and lift the smallest pieces there until it fits."""
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
    """Cut an unplaced piece in two, where that is allowed."""
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
