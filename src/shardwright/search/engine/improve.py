"""Local search: change what the slowest devices hold until nothing helps.

The objective is the step time, the sum over phases of the maximum over devices. Where several devices share a maximum no single change
lowers it, so a second figure decides between changes that leave the step time alone: the sum of the eighth powers of the devices' times.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit

from shardwright.search.engine.board import (
    Board,
    Setting,
    add_to_device,
    may_lie,
    refresh_kernels,
    refresh_links,
    row_of,
    served_by_host,
    step_ms,
    widths_by_device,
)
from shardwright.search.engine.devices import (
    BACKWARD,
    BACKWARD_LINKS,
    FORWARD,
    FORWARD_LINKS,
    PHASES,
    Floats,
    Ints,
    kernel_times_of_swap,
    link_times,
)

CANDIDATES = 48  # least loaded devices that a change considers as targets
_TOLERANCE = 1e-10


@njit(cache=True)
def improve(setting: Setting, board: Board, most_changes: int, may_split: bool) -> int:
    """Make up to `most_changes` improving changes; returns how many were made. Fewer than asked for means a local optimum."""
    for made in range(most_changes):
        if not _one_change(setting, board, may_split):
            return made
    return most_changes


@njit(cache=True)
def _one_change(setting: Setting, board: Board, may_split: bool) -> bool:
    """Move a piece off one of the slowest devices, or swap, or split it: the first kind that helps."""
    critical = _critical_devices(board)
    targets = _least_loaded(board)
    for device in critical:
        if _best_move(setting, board, device, targets):
            return True
    for device in critical:
        if _best_swap(setting, board, device, targets):
            return True
    if may_split:
        for device in critical:
            if _best_split(setting, board, device, targets):
                return True
    return False


@njit(cache=True)
def _critical_devices(board: Board) -> Ints:
    """The devices that set the maximum of a phase, slowest in all first."""
    phases = board.times.shape[1]
    found = np.empty(phases, dtype=np.int64)
    count = 0
    for phase in range(phases):
        device = int(np.argmax(board.times[:, phase]))
        known = False
        for other in range(count):
            known |= found[other] == device
        if not known and board.times[device, phase] > 0:
            found[count] = device
            count += 1
    result = found[:count]
    return result[np.argsort(-board.times.sum(axis=1)[result])]


@njit(cache=True)
def _least_loaded(board: Board) -> Ints:
    order = np.argsort(board.times.sum(axis=1), kind="mergesort")
    return order[:CANDIDATES]


@njit(cache=True)
def _largest(board: Board) -> tuple[Floats, Ints]:
    """`(4, 3)` the largest times of each phase, and `(4, 3)` whose they are."""
    phases = board.times.shape[1]
    top = np.full((phases, 3), 0.0)
    whose = np.full((phases, 3), -1)
    for device in range(board.times.shape[0]):
        for phase in range(phases):
            time = board.times[device, phase]
            for place in range(3):
                if time > top[phase, place]:
                    for later in range(2, place, -1):
                        top[phase, later] = top[phase, later - 1]
                        whose[phase, later] = whose[phase, later - 1]
                    top[phase, place] = time
                    whose[phase, place] = device
                    break
    return top, whose


class _Scratch(NamedTuple):
    """What the evaluation of one change needs, made once for many of them.

    Attributes:
        top: `(4, 3)` the largest times of each phase.
        whose: `(4, 3)` whose they are.
        served: `(hosts + 1, 2)` of `served_by_host`.
        change: `(2, h + 2)` vectors: what leaves the one device, and what comes to the other (a joined piece is not the sum of its parts).
        traffic: `(2, 2)` bytes of values and ids likewise.
        nothing: `(h + 2,)` zeros.
        hosts: `(3, 2)` bytes served by the two devices' hosts, and by all, after the change.
        times: `(2, 4)` times of the two devices after the change.
    """

    top: Floats
    whose: Ints
    served: Floats
    change: Floats
    traffic: Floats
    nothing: Floats
    hosts: Floats
    times: Floats


@njit(cache=True)
def _scratch(setting: Setting, board: Board) -> _Scratch:
    top, whose = _largest(board)
    columns = setting.vectors.shape[1]
    return _Scratch(
        top, whose, served_by_host(setting, board), np.zeros((2, columns)), np.zeros((2, 2)), np.zeros(columns),
        np.zeros((3, 2)), np.zeros((2, 4)),
    )  # fmt: skip


@njit(cache=True)
def _gain(setting: Setting, board: Board, one: int, other: int, s: _Scratch) -> tuple[float, float]:
    """How much the step time, and the eighth powers, fall if `one` loses and `other` gains what the scratch says."""
    near = int(setting.links[1])
    together = one // near == other // near
    for kind in range(2):
        out, into = s.traffic[0, kind], s.traffic[1, kind]
        s.hosts[0, kind] = s.served[one // near, kind] - out + (into if together else 0.0)
        s.hosts[1, kind] = s.served[other // near, kind] + into - (out if together else 0.0)
        s.hosts[2, kind] = s.served[-1, kind] - out + into
    s.times[0, FORWARD], s.times[0, BACKWARD] = kernel_times_of_swap(
        board.sums[one], s.change[0], s.nothing, setting.mix
    )
    s.times[1, FORWARD], s.times[1, BACKWARD] = kernel_times_of_swap(
        board.sums[other], s.nothing, s.change[1], setting.mix
    )
    s.times[0, FORWARD_LINKS], s.times[0, BACKWARD_LINKS] = link_times(
        board.served[one, 0] - s.traffic[0, 0], board.served[one, 1] - s.traffic[0, 1],
        s.hosts[0], s.hosts[2], one, setting.other_traffic, setting.links,
    )  # fmt: skip
    s.times[1, FORWARD_LINKS], s.times[1, BACKWARD_LINKS] = link_times(
        board.served[other, 0] + s.traffic[1, 0], board.served[other, 1] + s.traffic[1, 1],
        s.hosts[1], s.hosts[2], other, setting.other_traffic, setting.links,
    )  # fmt: skip
    before, after = 0.0, 0.0
    old_one, old_other, new_one, new_other = 0.0, 0.0, 0.0, 0.0
    for phase in range(PHASES):
        rest = 0.0
        for place in range(3):
            if s.whose[phase, place] != one and s.whose[phase, place] != other:
                rest = s.top[phase, place]
                break
        before += s.top[phase, 0]
        after += max(rest, s.times[0, phase], s.times[1, phase])
        old_one += board.times[one, phase]
        old_other += board.times[other, phase]
        new_one += s.times[0, phase]
        new_other += s.times[1, phase]
    power = (
        _power(old_one / before) + _power(old_other / before) - _power(new_one / before) - _power(new_other / before)
    )
    return before - after, power


@njit(cache=True)
def _power(share: float) -> float:
    squared = share * share
    fourth = squared * squared
    return fourth * fourth


@njit(cache=True)
def _better(gain: float, power: float, best_gain: float, best_power: float, scale: float) -> bool:
    """Whether a change is worth making, and more so than the best so far."""
    slack = _TOLERANCE * scale
    if gain < -slack or (gain <= slack and power <= _TOLERANCE):
        return False
    return gain > best_gain + slack or (gain > best_gain - slack and power > best_power)


@njit(cache=True)
def _best_move(setting: Setting, board: Board, device: int, targets: Ints) -> bool:
    """Move the best piece of a device to the best target, joining a part of the same item there."""
    s, scale = _scratch(setting, board), step_ms(board)
    widths = np.zeros(board.used.size, dtype=np.int64)
    best_piece, best_target, best_gain, best_power = -1, -1, 0.0, 0.0
    for piece in range(board.live[0]):
        if board.device[piece] != device:
            continue
        item, width = board.item[piece], board.width[piece]
        row = row_of(setting, item, width)
        s.change[0], s.traffic[0] = setting.vectors[row], setting.served[row]
        widths_by_device(board, item, widths)
        for target in targets:
            if target == device:
                continue
            joined = _join(setting, item, width, widths[target], s)
            if board.used[target] + joined > setting.memory[target]:
                continue
            gain, power = _gain(setting, board, device, target, s)
            if _better(gain, power, best_gain, best_power, scale) and may_lie(setting, board, item, target):
                best_piece, best_target, best_gain, best_power = piece, target, gain, power
    if best_piece < 0:
        return False
    move_piece(setting, board, best_piece, best_target)
    return True


@njit(cache=True)
def _join(setting: Setting, item: int, width: int, there: int, s: _Scratch) -> int:
    """Fill in what `width` units add where `there` units of the item lie already; returns the bytes."""
    row = row_of(setting, item, width + there)
    s.change[1], s.traffic[1] = setting.vectors[row], setting.served[row]
    if not there:
        return setting.bytes[row]
    held = row_of(setting, item, there)
    s.change[1] -= setting.vectors[held]
    s.traffic[1] -= setting.served[held]
    return setting.bytes[row] - setting.bytes[held]


@njit(cache=True)
def move_piece(setting: Setting, board: Board, piece: int, target: int) -> None:
    """Move a piece, joining a part of the same item on the target, and price the devices anew."""
    source = board.device[piece]
    item, width = board.item[piece], board.width[piece]
    add_to_device(setting, board, item, width, source, -1)
    other = _part_on(board, item, target)
    if other >= 0:
        add_to_device(setting, board, item, board.width[other], target, -1)
        board.width[other] += width
        width = board.width[other]
        _remove(board, piece)
    else:
        board.device[piece] = target
    add_to_device(setting, board, item, width, target, 1)
    refresh_kernels(setting, board, source)
    refresh_kernels(setting, board, target)
    refresh_links(setting, board)


@njit(cache=True)
def _part_on(board: Board, item: int, device: int) -> int:
    """The piece of an item on a device, or -1."""
    if board.pieces[item] > 1:
        for piece in range(board.live[0]):
            if board.item[piece] == item and board.device[piece] == device:
                return piece
    return -1


@njit(cache=True)
def _remove(board: Board, piece: int) -> None:
    """Forget a piece; the last one takes its place."""
    board.pieces[board.item[piece]] -= 1
    board.live[0] -= 1
    last = board.live[0]
    board.item[piece], board.width[piece], board.device[piece] = board.item[last], board.width[last], board.device[last]


@njit(cache=True)
def _best_swap(setting: Setting, board: Board, device: int, targets: Ints) -> bool:
    """Swap the best pair of pieces between a device and a target; only whole items and parts without kin on the other side."""
    s, scale = _scratch(setting, board), step_ms(board)
    best_piece, best_other, best_gain, best_power = -1, -1, 0.0, 0.0
    is_target = np.zeros(board.used.size, dtype=np.bool_)
    is_target[targets] = True
    is_target[device] = False
    here = np.flatnonzero(board.device[: board.live[0]] == device)
    for other in range(board.live[0]):
        target = board.device[other]
        if not is_target[target]:
            continue
        into = row_of(setting, board.item[other], board.width[other])
        for candidate in here:
            piece = int(candidate)
            row = row_of(setting, board.item[piece], board.width[piece])
            grown = setting.bytes[row] - setting.bytes[into]
            if (
                board.used[target] + grown > setting.memory[target]
                or board.used[device] - grown > setting.memory[device]
            ):
                continue
            for column in range(s.nothing.size):
                s.change[0, column] = s.change[1, column] = setting.vectors[row, column] - setting.vectors[into, column]
            for kind in range(2):
                s.traffic[0, kind] = s.traffic[1, kind] = setting.served[row, kind] - setting.served[into, kind]
            gain, power = _gain(setting, board, device, target, s)
            if _better(gain, power, best_gain, best_power, scale) and _may_swap(setting, board, piece, other):
                best_piece, best_other, best_gain, best_power = piece, other, gain, power
    if best_piece < 0:
        return False
    _swap(setting, board, best_piece, best_other)
    return True


@njit(cache=True)
def _may_swap(setting: Setting, board: Board, piece: int, other: int) -> bool:
    """Whether two pieces may trade places: no kin on the other side, pinning and rivals respected."""
    one, two = board.item[piece], board.item[other]
    if one == two or _part_on(board, one, board.device[other]) >= 0 or _part_on(board, two, board.device[piece]) >= 0:
        return False
    if setting.rivals.size:  # rare: taken as forbidden where either has a rival at all on the other side
        if not may_lie(setting, board, one, board.device[other]) or not may_lie(
            setting, board, two, board.device[piece]
        ):
            return False
    elif setting.allowed.size:
        return setting.allowed[one, board.device[other]] and setting.allowed[two, board.device[piece]]
    return True


@njit(cache=True)
def _swap(setting: Setting, board: Board, piece: int, other: int) -> None:
    source, target = board.device[piece], board.device[other]
    for index, start, stop in ((piece, source, target), (other, target, source)):
        add_to_device(setting, board, board.item[index], board.width[index], start, -1)
        add_to_device(setting, board, board.item[index], board.width[index], stop, 1)
        board.device[index] = stop
    refresh_kernels(setting, board, source)
    refresh_kernels(setting, board, target)
    refresh_links(setting, board)


@njit(cache=True)
def _best_split(setting: Setting, board: Board, device: int, targets: Ints) -> bool:
    """Cut a piece of a device, and move a part of an eighth to a half of it to the best target."""
    s, scale = _scratch(setting, board), step_ms(board)
    widths = np.zeros(board.used.size, dtype=np.int64)
    best_piece, best_target, best_part, best_gain, best_power = -1, -1, 0, 0.0, 0.0
    for piece in range(board.live[0]):
        item, width = board.item[piece], board.width[piece]
        if board.device[piece] != device or width < 2 or board.live[0] >= board.item.size:
            continue
        widths_by_device(board, item, widths)
        whole = row_of(setting, item, width)
        for share in (2, 4, 8):
            part = width // share
            if part == 0:
                break
            left = row_of(setting, item, width - part)
            for target in targets:
                if target == device or (not widths[target] and board.pieces[item] >= setting.most[item]):
                    continue
                joined = _join(setting, item, part, widths[target], s)
                if board.used[target] + joined > setting.memory[target]:
                    continue
                s.change[0] = setting.vectors[whole] - setting.vectors[left]
                s.traffic[0] = setting.served[whole] - setting.served[left]
                gain, power = _gain(setting, board, device, target, s)
                if _better(gain, power, best_gain, best_power, scale) and may_lie(setting, board, item, target):
                    best_piece, best_target, best_part, best_gain, best_power = piece, target, part, gain, power
    if best_piece < 0:
        return False
    split_piece(setting, board, best_piece, best_part)
    move_piece(setting, board, board.live[0] - 1, best_target)
    return True


@njit(cache=True)
def split_piece(setting: Setting, board: Board, piece: int, part: int) -> None:
    """Cut `part` units off a piece; they become the last piece, on the same device for the moment."""
    item, width, device = board.item[piece], board.width[piece], board.device[piece]
    new = board.live[0]
    board.live[0] += 1
    board.pieces[item] += 1
    board.item[new], board.width[new], board.device[new] = item, part, device
    board.width[piece] = width - part
    if device >= 0:
        add_to_device(setting, board, item, width, device, -1)
        add_to_device(setting, board, item, width - part, device, 1)
        add_to_device(setting, board, item, part, device, 1)


@njit(cache=True)
def join_parts(setting: Setting, board: Board) -> None:
    """Make one piece of the parts of an item that lie on one device."""
    piece = 0
    while piece < board.live[0]:
        item, device = board.item[piece], board.device[piece]
        other = _part_on(board, item, device)
        if other < 0 or other == piece:
            piece += 1
            continue
        for index in (piece, other):
            add_to_device(setting, board, item, board.width[index], device, -1)
        board.width[other] += board.width[piece]
        add_to_device(setting, board, item, board.width[other], device, 1)
        _remove(board, piece)
        refresh_kernels(setting, board, device)
    refresh_links(setting, board)
