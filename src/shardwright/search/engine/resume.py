"""A state that holds a plan to start from, as far as it still can, with everything else placed around it."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import TypeAlias

import numpy as np

from shardwright.search.engine.assembly import Assembly, empty_state, spread_shards
from shardwright.search.engine.blocks import Ints
from shardwright.search.engine.objective import refresh_times
from shardwright.search.engine.placing import join_kin, place_greedily
from shardwright.search.engine.state import (
    NOTHING,
    Setting,
    State,
    add_piece,
    book_spread,
    drop_piece,
    forms_of,
    lift,
    may_lie,
    piece_on,
    place,
    width_on,
)
from shardwright.search.engine.warm import Holding, holding_of
from shardwright.sharding.carry import Carried
from shardwright.task.task import Task

Lost: TypeAlias = tuple[int, set[int]]
"""An unplaced piece that stands for a range which no device holds any more, and the holders of the units beside it."""
_ATTEMPTS = 4  # pieces cut or moved out of the way, for each device, before a plan to start from is given up


def state_of(carried: Carried, task: Task, assembly: Assembly, cold: State) -> State | None:
    """The plan to start from as a full state.

    Args:
        carried: what is left of the plan on the task's devices.
        task: the task.
        assembly: the arrays of the search.
        cold: a state of which all items have a way; items that the plan does not settle are cut as they are there.

    Returns:
        The state, or None where no place is found for everything around what the plan has settled.
    """
    state = empty_state(assembly.setting)
    items = range(len(assembly.members))
    left = [item for item in items if not _take_spread(carried, task, assembly, state, item)]
    size = {item: int(assembly.setting.bytes[assembly.setting.first[item + 1] - 1]) for item in left}
    left.sort(key=lambda item: -size[item])  # where memory has become tight, large pieces stay
    lost: list[Lost] = []
    waiting = [item for item in left if not _take_pieces(carried, task, assembly, state, item, lost)]
    _place_lost(state, assembly.setting, lost)
    for count, item in enumerate(waiting):
        if not _take_way_of(assembly, state, cold, item, len(waiting) - count):
            return None
    return state if _place_rest(state, assembly.setting) else None


def _take_spread(carried: Carried, task: Task, assembly: Assembly, state: State, item: int) -> bool:
    """Book the spread that an item lies in, if it is one that the search knows."""
    setting, members = assembly.setting, assembly.members[item]
    held = {shard for table in members for shard in carried.shards.get(task.tables[table].name, [])}
    for spread in range(int(setting.spread_first[item]), int(setting.spread_first[item + 1])):
        devices, copies = assembly.spread_devices[spread], assembly.spread_replicated[spread]
        if len(held) != len(members) * (1 if copies else devices.size):
            continue
        blocks = {shard for table in members for shard in spread_shards(task, table, devices, copies)}
        if blocks == held and _spread_fits(assembly, state, item, spread):
            state.spread[item] = spread
            book_spread(state, setting, spread, 1)
            return True
    return False


def _spread_fits(assembly: Assembly, state: State, item: int, spread: int) -> bool:
    setting, devices = assembly.setting, assembly.spread_devices[spread]
    room = (state.used[devices] + setting.spread_bytes[spread] <= setting.memory[devices]).all()
    return bool(room) and all(may_lie(state, setting, item, int(device)) for device in devices)


def _take_pieces(carried: Carried, task: Task, assembly: Assembly, state: State, item: int, lost: list[Lost]) -> bool:
    """Give an item the pieces that it has; those whose device is gone, or may not have them any more, are left unplaced."""
    setting, holding = assembly.setting, holding_of(carried, task, assembly, item)
    if holding is None:
        return False
    begin, end = int(setting.first[holding.form]), int(setting.first[holding.form + 1])
    owner = _owners(holding, end - begin, item)
    if not any(task.tables[table].name in carried.lost for table in assembly.members[item]):
        owner = _filled(owner)
    held = {int(device): int((owner == device).sum()) for device in np.unique(owner[owner >= 0])}
    gaps = _gaps(owner)
    widths = np.array([*held.values(), *(stop - start for start, stop in gaps)])
    others = setting.most.size  # each item has to find room for a piece
    if not setting.legal[begin + widths - 1].all() or widths.size > setting.most[item]:
        return False
    if int(state.live[0]) + widths.size + others > state.form.size:
        return False
    for device, width in held.items():
        piece = add_piece(state, setting, holding.form, width)
        if _may_take(state, setting, piece, device):
            place(state, setting, piece, device)
    for start, stop in gaps:
        beside = {int(owner[unit]) for unit in (start - 1, stop) if 0 <= unit < owner.size}
        lost.append((add_piece(state, setting, holding.form, stop - start), beside))
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


def _may_take(state: State, setting: Setting, piece: int, device: int) -> bool:
    """Whether a device has room for a piece, beside what it has of the item, and may hold it."""
    form, width = int(state.form[piece]), int(state.width[piece])
    item, row = int(setting.item[form]), int(setting.first[form]) + width - 1
    there = int(width_on(state, setting, item, device))
    fits = state.used[device] + setting.bytes[row] <= setting.memory[device] and setting.legal[row + there]
    return bool(fits) and bool(may_lie(state, setting, item, device))


def _place_lost(state: State, setting: Setting, lost: list[Lost]) -> None:
    """Place ranges that are lost, large ones first, on the least busy device that holds units beside them, or none of the item.

    On other devices, what they hold already would have to make way for a range of its own. Where no device has room the piece waits.
    """
    refresh_times(state, setting)
    load = np.array(state.times).sum(axis=1)
    rows = {piece: int(setting.first[state.form[piece]] + state.width[piece] - 1) for piece, _ in lost}
    for piece, beside in sorted(lost, key=lambda one: -setting.price[rows[one[0]]]):
        item = int(setting.item[state.form[piece]])
        for device in np.argsort(load, kind="stable").tolist():
            holds = int(piece_on(state, item, device)) >= 0
            if (device in beside or not holds) and _may_take(state, setting, piece, device):
                place(state, setting, piece, device)
                load[device] += setting.price[rows[piece]]
                break


def _take_way_of(assembly: Assembly, state: State, other: State, item: int, waiting: int) -> bool:
    """Cut an item as it is cut in another state, its pieces unplaced; whole where there is no room for more pieces."""
    setting, spread = assembly.setting, int(other.spread[item])
    if spread >= 0:
        if _spread_fits(assembly, state, item, spread):
            state.spread[item] = spread
            book_spread(state, setting, spread, 1)
            return True
        return _cut(assembly, state, item, _even(assembly, item, waiting, state))
    pieces = np.flatnonzero(setting.item[other.form[: other.live[0]]] == item)
    if int(state.live[0]) + pieces.size + waiting > state.form.size:
        return _cut(assembly, state, item, _even(assembly, item, waiting, state))
    return _cut(assembly, state, item, [(int(other.form[piece]), int(other.width[piece])) for piece in pieces])


def _cut(assembly: Assembly, state: State, item: int, pieces: Sequence[tuple[int, int]]) -> bool:
    for form, width in pieces:
        add_piece(state, assembly.setting, form, width)
    return bool(pieces)


def _even(assembly: Assembly, item: int, waiting: int, state: State) -> list[tuple[int, int]]:
    """The fewest even pieces of an item that are allowed, as form and width; none where that is not possible."""
    setting = assembly.setting
    room = state.form.size - int(state.live[0]) - waiting + 1
    for form in forms_of(setting, item):
        begin, units = int(setting.first[form]), int(setting.first[form + 1] - setting.first[form])
        for count in range(1, min(units, int(setting.most[item]), room) + 1):
            widths = np.diff(np.arange(count + 1) * units // count)
            if setting.legal[begin + widths - 1].all():
                return [(form, int(width)) for width in widths]
    return []


def _place_rest(state: State, setting: Setting) -> bool:
    """Place all pieces that lie nowhere, making room for those that find no device; whether all have found one."""
    refresh_times(state, setting)
    for _ in range(_ATTEMPTS * state.used.size + 64):
        stuck = int(place_greedily(state, setting, 0.0))
        if stuck < 0:
            join_kin(state, setting)
            return True
        if not _halve(state, setting, stuck) and not _make_room(state, setting, stuck):
            return False
    return False


def _make_room(state: State, setting: Setting, piece: int) -> bool:
    """Place a piece on the allowed device with most room, and lift the smallest pieces there until it fits."""
    item = int(setting.item[state.form[piece]])
    need = int(setting.bytes[setting.first[state.form[piece]] + state.width[piece] - 1])
    room = setting.memory - state.used
    for device in np.argsort(-room, kind="stable").tolist():
        if not may_lie(state, setting, item, device) or piece_on(state, item, device) >= 0:
            continue
        others = np.flatnonzero(state.device[: state.live[0]] == device)
        others = others[setting.item[state.form[others]] != item]
        sizes = setting.bytes[setting.first[state.form[others]] + state.width[others] - 1]
        order = np.argsort(sizes, kind="stable")
        lifted = int(np.searchsorted(np.cumsum(sizes[order]), need - room[device])) + 1
        if lifted <= order.size:
            for other in others[order[:lifted]]:
                lift(state, setting, int(other))
            place(state, setting, piece, device)
            return True
    return False


def _halve(state: State, setting: Setting, piece: int) -> bool:
    """Cut an unplaced piece in two, where that is allowed."""
    form, width = int(state.form[piece]), int(state.width[piece])
    begin, half = int(setting.first[form]), width // 2
    item = int(setting.item[form])
    if width < 2 or state.pieces[item] >= setting.most[item] or state.live[0] >= state.form.size:
        return False
    if not setting.legal[[begin + half - 1, begin + width - half - 1]].all():
        return False
    drop_piece(state, setting, piece)
    add_piece(state, setting, form, half)
    add_piece(state, setting, form, width - half)
    return True
