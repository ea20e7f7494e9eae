"""The state of a search: which piece of which item lies where, and what every device then costs.

Letters: d devices, c kinds of fused calls, h hidden units of the cost model, k pieces there is room for, f forms, r rows of the piece
arrays. An item lies either in single pieces, all of one form, or in one of its spreads; see `catalog` for these terms, and `devices` for
calls and parts.
"""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from shardwright.jit import compiled, inner
from shardwright.search.engine.devices import book_parts

Floats: TypeAlias = npt.NDArray[np.float64]
Ints: TypeAlias = npt.NDArray[np.int64]
Bools: TypeAlias = npt.NDArray[np.bool_]

NOTHING = -1


class Setting(NamedTuple):
    """What stays the same in a search.

    Attributes:
        first: `(f + 1,)` where the pieces of each form begin: one of w units is row `first[form] + w - 1`.
        item: `(f,)` the item that a form cuts.
        next_form: `(f,)` the item's next form, the first after the last; form i is one of item i.
        equal: `(f,)` whether a piece of w units is w blocks.
        part: `(r + 1,)` where the parts of each piece begin.
        call: the call that each part is in.
        vectors: `(parts, h + 2)` what it adds there.
        bytes: `(r,)` memory of a piece.
        served: `(r, 2)` bytes of values and of ids that its holder serves.
        legal: `(r,)` whether a piece is allowed.
        price: `(r,)` rough ms that a piece adds to its device.
        most: `(items,)` most pieces.
        allowed: `(items, d)` where pieces of an item may go; `(0, 0)` where all may go everywhere.
        rivals: `(items, items)` which items may not share a device; `(0, 0)` where all may.
        spread_first: `(items + 1,)` the spreads of each item.
        spread_range: `(spreads, 2)` where the devices of each spread begin and end.
        spread_device: devices of all spreads; equal sets share their place.
        spread_part: `(spreads + 1,)` this and the next two: what a spread adds to each of its devices.
        spread_call: see above.
        spread_vectors: see above.
        spread_bytes: `(spreads,)`.
        spread_served: `(spreads, 2)`.
        spread_reduced: `(spreads, 2)` bytes each device sends to reduce gradients, inside a host and between hosts.
        mix: `(2, h)`.
        base: `(h + 2,)` the sums of a call with nothing in it.
        once: `(2,)` ms that a device takes besides its calls. One without a piece is given them too: no maximum over devices changes.
        memory: `(d,)` bytes.
        links: `(6,)` devices, devices a host, ms a byte inside and between hosts, latency in ms inside and between hosts.
        home_form: `(items,)` form an item had in the plan to start from, or -1.
        home_first: `(items + 1,)` the devices that held a part then.
        home_device: those devices.
        home_width: units they held.
        home_unit_ms: `(f,)` ms that a unit of each form costs a device that has to receive it.
        home_spread_ms: `(spreads,)` ms that taking each spread costs.
    """

    first: Ints
    item: Ints
    next_form: Ints
    equal: Bools
    part: Ints
    call: Ints
    vectors: Floats
    bytes: Ints
    served: Floats
    legal: Bools
    price: Floats
    most: Ints
    allowed: Bools
    rivals: Bools
    spread_first: Ints
    spread_range: Ints
    spread_device: Ints
    spread_part: Ints
    spread_call: Ints
    spread_vectors: Floats
    spread_bytes: Ints
    spread_served: Floats
    spread_reduced: Floats
    mix: Floats
    base: Floats
    once: Floats
    memory: Ints
    links: Floats
    home_form: Ints
    home_first: Ints
    home_device: Ints
    home_width: Ints
    home_unit_ms: Floats
    home_spread_ms: Floats


class State(NamedTuple):
    """What changes. Pieces are nodes of two kinds of linked lists: those of a device, and those of an item.

    Attributes:
        live: `(1,)` pieces in use: the first so many of the next arrays.
        form: `(k,)` form of each piece.
        width: `(k,)` its units.
        device: `(k,)` where it lies; -1 while it is not placed.
        near: `(k, 2)` next and previous piece on its device.
        kin: `(k, 2)` next and previous piece of its item.
        on: `(d,)` first piece of each device.
        of: `(items,)` first piece of each item.
        pieces: `(items,)` how many an item has.
        spread: `(items,)` the spread an item lies in, or -1.
        sums: `(d, c, h + 2)` sums of vectors by call, biases included.
        counts: `(d, c)` pieces and spreads in each call.
        priced: `(d, c, 2)` forward and backward ms of each call; the first is `devices.STALE` where its sums have changed since.
        served: `(d, 2)` bytes of values and of ids.
        reduced: `(d, 2)` bytes sent to reduce gradients.
        by_host: `(hosts + 1, 2)` bytes served by each host; the last row is all of them.
        used: `(d,)` bytes of memory.
        times: `(d, 4)` ms by phase.
        heat: `(d,)` each device's part of the objective; see `objective`.
        weight: `(4,)` of a phase in it.
        scale: `(4,)` 1 / ms.
        squarings: `(1,)` the objective's power is 2 to this.
    """

    live: Ints
    form: Ints
    width: Ints
    device: Ints
    near: Ints
    kin: Ints
    on: Ints
    of: Ints
    pieces: Ints
    spread: Ints
    sums: Floats
    counts: Ints
    priced: Floats
    served: Floats
    reduced: Floats
    by_host: Floats
    used: Ints
    times: Floats
    heat: Floats
    weight: Floats
    scale: Floats
    squarings: Ints


def copy_state(state: State) -> State:
    """A state of its own."""
    return State(*(array.copy() for array in state))  # type: ignore[arg-type]


def forms_of(setting: Setting, item: int) -> list[int]:
    """All forms of an item."""
    found = [item]
    while (form := int(setting.next_form[found[-1]])) != item:
        found.append(form)
    return found


@compiled
def add_piece(state: State, setting: Setting, form: int, width: int) -> int:
    """A new piece, not yet placed."""
    piece = state.live[0]
    state.live[0] += 1
    item = setting.item[form]
    state.form[piece], state.width[piece], state.device[piece] = form, width, NOTHING
    state.pieces[item] += 1
    _link(state.kin, state.of, piece, item)
    return piece


@compiled
def drop_piece(state: State, setting: Setting, piece: int) -> int:
    """Forget a piece that is not placed; the last one takes its number, which is returned."""
    item = setting.item[state.form[piece]]
    state.pieces[item] -= 1
    _unlink(state.kin, state.of, piece, item)
    last = state.live[0] - 1
    state.live[0] = last
    if last != piece:
        last_item, device = setting.item[state.form[last]], state.device[last]
        state.form[piece], state.width[piece], state.device[piece] = state.form[last], state.width[last], device
        _rename(state.kin, state.of, last, piece, last_item)
        if device >= 0:
            _rename(state.near, state.on, last, piece, device)
    return last


@compiled
def place(state: State, setting: Setting, piece: int, device: int) -> None:
    """Put a piece on a device; times are left as they are."""
    state.device[piece] = device
    _link(state.near, state.on, piece, device)
    book(state, setting, setting.first[state.form[piece]] + state.width[piece] - 1, device, 1)


@compiled
def lift(state: State, setting: Setting, piece: int) -> None:
    """Take a piece off its device; times are left as they are."""
    device = state.device[piece]
    _unlink(state.near, state.on, piece, device)
    state.device[piece] = NOTHING
    book(state, setting, setting.first[state.form[piece]] + state.width[piece] - 1, device, -1)


@inner
def book(state: State, setting: Setting, row: int, device: int, sign: int) -> None:
    """Add a piece to a device's sums, or take it off."""
    book_parts(
        device, row, sign, setting.part, setting.call, setting.vectors, setting.base, state.sums, state.counts, state.priced
    )  # fmt: skip
    state.used[device] += sign * setting.bytes[row]
    _serve(state, setting, device, sign * setting.served[row, 0], sign * setting.served[row, 1])


@compiled
def book_spread(state: State, setting: Setting, spread: int, sign: int) -> None:
    """Add a spread to the sums of all its devices, or take it off."""
    for place_ in range(setting.spread_range[spread, 0], setting.spread_range[spread, 1]):
        device = setting.spread_device[place_]
        book_parts(
            device, spread, sign, setting.spread_part, setting.spread_call, setting.spread_vectors, setting.base,
            state.sums, state.counts, state.priced,
        )  # fmt: skip
        state.used[device] += sign * setting.spread_bytes[spread]
        values, ids = setting.spread_served[spread, 0], setting.spread_served[spread, 1]
        _serve(state, setting, device, sign * values, sign * ids)
        for link in range(2):
            state.reduced[device, link] += sign * setting.spread_reduced[spread, link]


@inner
def _serve(state: State, setting: Setting, device: int, values: float, ids: float) -> None:
    host = device // int(setting.links[1])
    for row in (host, state.by_host.shape[0] - 1):
        state.by_host[row, 0] += values
        state.by_host[row, 1] += ids
    state.served[device, 0] += values
    state.served[device, 1] += ids


@compiled
def width_on(state: State, setting: Setting, item: int, device: int) -> int:
    """Units of an item that lie on a device in single pieces."""
    width, piece = 0, state.of[item]
    while piece >= 0:
        if state.device[piece] == device:
            width += state.width[piece]
        piece = state.kin[piece, 0]
    return width


@compiled
def piece_on(state: State, item: int, device: int) -> int:
    """A piece of an item on a device, or -1."""
    piece = state.of[item]
    while piece >= 0 and state.device[piece] != device:
        piece = state.kin[piece, 0]
    return piece


@compiled
def may_lie(state: State, setting: Setting, item: int, device: int) -> bool:
    """Whether pinning and rivals leave the item this device."""
    if setting.allowed.size and not setting.allowed[item, device]:
        return False
    if setting.rivals.size:
        piece = state.on[device]
        while piece >= 0:
            if setting.rivals[item, setting.item[state.form[piece]]]:
                return False
            piece = state.near[piece, 0]
        for other in range(state.spread.size):
            if (
                state.spread[other] >= 0
                and setting.rivals[item, other]
                and in_spread(setting, state.spread[other], device)
            ):
                return False
    return True


@inner
def in_spread(setting: Setting, spread: int, device: int) -> bool:
    """Whether a spread uses a device."""
    for place_ in range(setting.spread_range[spread, 0], setting.spread_range[spread, 1]):
        if setting.spread_device[place_] == device:
            return True
    return False


@inner
def ms_to_receive(setting: Setting, form: int, width: int, device: int) -> float:
    """Ms that count for a device receiving `width` units of an item, beyond what it held in the plan to start from.

    A share of the columns is that share of any rows, and the other way round.
    """
    item, each = setting.item[form], setting.home_unit_ms[form]
    home = setting.home_form[item]
    if home >= 0 and each > 0:
        for place_ in range(setting.home_first[item], setting.home_first[item + 1]):
            if setting.home_device[place_] == device:
                held = setting.home_width[place_]
                if home == form:
                    return each * max(0, width - held)
                return each * width * (1.0 - held / (setting.first[home + 1] - setting.first[home]))
    return each * width


@inner
def _link(lists: Ints, heads: Ints, node: int, owner: int) -> None:
    head = heads[owner]
    lists[node, 0], lists[node, 1] = head, NOTHING
    if head >= 0:
        lists[head, 1] = node
    heads[owner] = node


@inner
def _unlink(lists: Ints, heads: Ints, node: int, owner: int) -> None:
    after, before = lists[node, 0], lists[node, 1]
    if before >= 0:
        lists[before, 0] = after
    else:
        heads[owner] = after
    if after >= 0:
        lists[after, 1] = before


@inner
def _rename(lists: Ints, heads: Ints, old: int, new: int, owner: int) -> None:
    after, before = lists[old, 0], lists[old, 1]
    lists[new, 0], lists[new, 1] = after, before
    if before >= 0:
        lists[before, 0] = new
    else:
        heads[owner] = new
    if after >= 0:
        lists[after, 1] = new
