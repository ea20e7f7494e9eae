"""The state of a search: which piece of which item lies where, and what every device then costs."""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
from numba import njit

from shardwright.search.engine.devices import BACKWARD, BACKWARD_LINKS, FORWARD, FORWARD_LINKS, kernel_times, link_times

Floats: TypeAlias = npt.NDArray[np.float64]
Ints: TypeAlias = npt.NDArray[np.int64]
Bools: TypeAlias = npt.NDArray[np.bool_]


class Setting(NamedTuple):
    """What stays the same in a search; see `items.Items` and `devices` for the arrays.

    Attributes:
        first: `(items + 1,)`.
        vectors: `(rows, h + 2)`.
        bytes: `(rows,)`.
        served: `(rows, 2)` bytes of values and ids.
        most: `(items,)`.
        allowed: `(items, d)` or `(0, 0)`.
        rivals: `(items, items)` or `(0, 0)`.
        mix: `(2, h)`.
        base: `(h + 2,)` biases: the sums of a device without a piece.
        memory: `(d,)` bytes.
        links: `(6,)`.
        other_traffic: `(2, 2, 2, d)`.
    """

    first: Ints
    vectors: Floats
    bytes: Ints
    served: Floats
    most: Ints
    allowed: Bools
    rivals: Bools
    mix: Floats
    base: Floats
    memory: Ints
    links: Floats
    other_traffic: Floats


class Board(NamedTuple):
    """What changes.

    Attributes:
        item: `(capacity,)` item of each piece.
        width: `(capacity,)` its column units.
        device: `(capacity,)` where it lies; -1 while it is not placed.
        live: `(1,)` pieces in use.
        pieces: `(items,)` pieces of each item.
        sums: `(d, h + 2)` device states.
        served: `(d, 2)` bytes of values and ids by holder.
        used: `(d,)` bytes.
        times: `(d, 4)` ms by phase.
    """

    item: Ints
    width: Ints
    device: Ints
    live: Ints
    pieces: Ints
    sums: Floats
    served: Floats
    used: Ints
    times: Floats


@njit(cache=True)
def row_of(setting: Setting, item: int, width: int) -> int:
    """Row of the piece tables for a piece of `width` units."""
    return setting.first[item] + width - 1


@njit(cache=True)
def add_to_device(setting: Setting, board: Board, item: int, width: int, device: int, sign: int) -> None:
    """Book a piece on a device (`sign` 1) or off it (-1); times are left as they are."""
    row = row_of(setting, item, width)
    for column in range(setting.vectors.shape[1]):
        board.sums[device, column] += sign * setting.vectors[row, column]
    board.served[device, 0] += sign * setting.served[row, 0]
    board.served[device, 1] += sign * setting.served[row, 1]
    board.used[device] += sign * setting.bytes[row]


@njit(cache=True)
def refresh_kernels(setting: Setting, board: Board, device: int) -> None:
    """Price a device's kernels from its sums."""
    forward, backward = kernel_times(board.sums[device], board.sums[device], 0.0, setting.mix)
    board.times[device, FORWARD] = forward
    board.times[device, BACKWARD] = backward


@njit(cache=True)
def served_by_host(setting: Setting, board: Board) -> Floats:
    """`(hosts + 1, 2)` bytes of values and ids served by each host; the last row is all of them."""
    near = int(setting.links[1])
    hosts = board.used.size // near
    result = np.zeros((hosts + 1, 2))
    for device in range(board.used.size):
        for kind in range(2):
            result[device // near, kind] += board.served[device, kind]
            result[hosts, kind] += board.served[device, kind]
    return result


@njit(cache=True)
def refresh_links(setting: Setting, board: Board) -> None:
    """Price the links of every device."""
    by_host = served_by_host(setting, board)
    near = int(setting.links[1])
    for device in range(board.used.size):
        forward, backward = link_times(
            board.served[device, 0], board.served[device, 1], by_host[device // near], by_host[-1], device,
            setting.other_traffic, setting.links,
        )  # fmt: skip
        board.times[device, FORWARD_LINKS] = forward
        board.times[device, BACKWARD_LINKS] = backward


@njit(cache=True)
def refresh(setting: Setting, board: Board) -> None:
    """Price everything."""
    for device in range(board.used.size):
        refresh_kernels(setting, board, device)
    refresh_links(setting, board)


@njit(cache=True)
def step_ms(board: Board) -> float:
    """Sum over the phases of the maximum over devices."""
    total = 0.0
    for phase in range(board.times.shape[1]):
        total += board.times[:, phase].max()
    return total


@njit(cache=True)
def may_lie(setting: Setting, board: Board, item: int, device: int) -> bool:
    """Whether pinning and rivals leave the item this device."""
    if setting.allowed.size and not setting.allowed[item, device]:
        return False
    if setting.rivals.size:
        for piece in range(board.live[0]):
            if board.device[piece] == device and setting.rivals[item, board.item[piece]]:
                return False
    return True


@njit(cache=True)
def widths_by_device(board: Board, item: int, widths: Ints) -> None:
    """Fill `widths` `(d,)` with the units of the item that lie on each device."""
    widths[:] = 0
    if board.pieces[item] > 1:
        for piece in range(board.live[0]):
            if board.item[piece] == item and board.device[piece] >= 0:
                widths[board.device[piece]] += board.width[piece]
