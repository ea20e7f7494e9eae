"""Placing all pieces: costliest first, each to the device that is then the cheapest."""

from __future__ import annotations

import numpy as np
from numba import njit

from shardwright.search.engine.board import (
    Board,
    Setting,
    add_to_device,
    may_lie,
    refresh,
    refresh_kernels,
    row_of,
)
from shardwright.search.engine.devices import Floats, Ints, kernel_times


@njit(cache=True)
def place_greedily(setting: Setting, board: Board, link_weight: Floats, memory_weight: float) -> int:
    """Place every unplaced piece; returns -1, or the first piece for which no device was left.

    Args:
        setting: the search.
        board: its state; pieces with device -1 are placed.
        link_weight: `(2,)` ms that a byte of values and of ids adds to a step, so that holders of much traffic are dear.
        memory_weight: ms that a byte of memory counts for in the order of the pieces; large where memory is tight.
    """
    for piece in _costliest_first(setting, board, link_weight, memory_weight):
        item, width = board.item[piece], board.width[piece]
        row = row_of(setting, item, width)
        best, lowest = -1, np.inf
        for device in range(board.used.size):
            if board.used[device] + setting.bytes[row] > setting.memory[device]:
                continue
            forward, backward = kernel_times(board.sums[device], setting.vectors[row], 1.0, setting.mix)
            cost = forward + backward
            for kind in range(2):
                cost += link_weight[kind] * (board.served[device, kind] + setting.served[row, kind])
            if cost < lowest and may_lie(setting, board, item, device):
                best, lowest = device, cost
        if best < 0:
            return piece
        add_to_device(setting, board, item, width, best, 1)
        board.device[piece] = best
        refresh_kernels(setting, board, best)
    refresh(setting, board)
    return -1


@njit(cache=True)
def _costliest_first(setting: Setting, board: Board, link_weight: Floats, memory_weight: float) -> Ints:
    """Unplaced pieces by what each alone would cost, highest first."""
    waiting = np.flatnonzero(board.device[: board.live[0]] < 0)
    cost = np.empty(waiting.size)
    for position, piece in enumerate(waiting):
        row = row_of(setting, board.item[piece], board.width[piece])
        forward, backward = kernel_times(setting.base, setting.vectors[row], 1.0, setting.mix)
        cost[position] = forward + backward
        cost[position] += (link_weight * setting.served[row]).sum() + memory_weight * setting.bytes[row]
    return waiting[np.argsort(-cost, kind="mergesort")]
