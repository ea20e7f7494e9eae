"""Placing pieces one after another: dearest first, each where the objective then rises least."""

from __future__ import annotations

import numpy as np

from shardwright.jit import compiled, inner
from shardwright.search.engine.devices import (
    BACKWARD,
    BACKWARD_LINKS,
    FORWARD,
    FORWARD_LINKS,
    PHASES,
    kernel_times,
    link_times,
)
from shardwright.search.engine.objective import (
    heat_after,
    refresh_heat,
    refresh_heat_of,
    refresh_kernels,
    refresh_links,
    refresh_times,
)
from shardwright.search.engine.state import (
    NOTHING,
    Setting,
    State,
    drop_piece,
    lift,
    may_lie,
    ms_to_receive,
    piece_on,
    place,
    width_on,
)

_SQUARINGS = 3  # of the power of the objective while pieces are placed


@inner
def aim_at_balance(state: State, setting: Setting) -> None:
    """Set the objective for placing: every phase aims at what the mean device will have, with all that waits on it."""
    devices = state.used.size
    mean, present = np.zeros(state.sums.shape[1:]), np.zeros(state.sums.shape[1])
    values, ids = state.served[:, 0].sum() / devices, state.served[:, 1].sum() / devices
    for device in range(devices):
        mean += state.sums[device] / devices
        present += state.counts[device]
    for piece in range(state.live[0]):
        if state.device[piece] < 0:
            row = setting.first[state.form[piece]] + state.width[piece] - 1
            for part in range(setting.part[row], setting.part[row + 1]):
                mean[setting.call[part]] += setting.vectors[part] / devices
                present[setting.call[part]] += 1
            values += setting.served[row, 0] / devices
            ids += setting.served[row, 1] / devices
    near = setting.links[1]
    forward, backward = setting.once[0], setting.once[1]
    for call in range(present.size):
        if present[call]:
            now = kernel_times(mean[call], mean[call], 0.0, setting.mix)
            forward += now[0]
            backward += now[1]
    forward_links, backward_links = link_times(
        values, ids, near * values, near * ids, devices * values, devices * ids,
        state.reduced[:, 0].mean(), state.reduced[:, 1].mean(), setting.links,
    )  # fmt: skip
    goals = np.zeros(PHASES)
    goals[FORWARD], goals[BACKWARD], goals[FORWARD_LINKS], goals[BACKWARD_LINKS] = (
        forward, backward, forward_links, backward_links,
    )  # fmt: skip
    for phase in range(PHASES):
        state.weight[phase] = max(goals[phase], 1e-6 * goals.sum(), 1e-12)
        state.scale[phase] = 1.0 / state.weight[phase]
    state.squarings[0] = _SQUARINGS
    refresh_times(state, setting)
    refresh_heat(state)


@compiled
def place_greedily(state: State, setting: Setting, memory_weight: float) -> int:
    """Place every piece that lies nowhere; returns -1, or the first piece for which no device was left.

    Args:
        state: the state; changed. Times and objective have to be set anew.
        setting: the search.
        memory_weight: ms that a byte of memory counts for in the order of the pieces; large where memory is tight.
    """
    waiting = np.flatnonzero(state.device[: state.live[0]] < 0)
    cost = np.empty(waiting.size)
    for index, piece in enumerate(waiting):
        row = setting.first[state.form[piece]] + state.width[piece] - 1
        cost[index] = setting.price[row] + memory_weight * setting.bytes[row]
    aim_at_balance(state, setting)
    for index in np.argsort(-cost, kind="mergesort"):
        piece = waiting[index]
        device = coolest_device(state, setting, piece)
        if device < 0:
            return piece
        place(state, setting, piece, device)
        refresh_kernels(state, setting, device)
        refresh_links(state, setting, device)
        refresh_heat_of(state, device)
    return NOTHING


@inner
def coolest_device(state: State, setting: Setting, piece: int) -> int:
    """The device whose part of the objective rises least with the piece on it, or -1 where it may lie nowhere."""
    form = state.form[piece]
    item, row = setting.item[form], setting.first[form] + state.width[piece] - 1
    part, call, vectors = setting.part, setting.call, setting.vectors
    used, memory, size = state.used, setting.memory, setting.bytes[row]
    times, sums, counts, priced = state.times, state.sums, state.counts, state.priced
    served, by_host, reduced = state.served, state.by_host, state.reduced
    weight, scale, squarings, mix, links = state.weight, state.scale, state.squarings, setting.mix, setting.links
    more, heat = (setting.served[row, 0], setting.served[row, 1]), state.heat
    parted, bound_to = state.pieces[item] > 1, setting.rivals.size > 0 or setting.allowed.size > 0
    warm = setting.home_first.size > 0
    best, lowest = NOTHING, np.inf
    for device in range(used.size):
        if used[device] + size > memory[device]:
            continue
        cost = heat_after(
            device, NOTHING, row, more, more, more, times, part, call, vectors, sums, counts, priced,
            served, by_host, reduced, weight, scale, squarings, mix, links,
        ) - heat[device]  # fmt: skip
        if cost >= lowest:
            continue
        there = width_on(state, setting, item, device) if parted else 0
        if there and not setting.legal[row + there]:
            continue  # its pieces there are to become one
        if warm:
            cost += ms_to_receive(setting, form, there + state.width[piece], device)
            cost -= ms_to_receive(setting, form, there, device)
            if cost >= lowest:
                continue
        if not bound_to or may_lie(state, setting, item, device):
            best, lowest = device, cost
    return best


@compiled
def join_kin(state: State, setting: Setting) -> None:
    """Make one piece of those of an item that lie on one device."""
    piece = 0
    while piece < state.live[0]:
        form, device = state.form[piece], state.device[piece]
        other = piece_on(state, setting.item[form], device) if device >= 0 else NOTHING
        if other < 0 or other == piece:
            piece += 1
            continue
        lift(state, setting, other)
        lift(state, setting, piece)
        state.width[other] += state.width[piece]
        place(state, setting, other, device)
        drop_piece(state, setting, piece)
        refresh_kernels(state, setting, device)
