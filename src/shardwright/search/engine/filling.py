"""A first state where memory is tight: devices are filled up, and what does not fit whole is cut to the room that is left.

Even cuts, as `starts` makes them, waste room there: every block has buffers, and optimizer state for each of its rows, so that many narrow
blocks take more memory than a few wide ones.
"""

from __future__ import annotations

import numpy as np

from shardwright.search.engine.assembly import Assembly, empty_state
from shardwright.search.engine.blocks import Ints
from shardwright.search.engine.catalog import Bools
from shardwright.search.engine.ruin import clear_item
from shardwright.search.engine.state import NOTHING, Setting, State, add_piece, book_spread, forms_of, may_lie, place


def filled(assembly: Assembly) -> tuple[State, int]:
    """Place the items that cannot be cut, then the others, large ones first: whole where there is room, else in the widest pieces that fit.

    Returns:
        The state, times not set, and an item for which no room was found, or -1.
    """
    setting = assembly.setting
    state = empty_state(setting)
    items = setting.most.size
    size = setting.bytes[setting.first[1 : items + 1] - 1]
    cuttable = (setting.most > 1) & (
        (np.diff(setting.first[: items + 1]) > 1) | (setting.next_form[:items] != np.arange(items))
    )
    for item in np.lexsort((-size, cuttable)).tolist():
        put = any(_put(state, setting, item, form) for form in forms_of(setting, item))
        if not put and not _spread(assembly, state, item):
            return state, item
    return state, NOTHING


def _put(state: State, setting: Setting, item: int, form: int) -> bool:
    """Place an item in pieces of a form, the widest that find room; nothing of it is placed where they do not all find some."""
    begin, left = int(setting.first[form]), int(setting.first[form + 1] - setting.first[form])
    sizes, legal = setting.bytes[begin : begin + left], setting.legal[begin : begin + left]
    room = np.where(_open(state, setting, item), setting.memory - state.used, -1)
    while left:
        pieces = int(setting.most[item] - state.pieces[item])
        waiting = int((state.pieces + (state.spread >= 0) == 0).sum())  # each item has to find room for a piece
        if pieces < 1 or state.live[0] + waiting >= state.form.size:
            break
        enough = np.flatnonzero(room >= sizes[left - 1])
        if legal[left - 1] and enough.size:
            width, device = left, int(enough[np.argmin(room[enough])])
        else:
            device = int(np.argmax(room))
            width = _widest(sizes, legal, left, int(room[device])) if pieces > 1 else 0
        if not width:
            break
        place(state, setting, add_piece(state, setting, form, width), device)
        room[device] = -1
        left -= width
    if left:
        clear_item(setting, state, item)
    return not left


def _widest(sizes: Ints, legal: Bools, left: int, room: int) -> int:
    """The widest piece of what is left that fits, and leaves something that may be a piece too; 0 where there is none."""
    narrowest = int(np.argmax(legal)) + 1
    widths = np.arange(1, left)
    fits = legal[: left - 1] & (sizes[: left - 1] <= room) & (left - widths >= narrowest)
    return int(widths[fits][-1]) if fits.any() else 0


def _open(state: State, setting: Setting, item: int) -> Bools:
    """`(devices,)` whether pinning and rivals leave the item each device."""
    if not setting.allowed.size and not setting.rivals.size:
        return np.ones(setting.memory.size, dtype=bool)
    return np.array([may_lie(state, setting, item, device) for device in range(setting.memory.size)])


def _spread(assembly: Assembly, state: State, item: int) -> bool:
    """Book the first spread of an item that fits; whether there is one."""
    setting, free = assembly.setting, _open(state, assembly.setting, item)
    for spread in range(int(setting.spread_first[item]), int(setting.spread_first[item + 1])):
        devices = assembly.spread_devices[spread]
        room = (setting.memory - state.used)[devices]
        if free[devices].all() and (setting.spread_bytes[spread] <= room).all():
            state.spread[item] = spread
            book_spread(state, setting, spread, 1)
            return True
    return False
