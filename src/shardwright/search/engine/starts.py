"""A first full state: every item in the way that is cheapest while no piece of it strains its device more than a limit."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from shardwright.jit import compiled, inner
from shardwright.search.engine.assembly import Assembly, empty_state
from shardwright.search.engine.blocks import Floats, Ints
from shardwright.search.engine.placing import join_kin, place_greedily
from shardwright.search.engine.shortest import cheapest_widths
from shardwright.search.engine.state import NOTHING, Setting, State, add_piece, book_spread, may_lie


class Strain(NamedTuple):
    """The largest share that something takes of what the mean device spends on a phase.

    Attributes:
        pieces: `(pieces,)` of single pieces.
        spreads: `(spreads,)` of a spread's part on one device.
    """

    pieces: Floats
    spreads: Floats


def start(
    assembly: Assembly,
    limit: float,
    memory_weight: float,
    strain: Strain,
    spread_price: Floats,
    memory_share: float = 1.0,
    kind: str | None = None,
) -> tuple[State, int]:
    """Choose a way for every item by price, and place the pieces greedily.

    Args:
        assembly: the search.
        limit: strain that a piece or a spread may put on its devices; an item that can meet it in no way takes the way that strains least.
        memory_weight: ms that a byte of memory counts for in the order in which pieces are placed.
        strain: what pieces and spreads put on their devices.
        spread_price: `(spreads,)` ms times devices of each spread.
        memory_share: share of the largest device's memory that a piece may take, likewise.
        kind: sharding type of all items that may have it; None for any.

    Returns:
        The state, and an item that found no device, or -1.
    """
    setting = assembly.setting
    state = empty_state(setting)
    price = np.where(setting.legal, setting.price, np.inf)
    if kind is not None:
        price, spread_price = _of_one_kind(assembly, price, spread_price, kind)
    room = memory_share * float(setting.memory.max())
    load = np.maximum(strain.pieces / limit, setting.bytes / room)
    spread_load = np.maximum(strain.spreads / limit, setting.spread_bytes / room)
    smallest = np.minimum.reduceat(np.where(np.isfinite(price), load, np.inf), setting.first[:-1])
    within = load <= np.repeat(np.maximum(1.0, smallest), np.diff(setting.first))
    of_form, uses = cheapest_widths(setting.first, np.where(within, price, np.inf))
    # Ways that meet the limits compete by price, the others by how far they miss them, behind those.
    beyond = 1e6 * (1.0 + _largest(of_form) + _largest(spread_price))
    rank = np.where(np.isfinite(of_form) & (smallest > 1.0), beyond * (1.0 + smallest), of_form)
    spread_rank = np.where(spread_load > 1.0, beyond * (1.0 + spread_load), spread_price)
    stuck = _choose(state, setting, rank, uses, spread_rank)
    if stuck < 0:
        piece = place_greedily(state, setting, memory_weight)
        stuck = int(setting.item[state.form[piece]]) if piece >= 0 else NOTHING
    if stuck < 0:
        join_kin(state, setting)
    return state, int(stuck)


def _of_one_kind(assembly: Assembly, price: Floats, spread_price: Floats, kind: str) -> tuple[Floats, Floats]:
    """The prices of pieces and spreads, infinite for all ways but those of one sharding type, of items that may have it."""
    setting, items = assembly.setting, assembly.setting.most.size
    form = np.repeat(np.arange(setting.item.size), np.diff(setting.first))
    whole = np.zeros(price.size, dtype=bool)
    whole[setting.first[1:] - 1] = True
    of_kind = ~assembly.rows[form] & (whole == (kind == "table_wise")) & np.isfinite(price)
    of_kind &= kind in ("table_wise", "column_wise")
    hosts = [devices[[0, -1]] // setting.links[1] for devices in assembly.spread_devices]
    on_host = np.array([first == last for first, last in hosts], dtype=bool) & (setting.memory.size > setting.links[1])
    copies = np.array(assembly.spread_replicated, dtype=bool)
    kinds = np.where(copies, "data_parallel", np.where(on_host, "table_row_wise", "row_wise"))
    owner, item = np.repeat(np.arange(items), np.diff(setting.spread_first)), setting.item[form]
    able = np.isin(np.arange(items), np.concatenate([item[of_kind], owner[kinds == kind]]))
    return (
        np.where(of_kind | ~able[item], price, np.inf),
        np.where((kinds == kind) | ~able[owner], spread_price, np.inf),
    )


def _largest(values: Floats) -> float:
    """The largest finite value, or 0."""
    return float(np.abs(values[np.isfinite(values)]).max(initial=0.0))


@compiled
def _choose(state: State, setting: Setting, rank: Floats, uses: Ints, spread_rank: Floats) -> int:
    """Give every item its best way, as unplaced pieces or a booked spread; returns an item without any, or -1."""
    items = setting.most.size
    for item in range(items):
        form, other = item, setting.next_form[item]
        while other != item:
            if rank[other] < rank[form]:
                form = other
            other = setting.next_form[other]
        must_spread = rank[form] == np.inf
        spread = _cheapest_spread(state, setting, item, spread_rank, must_spread)
        if must_spread and spread < 0:
            return item
        if spread >= 0 and (must_spread or spread_rank[spread] < rank[form]):
            state.spread[item] = spread
            book_spread(state, setting, spread, 1)
        elif not _cut(state, setting, form, uses, items - item - 1):
            return item
    return NOTHING


@inner
def _cheapest_spread(state: State, setting: Setting, item: int, price: Floats, must: bool) -> int:
    """The cheapest spread of an item that fits beside those that are booked, or -1; an item with rivals is spread only if it must be."""
    if setting.rivals.size and not must and setting.rivals[item].any():
        return NOTHING
    best, lowest = NOTHING, np.inf
    for spread in range(setting.spread_first[item], setting.spread_first[item + 1]):
        if best >= 0 and price[spread] >= lowest:
            continue
        fits = True
        for index in range(setting.spread_range[spread, 0], setting.spread_range[spread, 1]):
            device = setting.spread_device[index]
            room = setting.memory[device] - state.used[device]
            fits = fits and setting.spread_bytes[spread] <= room
            fits = fits and (not setting.rivals.size or may_lie(state, setting, item, device))
        if fits:
            best, lowest = spread, price[spread]
    return best


@inner
def _cut(state: State, setting: Setting, form: int, uses: Ints, waiting: int) -> bool:
    """Add the chosen pieces; where these are more than allowed, or than there is room for, as many even ones as are. False for none."""
    begin, units = setting.first[form], setting.first[form + 1] - setting.first[form]
    room = state.form.size - state.live[0] - 2 * waiting  # an item that may not stay whole has two pieces
    most = min(setting.most[setting.item[form]], room)
    if uses[begin : begin + units].sum() <= most:
        for width in range(1, units + 1):
            for _ in range(uses[begin + width - 1]):
                add_piece(state, setting, form, width)
        return True
    for count in range(min(most, units), 0, -1):
        narrow = units // count
        if setting.legal[begin + narrow - 1] and (units % count == 0 or setting.legal[begin + narrow]):
            for piece in range(count):
                add_piece(state, setting, form, units * (piece + 1) // count - units * piece // count)
            return True
    return False
