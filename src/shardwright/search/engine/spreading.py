"""Changing the way of an item on many devices at once: between single pieces and spreads, and to wider blocks."""

from __future__ import annotations

import numpy as np

from shardwright.jit import compiled, inner
from shardwright.search.engine.objective import refresh_heat, refresh_times, step_ms
from shardwright.search.engine.placing import coolest_device
from shardwright.search.engine.state import (
    NOTHING,
    Setting,
    State,
    add_piece,
    book_spread,
    drop_piece,
    lift,
    ms_to_receive,
    place,
)

_COSTLY = 0.02  # of a step: items that cost less alone are not worth spreading


@compiled
def respread(state: State, setting: Setting) -> int:
    """Spread every costly item, and gather every spread one, for which that lowers the objective; returns how many changed."""
    changed, costly = 0, _COSTLY * step_ms(state)
    for item in range(state.spread.size):
        if state.spread[item] >= 0:
            changed += _gather(state, setting, item)
        elif not setting.rivals.size and setting.price[setting.first[item + 1] - 1] > costly:
            for spread in range(setting.spread_first[item], setting.spread_first[item + 1]):
                if _try_spread(state, setting, item, spread):
                    changed += 1
                    break
    return changed


@inner
def _try_spread(state: State, setting: Setting, item: int, spread: int) -> bool:
    """Spread an item, and undo that if it does not help."""
    before = state.heat.sum()
    if setting.home_first.size:  # the price of what moves counts like ms of the objective
        before -= setting.home_spread_ms[spread]
    where = np.full(state.pieces[item], NOTHING)
    piece, count = state.of[item], 0
    while piece >= 0:
        where[count] = state.device[piece]
        if setting.home_first.size:
            before += ms_to_receive(setting, state.form[piece], state.width[piece], state.device[piece])
        lift(state, setting, piece)
        piece, count = state.kin[piece, 0], count + 1
    if _fits(state, setting, spread):
        book_spread(state, setting, spread, 1)
        refresh_times(state, setting)
        refresh_heat(state)
        if state.heat.sum() < before * (1 - 1e-9):
            state.spread[item] = spread
            while state.of[item] >= 0:
                drop_piece(state, setting, state.of[item])
            return True
        book_spread(state, setting, spread, -1)
    piece, count = state.of[item], 0
    while piece >= 0:
        place(state, setting, piece, where[count])
        piece, count = state.kin[piece, 0], count + 1
    refresh_times(state, setting)
    refresh_heat(state)
    return False


@inner
def _fits(state: State, setting: Setting, spread: int) -> bool:
    for index in range(setting.spread_range[spread, 0], setting.spread_range[spread, 1]):
        device = setting.spread_device[index]
        if setting.spread_bytes[spread] > setting.memory[device] - state.used[device]:
            return False
    return True


@inner
def _gather(state: State, setting: Setting, item: int) -> bool:
    """Put a spread item whole on a device if that helps."""
    if not setting.legal[setting.first[item + 1] - 1]:
        return False
    spread, before = state.spread[item], state.heat.sum()
    book_spread(state, setting, spread, -1)
    refresh_times(state, setting)
    refresh_heat(state)
    piece = add_piece(state, setting, item, setting.first[item + 1] - setting.first[item])
    device = coolest_device(state, setting, piece)
    if device >= 0:
        place(state, setting, piece, device)
        refresh_times(state, setting)
        refresh_heat(state)
        if setting.home_first.size:
            before += setting.home_spread_ms[spread] - ms_to_receive(setting, item, state.width[piece], device)
        if state.heat.sum() < before * (1 - 1e-9):
            state.spread[item] = NOTHING
            return True
        lift(state, setting, piece)
    drop_piece(state, setting, piece)
    book_spread(state, setting, spread, 1)
    refresh_times(state, setting)
    refresh_heat(state)
    return False


@compiled
def widen(state: State, setting: Setting) -> None:
    """Join the blocks of items that must have equal ones, two by two or more, where their devices have such numbers of them."""
    for item in range(state.of.size):
        form = _wider_form(state, setting, item)
        if form >= 0:
            _take_form(state, setting, item, form)


@inner
def _wider_form(state: State, setting: Setting, item: int) -> int:
    """The form with the widest blocks that all pieces of an item are made of, or -1 where it is the one that they have."""
    piece, common = state.of[item], 0
    if piece < 0 or not setting.equal[state.form[piece]] or state.pieces[item] < 2:
        return NOTHING
    old = state.form[piece]
    while piece >= 0:
        one, other = common, state.width[piece]
        while other:
            one, other = other, one % other
        common, piece = one, state.kin[piece, 0]
    best, fewest = NOTHING, setting.first[old + 1] - setting.first[old]
    units, form = fewest, setting.next_form[old]
    while form != old:
        count = setting.first[form + 1] - setting.first[form]
        if setting.equal[form] and count < fewest and units % count == 0 and common % (units // count) == 0:
            best, fewest = form, count
        form = setting.next_form[form]
    return best


@inner
def _take_form(state: State, setting: Setting, item: int, form: int) -> None:
    """Put the pieces of an item in a form of wider blocks, each on its device, unless that raises the objective."""
    before, old = state.heat.sum(), state.form[state.of[item]]
    _recut(state, setting, item, form)
    if state.heat.sum() > before:
        _recut(state, setting, item, old)


@inner
def _recut(state: State, setting: Setting, item: int, form: int) -> None:
    """Put the pieces of an item in another form, each on its device; its width must be a whole number of units there."""
    old = state.form[state.of[item]]
    before, after = setting.first[old + 1] - setting.first[old], setting.first[form + 1] - setting.first[form]
    piece = state.of[item]
    while piece >= 0:
        device = state.device[piece]
        lift(state, setting, piece)
        state.form[piece], state.width[piece] = form, state.width[piece] * after // before
        place(state, setting, piece, device)
        piece = state.kin[piece, 0]
    refresh_times(state, setting)
    refresh_heat(state)
