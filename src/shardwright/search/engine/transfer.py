"""Moving a piece, or a part of one, to another device: what it would change, which one is best, and doing it."""

from __future__ import annotations

from shardwright.jit import inner
from shardwright.search.engine.devices import BACKWARD_LINKS, FORWARD_LINKS, Floats, Ints, link_times
from shardwright.search.engine.objective import heat_after, raised, refresh_heat, refresh_kernels, refresh_links
from shardwright.search.engine.state import (
    NOTHING,
    Setting,
    State,
    add_piece,
    drop_piece,
    lift,
    may_lie,
    ms_to_receive,
    piece_on,
    place,
    width_on,
)


@inner
def best_transfer(
    state: State, setting: Setting, one: int, target: int, least: float, may_split: bool
) -> tuple[float, int, int, int]:
    """The best transfer from one device to another.

    Args:
        state: the state; not changed.
        setting: the search.
        one: the device to relieve.
        target: the other.
        least: gain in ms that is worth a change.
        may_split: whether pieces may be cut, a whole item also in its other forms; else they are moved, or units are shifted to a device
            that holds a piece of the same item.

    Returns:
        Gain in ms, piece, form and units; piece -1 where nothing helps.
    """
    best, found, found_form, found_units = least, NOTHING, 0, 0
    near, forms, widths, pieces = state.near, state.form, state.width, state.pieces
    first, of_form, next_form, most = setting.first, setting.item, setting.next_form, setting.most
    legal, memory, price = setting.legal, setting.bytes, setting.price
    room = setting.memory[target] - state.used[target]
    part, call, vectors = setting.part, setting.call, setting.vectors
    served, mix, links = setting.served, setting.mix, setting.links
    times, sums, counts, priced = state.times, state.sums, state.counts, state.priced
    serving, by_host, reduced = state.served, state.by_host, state.reduced
    weight, scale, squarings = state.weight, state.scale, state.squarings
    heat = state.heat[one] + state.heat[target]
    apart = state.times[one].sum() - state.times[target].sum()
    warm = setting.home_first.size > 0
    piece = state.on[one]
    while piece >= 0:
        form, width = forms[piece], widths[piece]
        item = of_form[form]
        there = width_on(state, setting, item, target) if pieces[item] > 1 else 0
        while True:
            before, held = first[form] + width - 1, first[form] + there - 1
            for attempt in range(1 if may_split else 0, 5 if may_split or there else 1):
                units = _units_to_try(width, price[before], apart, attempt)
                if units < 1 or (units < width and not there and pieces[item] >= most[item]):
                    continue
                left, joined = before - units, first[form] + there + units - 1
                if not legal[joined] or (units < width and not legal[left]):
                    continue
                if memory[joined] - (memory[held] if there else 0) > room:
                    continue
                gain = heat - pair_heat(
                    one, before, left if units < width else NOTHING, target, held if there else NOTHING, joined, served,
                    times, part, call, vectors, sums, counts, priced, serving, by_host, reduced, weight, scale, squarings, mix, links,
                )  # fmt: skip
                if gain > best:
                    gain -= others_heat(
                        state, setting, one, target,
                        served[before, 0] - (served[left, 0] if units < width else 0.0),
                        served[before, 1] - (served[left, 1] if units < width else 0.0),
                        served[joined, 0] - (served[held, 0] if there else 0.0),
                        served[joined, 1] - (served[held, 1] if there else 0.0),
                    )  # fmt: skip
                if warm and gain > best:
                    gain -= (
                        ms_to_receive(setting, form, there + units, target)
                        - ms_to_receive(setting, form, there, target)
                        + ms_to_receive(setting, form, width - units, one)
                        - ms_to_receive(setting, form, width, one)
                    )
                if gain > best and may_lie(state, setting, item, target):
                    best, found, found_form, found_units = gain, piece, form, units
            form = next_form[form]
            if form == forms[piece] or not may_split or pieces[item] > 1:
                break
            width = first[form + 1] - first[form]
        piece = near[piece, 0]
    return best, found, found_form, found_units


@inner
def _units_to_try(width: int, price: float, apart: float, attempt: int) -> int:
    """All of a piece first; then parts that would make two devices about level, and half of that; 0 for nothing to try."""
    if attempt == 0:
        return width
    if width < 2 or price <= 0 or apart <= 0:
        return 0
    level = int(width * min(1.0, 0.5 * apart / price))
    if attempt == 1:
        return min(max(level, 1), width - 1)
    if attempt == 2:
        return level + 1 if 1 <= level < width - 1 else 0
    if attempt == 3:
        return level // 2 if level >= 4 else 0
    return level - 1 if 2 <= level < width else 0


@inner
def pair_heat(
    one: int,
    before: int,
    left: int,
    target: int,
    held: int,
    joined: int,
    served: Floats,
    times: Floats,
    part: Ints,
    call: Ints,
    vectors: Floats,
    sums: Floats,
    counts: Ints,
    priced: Floats,
    serving: Floats,
    by_host: Floats,
    reduced: Floats,
    weight: Floats,
    scale: Floats,
    squarings: Ints,
    mix: Floats,
    links: Floats,
) -> float:
    """Heat of two devices after the piece row `before` on `one` becomes `left`, and `held` on `target` becomes `joined`.

    Rows are -1 where nothing is held.
    """
    values_out, ids_out, values_in, ids_in = served[before, 0], served[before, 1], served[joined, 0], served[joined, 1]
    if left >= 0:
        values_out -= served[left, 0]
        ids_out -= served[left, 1]
    if held >= 0:
        values_in -= served[held, 0]
        ids_in -= served[held, 1]
    together = one // int(links[1]) == target // int(links[1])
    values, ids = values_in - values_out, ids_in - ids_out
    after = heat_after(
        one, before, left, (-values_out, -ids_out), (values, ids) if together else (-values_out, -ids_out), (values, ids),
        times, part, call, vectors, sums, counts, priced, serving, by_host, reduced, weight, scale, squarings, mix, links,
    )  # fmt: skip
    return after + heat_after(
        target, held, joined, (values_in, ids_in), (values, ids) if together else (values_in, ids_in), (values, ids),
        times, part, call, vectors, sums, counts, priced, serving, by_host, reduced, weight, scale, squarings, mix, links,
    )  # fmt: skip


@inner
def others_heat(
    state: State,
    setting: Setting,
    one: int,
    target: int,
    values_out: float,
    ids_out: float,
    values_in: float,
    ids_in: float,
) -> float:
    """By how much all other devices heat up, because they receive what `one` serves no longer from there but from `target`."""
    near, devices = int(setting.links[1]), state.used.size
    everyone = state.by_host.shape[0] - 1
    host_one, host_target = one // near, target // near
    values, ids = values_in - values_out, ids_in - ids_out
    same_total = abs(values) + abs(ids) < 1.0  # byte
    if same_total and host_one == host_target:
        return 0.0
    more, squarings = 0.0, state.squarings[0]
    for device in range(devices):
        host = device // near
        if device in (one, target) or (same_total and host not in (host_one, host_target)):
            continue
        more_values = (values_in if host == host_target else 0.0) - (values_out if host == host_one else 0.0)
        more_ids = (ids_in if host == host_target else 0.0) - (ids_out if host == host_one else 0.0)
        forward, backward = link_times(
            state.served[device, 0], state.served[device, 1],
            state.by_host[host, 0] + more_values, state.by_host[host, 1] + more_ids,
            state.by_host[everyone, 0] + values, state.by_host[everyone, 1] + ids,
            state.reduced[device, 0], state.reduced[device, 1], setting.links,
        )  # fmt: skip
        before_forward = raised(state.times[device, FORWARD_LINKS] * state.scale[FORWARD_LINKS], squarings)
        before_backward = raised(state.times[device, BACKWARD_LINKS] * state.scale[BACKWARD_LINKS], squarings)
        more += state.weight[FORWARD_LINKS] * (raised(forward * state.scale[FORWARD_LINKS], squarings) - before_forward)
        more += state.weight[BACKWARD_LINKS] * (
            raised(backward * state.scale[BACKWARD_LINKS], squarings) - before_backward
        )
    return more


@inner
def transfer(state: State, setting: Setting, piece: int, form: int, units: int, target: int) -> None:
    """Make a transfer that `best_transfer` found."""
    one = state.device[piece]
    item = setting.item[form]
    lift(state, setting, piece)
    if form != state.form[piece]:
        state.form[piece], state.width[piece] = form, setting.first[form + 1] - setting.first[form]
    there = piece_on(state, item, target)
    if units < state.width[piece]:
        state.width[piece] -= units
        place(state, setting, piece, one)
        if there < 0:
            place(state, setting, add_piece(state, setting, form, units), target)
    elif there < 0:
        place(state, setting, piece, target)
    if there >= 0:
        lift(state, setting, there)
        state.width[there] += units
        place(state, setting, there, target)
        if state.device[piece] < 0:
            drop_piece(state, setting, piece)
    refresh_two(state, setting, one, target)


@inner
def refresh_two(state: State, setting: Setting, one: int, other: int) -> None:
    """Price two devices anew whose sums have changed, and all links."""
    refresh_kernels(state, setting, one)
    refresh_kernels(state, setting, other)
    for device in range(state.used.size):
        refresh_links(state, setting, device)
    refresh_heat(state)


@inner
def best_swap(state: State, setting: Setting, one: int, target: int, least: float) -> tuple[float, int, int]:
    """The best pair of pieces to trade between two devices: gain in ms and the two pieces, -1 where nothing gains more than `least`."""
    best, found, found_other = least, NOTHING, NOTHING
    near, forms, widths, first = state.near, state.form, state.width, setting.first
    memory, price = setting.bytes, setting.price
    room, room_here = setting.memory[target] - state.used[target], setting.memory[one] - state.used[one]
    part, call, vectors = setting.part, setting.call, setting.vectors
    served, mix, links = setting.served, setting.mix, setting.links
    times, sums, counts, priced = state.times, state.sums, state.counts, state.priced
    serving, by_host, reduced = state.served, state.by_host, state.reduced
    weight, scale, squarings = state.weight, state.scale, state.squarings
    heat = state.heat[one] + state.heat[target]
    apart = state.times[one].sum() - state.times[target].sum()
    piece = state.on[one]
    while piece >= 0 and apart > 0:
        row = first[forms[piece]] + widths[piece] - 1
        other = state.on[target]
        while other >= 0:
            into = first[forms[other]] + widths[other] - 1
            grown, moved = memory[row] - memory[into], price[row] - price[into]
            if 0 < moved < apart and grown <= room and -grown <= room_here:
                gain = heat - pair_heat(
                    one, row, into, target, into, row, served,
                    times, part, call, vectors, sums, counts, priced, serving, by_host, reduced, weight, scale, squarings, mix, links,
                )  # fmt: skip
                if gain > best:
                    values, ids = served[row, 0] - served[into, 0], served[row, 1] - served[into, 1]
                    gain -= others_heat(state, setting, one, target, values, ids, values, ids)
                if setting.home_first.size and gain > best:
                    gain -= _swap_price(setting, forms[piece], widths[piece], forms[other], widths[other], one, target)
                if gain > best and _may_swap(state, setting, piece, other):
                    best, found, found_other = gain, piece, other
            other = near[other, 0]
        piece = near[piece, 0]
    return best, found, found_other


@inner
def _swap_price(
    setting: Setting, form: int, width: int, other_form: int, other_width: int, one: int, target: int
) -> float:
    """Ms that a trade costs because bytes have to be received that the plan to start from had elsewhere."""
    return (
        ms_to_receive(setting, form, width, target)
        - ms_to_receive(setting, form, width, one)
        + ms_to_receive(setting, other_form, other_width, one)
        - ms_to_receive(setting, other_form, other_width, target)
    )


@inner
def _may_swap(state: State, setting: Setting, piece: int, other: int) -> bool:
    """Whether two pieces may trade places: no kin on the other side; a rival of either there forbids it, even the one that leaves."""
    item, other_item = setting.item[state.form[piece]], setting.item[state.form[other]]
    one, target = state.device[piece], state.device[other]
    if item == other_item or piece_on(state, item, target) >= 0 or piece_on(state, other_item, one) >= 0:
        return False
    return may_lie(state, setting, item, target) and may_lie(state, setting, other_item, one)


@inner
def swap(state: State, setting: Setting, piece: int, other: int) -> None:
    """Let two pieces trade places."""
    one, target = state.device[piece], state.device[other]
    lift(state, setting, piece)
    lift(state, setting, other)
    place(state, setting, piece, target)
    place(state, setting, other, one)
    refresh_two(state, setting, one, target)
