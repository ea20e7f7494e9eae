"""A first full state: every item in the way that is cheapest while no piece of it costs more than a limit."""

from __future__ import annotations

import numpy as np

from shardwright.search.engine.assembly import Assembly, empty_state
from shardwright.search.engine.blocks import Floats, Ints
from shardwright.search.engine.placing import join_kin, place_greedily
from shardwright.search.engine.shortest import cheapest_widths
from shardwright.search.engine.state import NOTHING, State, add_piece, book_spread, may_lie


def start(assembly: Assembly, limit: float, memory_weight: float, spread_price: Floats) -> tuple[State, int]:
    """Choose a way for every item by price, and place the pieces greedily.

    Args:
        assembly: the search.
        limit: ms that a piece may cost; where no piece of an item is so cheap, the smallest it has.
        memory_weight: ms that a byte of memory counts for in the order in which pieces are placed.
        spread_price: `(spreads,)` ms times devices of each spread.

    Returns:
        The state, and an item that found no device, or -1.
    """
    setting = assembly.setting
    state = empty_state(setting)
    price = np.where(setting.legal, setting.price, np.inf)
    of_form, uses = cheapest_widths(setting.first, _within(assembly, price, limit))
    for item in range(setting.most.size):
        forms = [item] if setting.row_form[item] < 0 else [item, int(setting.row_form[item])]
        form = min(forms, key=lambda form: of_form[form])
        must_spread = bool(np.isinf(of_form[form]))
        spread = _cheapest_spread(assembly, state, item, spread_price, must_spread)
        if must_spread and spread < 0:
            return state, item
        if spread >= 0 and (must_spread or spread_price[spread] < of_form[form]):
            state.spread[item] = spread
            book_spread(state, setting, spread, 1)
            continue
        for width in _widths(assembly, form, uses, state):
            add_piece(state, setting, form, width)
    stuck = place_greedily(state, setting, memory_weight)
    if stuck >= 0:
        return state, int(setting.item[state.form[stuck]])
    join_kin(state, setting)
    return state, NOTHING


def _within(assembly: Assembly, price: Floats, limit: float) -> Floats:
    """Prices, infinite for pieces above the limit of their form: the limit, or its cheapest piece if that is dearer."""
    setting = assembly.setting
    smallest = np.minimum.reduceat(price, setting.first[:-1])
    units = np.diff(setting.first)
    capped = np.maximum(limit, smallest * (1 + 1e-9))
    return np.where(price <= np.repeat(capped, units), price, np.inf)


def _cheapest_spread(assembly: Assembly, state: State, item: int, price: Floats, must: bool) -> int:
    """The cheapest spread of an item that fits beside those that are booked, or -1; an item with rivals is spread only if it must be."""
    setting = assembly.setting
    if setting.rivals.size and setting.rivals[item].any() and not must:
        return NOTHING
    spreads = range(int(setting.spread_first[item]), int(setting.spread_first[item + 1]))
    for spread in sorted(spreads, key=lambda spread: float(price[spread])):
        devices = assembly.spread_devices[spread]
        fits = (state.used[devices] + setting.spread_bytes[spread] <= setting.memory[devices]).all()
        if fits and all(may_lie(state, setting, item, int(device)) for device in devices):
            return spread
    return NOTHING


def _widths(assembly: Assembly, form: int, uses: Ints, state: State) -> list[int]:
    """Widths of the chosen pieces; where these are more than allowed, or than there is room for, as even ones as possible."""
    setting = assembly.setting
    begin, end = int(setting.first[form]), int(setting.first[form + 1])
    widths = [row - begin + 1 for row in range(begin, end) for _ in range(int(uses[row]))]
    waiting = setting.most.size - int(setting.item[form])
    most = min(int(setting.most[setting.item[form]]), max(1, state.form.size - int(state.live[0]) - waiting))
    if len(widths) <= most:
        return widths
    cuts = np.arange(most + 1) * (end - begin) // most
    return [int(width) for width in np.diff(cuts) if width]
