"""Placing pieces one after another: dearest first, each to the device that is then the cheapest."""

from __future__ import annotations

import numpy as np
from numba import njit

from shardwright.search.engine.devices import kernel_times
from shardwright.search.engine.objective import refresh_kernels
from shardwright.search.engine.state import (
    NOTHING,
    Setting,
    State,
    drop_piece,
    lift,
    may_lie,
    piece_on,
    place,
    width_on,
)


@njit(cache=True, nogil=True)
def place_greedily(state: State, setting: Setting, memory_weight: float) -> int:
    """Place every piece that lies nowhere; returns -1, or the first piece for which no device was left.

    Args:
        state: the state; changed. Times are left as they are.
        setting: the search.
        memory_weight: ms that a byte of memory counts for in the order of the pieces; large where memory is tight.
    """
    waiting = np.flatnonzero(state.device[: state.live[0]] < 0)
    cost = np.empty(waiting.size)
    for index, piece in enumerate(waiting):
        row = setting.first[state.form[piece]] + state.width[piece] - 1
        cost[index] = setting.price[row] + memory_weight * setting.bytes[row]
    for index in np.argsort(-cost, kind="mergesort"):
        piece = waiting[index]
        device = cheapest_device(state, setting, piece)
        if device < 0:
            return piece
        place(state, setting, piece, device)
        refresh_kernels(state, setting, device)
    return NOTHING


@njit(cache=True, nogil=True)
def cheapest_device(state: State, setting: Setting, piece: int) -> int:
    """The device that costs least with the piece on it, or -1 where it may lie nowhere."""
    form = state.form[piece]
    item, row = setting.item[form], setting.first[form] + state.width[piece] - 1
    best, lowest = NOTHING, np.inf
    for device in range(state.used.size):
        if state.used[device] + setting.bytes[row] > setting.memory[device]:
            continue
        if state.pieces[item] > 1:
            there = width_on(state, setting, item, device)
            if there and not setting.legal[row + there]:
                continue  # its pieces there are to become one
        forward, backward = kernel_times(state.sums[device], setting.vectors[row], 1.0, setting.mix)
        cost = forward + backward
        for kind in range(2):
            cost += setting.link_weight[kind] * (state.served[device, kind] + setting.served[row, kind])
        if cost < lowest and may_lie(state, setting, item, device):
            best, lowest = device, cost
    return best


@njit(cache=True, nogil=True)
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
