"""First full solutions: every item in its cheapest way, or devices filled up where memory is tight."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from shardwright._engine import Solution, cheapest_widths
from shardwright.search.engine.assembly import NOTHING, Assembly
from shardwright.search.engine.blocks import Floats, Ints
from shardwright.search.engine.catalog import Bools


class Strain(NamedTuple):
    """The largest share of what the mean device spends on a phase that a piece or a spread takes.

    Attributes:
        pieces: `(pieces,)` of single pieces.
        spreads: `(spreads,)` of a spread's part on one device.
    """

    pieces: Floats
    spreads: Floats


@dataclass(frozen=True)
class Start:
    """How to make a first solution.

    Attributes:
        limit: most strain that a piece or a spread may put on a device; an item that cannot meet it takes the way that strains least.
        memory_weight: ms that a byte of memory counts for in the order in which pieces are placed.
        spreading: factor on the prices of spreads; infinite for none.
        memory_share: share of the largest device's memory that a piece may take, likewise.
        kind: sharding type of all items that may have it; None for any.
    """

    limit: float
    memory_weight: float = 0.0
    spreading: float = 1.0
    memory_share: float = 1.0
    kind: str | None = None


def start(assembly: Assembly, how: Start, strain: Strain, spread_price: Floats) -> tuple[Solution, int]:
    """Choose a way for every item by price, and place the pieces greedily.

    Args:
        assembly: the search.
        how: limits and order.
        strain: what pieces and spreads put on their devices.
        spread_price: `(spreads,)` ms times devices of each spread.

    Returns:
        The solution, and an item that found no device, or -1.
    """
    arrays, solution = assembly.arrays, Solution(assembly.problem)
    price, spread_price = np.where(arrays.legal, arrays.price, np.inf), spread_price * how.spreading
    if how.kind is not None:
        price, spread_price = _of_one_kind(assembly, price, spread_price, how.kind)
    room = how.memory_share * float(arrays.memory.max())
    load = np.maximum(strain.pieces / how.limit, arrays.bytes / room)
    spread_load = np.maximum(strain.spreads / how.limit, arrays.spread_bytes / room)
    smallest = np.minimum.reduceat(np.where(np.isfinite(price), load, np.inf), arrays.first[:-1])
    within = load <= np.repeat(np.maximum(1.0, smallest), np.diff(arrays.first))
    of_form, uses = cheapest_widths(arrays.first, np.where(within, price, np.inf))
    # Ways that meet the limits compete by price, the others by how far they miss them, behind those.
    beyond = 1e6 * (1.0 + _largest(of_form) + _largest(spread_price))
    rank = np.where(np.isfinite(of_form) & (smallest > 1.0), beyond * (1.0 + smallest), of_form)
    spread_rank = np.where(spread_load > 1.0, beyond * (1.0 + spread_load), spread_price)
    stuck = solution.choose(rank, uses, spread_rank)
    if stuck < 0:
        piece = solution.place_greedily(how.memory_weight)
        stuck = int(arrays.item[solution.form[piece]]) if piece >= 0 else NOTHING
    if stuck < 0:
        solution.join()
    return solution, stuck


def _of_one_kind(assembly: Assembly, price: Floats, spread_price: Floats, kind: str) -> tuple[Floats, Floats]:
    """The prices of pieces and spreads, infinite for all ways but those of one sharding type, of items that may have it."""
    arrays, items = assembly.arrays, assembly.arrays.most.size
    form = np.repeat(np.arange(arrays.item.size), np.diff(arrays.first))
    whole = np.zeros(price.size, dtype=bool)
    whole[arrays.first[1:] - 1] = True
    of_kind = ~assembly.rows[form] & (whole == (kind == "table_wise")) & np.isfinite(price)
    of_kind &= kind in ("table_wise", "column_wise")
    hosts = [devices[[0, -1]] // arrays.links[1] for devices in assembly.spread_devices]
    on_host = np.array([first == last for first, last in hosts], dtype=bool) & (arrays.memory.size > arrays.links[1])
    kinds = np.where(assembly.spread_replicated, "data_parallel", np.where(on_host, "table_row_wise", "row_wise"))
    owner, item = np.repeat(np.arange(items), np.diff(arrays.spread_first)), arrays.item[form]
    able = np.isin(np.arange(items), np.concatenate([item[of_kind], owner[kinds == kind]]))
    return (
        np.where(of_kind | ~able[item], price, np.inf),
        np.where((kinds == kind) | ~able[owner], spread_price, np.inf),
    )


def _largest(values: Floats) -> float:
    """The largest finite value, or 0."""
    return float(np.abs(values[np.isfinite(values)]).max(initial=0.0))


def filled(assembly: Assembly) -> tuple[Solution, int]:
    """Fill devices up, for tight memory.

    The items that cannot be cut come first, then the others, large ones first: whole where there is room, else in the widest pieces that
    fit. Even cuts would waste room: every block has buffers, and optimizer state for each of its rows, so that many narrow blocks take
    more memory than a few wide ones.

    Returns:
        The solution, and an item that found no room, or -1.
    """
    arrays, solution = assembly.arrays, Solution(assembly.problem)
    items = arrays.most.size
    size = arrays.bytes[assembly.whole]
    cuttable = (arrays.most > 1) & (
        (np.diff(arrays.first[: items + 1]) > 1) | (arrays.next_form[:items] != np.arange(items))
    )
    for waiting, item in zip(range(items - 1, -1, -1), np.lexsort((-size, cuttable)).tolist(), strict=True):
        put = any(_put(assembly, solution, item, form, waiting) for form in assembly.forms_of(item))
        if not put and not _spread(assembly, solution, item):
            return solution, item
    return solution, NOTHING


def _put(assembly: Assembly, solution: Solution, item: int, form: int, waiting: int) -> bool:
    """Place an item in pieces of a form, the widest that find room; nothing of it where they do not all find some.

    Args:
        assembly: the search.
        solution: changed.
        item: the item.
        form: one of its forms.
        waiting: items that come later; each has to find room for a piece.
    """
    arrays, begin, left = assembly.arrays, int(assembly.arrays.first[form]), assembly.units(form)
    sizes, legal = arrays.bytes[begin : begin + left], arrays.legal[begin : begin + left]
    room = np.where(_open(assembly, solution, item), arrays.memory - solution.used, -1)
    pieces = min(int(arrays.most[item]), solution.room - waiting)
    while left and pieces > 0:
        enough = np.flatnonzero(room >= sizes[left - 1])
        if legal[left - 1] and enough.size:
            width, device = left, int(enough[np.argmin(room[enough])])
        else:
            device = int(np.argmax(room))
            width = _widest(sizes, legal, left, int(room[device])) if pieces > 1 else 0
        if not width:
            break
        solution.place(solution.add(form, width), device)
        room[device] = -1
        left, pieces = left - width, pieces - 1
    if left:
        solution.clear(item)
    return not left


def _widest(sizes: Ints, legal: Bools, left: int, room: int) -> int:
    """The widest piece of what is left that fits, and leaves something that may be a piece too; 0 where there is none."""
    narrowest = int(np.argmax(legal)) + 1
    widths = np.arange(1, left)
    fits = legal[: left - 1] & (sizes[: left - 1] <= room) & (left - widths >= narrowest)
    return int(widths[fits][-1]) if fits.any() else 0


def _open(assembly: Assembly, solution: Solution, item: int) -> Bools:
    """`(devices,)` whether pinning and rivals leave the item each device."""
    arrays = assembly.arrays
    if not arrays.allowed.size and not arrays.rivals.size:
        return np.ones(arrays.memory.size, dtype=bool)
    return np.array([solution.may_lie(item, device) for device in range(arrays.memory.size)])


def _spread(assembly: Assembly, solution: Solution, item: int) -> bool:
    """Take the first spread of an item that fits; whether there is one."""
    free = _open(assembly, solution, item)
    for spread in assembly.spreads_of(item):
        if free[assembly.spread_devices[spread]].all() and solution.spread_fits(spread):
            solution.take_spread(item, spread)
            return True
    return False
