"""Cutting a few items in other ways: what single moves cannot do, because half the change would make a plan worse."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np

from shardwright.search.engine.assembly import Assembly
from shardwright.search.engine.blocks import Ints
from shardwright.search.engine.state import NOTHING, Setting, State, add_piece, book_spread, drop_piece, forms_of, lift

_Way: TypeAlias = tuple[int, list[int]]

_MOST_ITEMS = 3


def cut_anew(assembly: Assembly, state: State, rng: np.random.Generator) -> None:
    """Take up to three items apart, costly ones rather than cheap ones, and give each another random way; its pieces are left unplaced."""
    setting = assembly.setting
    items = setting.most.size
    whole = np.maximum(setting.price[setting.first[1 : items + 1] - 1], 1e-12)
    count = min(items, int(rng.integers(1, _MOST_ITEMS + 1)))
    chance = 0.5 * whole / whole.sum() + 0.5 / items
    for item in rng.choice(items, count, replace=False, p=chance / chance.sum()):
        ways = _ways(assembly, state, int(item), int(rng.integers(1, 5)))
        if ways:
            clear_item(setting, state, int(item))
            _take(assembly, state, int(item), ways[int(rng.integers(len(ways)))])


def _ways(assembly: Assembly, state: State, item: int, count: int) -> list[_Way]:
    """Spreads that fit, as (spread, no widths), and forms cut into about `count` even pieces, as (form, widths)."""
    setting = assembly.setting
    spreads = range(int(setting.spread_first[item]), int(setting.spread_first[item + 1]))
    found = [
        (form, widths) for form in forms_of(setting, item) if (widths := _even_widths(assembly, form, count, state))
    ]
    if not setting.rivals.size and state.spread[item] < 0:
        for spread in spreads:
            devices = assembly.spread_devices[spread]
            if (state.used[devices] + setting.spread_bytes[spread] <= setting.memory[devices]).all():
                found.append((spread, []))
    return found


def clear_item(setting: Setting, state: State, item: int) -> None:
    """Remove all pieces and spreads of an item."""
    if state.spread[item] >= 0:
        book_spread(state, setting, int(state.spread[item]), -1)
        state.spread[item] = NOTHING
    while state.of[item] >= 0:
        piece = int(state.of[item])
        if state.device[piece] >= 0:
            lift(state, setting, piece)
        drop_piece(state, setting, piece)


def _take(assembly: Assembly, state: State, item: int, way: _Way) -> None:
    """Put a cleared item into one of its `_ways`."""
    which, widths = way
    if not widths:
        state.spread[item] = which
        book_spread(state, assembly.setting, which, 1)
    for width in widths:
        add_piece(state, assembly.setting, which, width)


def _even_widths(assembly: Assembly, form: int, count: int, state: State) -> list[int]:
    """At least `count` pieces, as even as possible, more where so few are not allowed; none where that is not possible."""
    setting = assembly.setting
    begin, units = int(setting.first[form]), int(setting.first[form + 1] - setting.first[form])
    room = state.form.size - int(state.live[0])
    most = int(min(setting.most[setting.item[form]], units, room))
    for pieces in range(min(count, most), most + 1):
        widths: Ints = np.diff(np.arange(pieces + 1) * units // max(pieces, 1))
        if pieces and setting.legal[begin + widths - 1].all():
            return [int(width) for width in widths]
    return []
