"""The policy's choices with numpy alone: one unit after another, each to the device with the largest logit.

Letters: n units, d devices. Sizes and formulas are those of `weights`; weights are stored `(in, out)`.

The first layer of the policy, W · (state, device, state × device), is (W_device + W_both · diag(state)) · device + W_state · state: one
matrix a step serves all devices.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from shardwright.search.autoshard.weights import Decoder, Floats

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

_TIE = 1e-9  # logits so near are equal: rounding must not decide between equal devices
_FORBIDDEN = -np.inf


class Setting(NamedTuple):
    """A task as the greedy reads it.

    Attributes:
        units: `(n, 32)` sums of the encodings of each unit's blocks.
        bytes: `(n,)` memory a unit takes.
        allowed: `(n, d)` where a unit may go.
        rivals: `(n, n)` units to be kept apart; `(0, 0)` where there are none.
        fixed: `(d, 32)` sums of the encodings of the settled shards.
        occupied: `(d,)` whether a device holds a settled shard.
        used: `(d,)` memory that settled shards take.
        memory: `(d,)` memory of each device.
        even: predicted cost of an even share of everything, in units of `cost_scale`.
    """

    units: Floats
    bytes: Ints
    allowed: Bools
    rivals: Bools
    fixed: Floats
    occupied: Bools
    used: Ints
    memory: Ints
    even: float


def decode(
    setting: Setting, weights: Decoder, order: Ints, noise: Floats | None = None, logits: Floats | None = None
) -> tuple[int, Ints]:
    """Place the units in `order`.

    Args:
        setting: the task.
        weights: the policy.
        order: `(n,)` units, first to place first.
        noise: `(n, d)` added to the logits of each unit.
        logits: `(n, d)` is filled with the logits of each unit, minus infinity where it may not go.

    Returns:
        The first unit for which no device is left, or -1, and the device of each unit `(n,)`.
    """
    count = len(setting.allowed)
    hidden, cell, used = np.zeros((2, 64)), np.zeros((2, 64)), setting.used.copy()
    sums, occupied = setting.fixed.copy(), setting.occupied.copy()
    assignment: Ints = np.full(count, -1, dtype=np.int64)
    holds = _described(setting, sums, occupied, used, weights)
    for step, unit in enumerate(order.tolist()):
        _advance(hidden, cell, setting.units[unit], step / count, weights)
        able = setting.allowed[unit] & (used + setting.bytes[unit] <= setting.memory)
        if setting.rivals.size:
            theirs = assignment[setting.rivals[unit]]
            able[theirs[theirs >= 0]] = False
        scores = np.where(able, _scores(hidden[1], holds, weights), _FORBIDDEN)
        if logits is not None:
            logits[unit] = scores
        if not able.any():
            return unit, assignment
        best = _best(scores if noise is None else scores + noise[unit], setting.memory - used)
        assignment[unit] = best
        used[best] += setting.bytes[unit]
        sums[best] += setting.units[unit]
        occupied[best] = True
        one = slice(best, best + 1)
        holds[one] = _described(setting, sums, occupied, used, weights, one)
    return -1, assignment


def _best(scores: Floats, room: Ints) -> int:
    """The device with the highest score; among equals the one with more memory left, so that ranks do not matter."""
    highest = scores.max()
    equal = scores >= highest - _TIE * (1 + abs(highest))
    return int(np.argmax(np.where(equal, room, np.iinfo(np.int64).min)))


def _described(
    setting: Setting, sums: Floats, occupied: Bools, used: Ints, weights: Decoder, of: slice = slice(None)
) -> Floats:
    """`(d, 64)` sums of encodings of some devices, and the code of their predicted cost and memory."""
    layer = np.maximum(sums[of] @ weights.cost_0 + weights.cost_0_bias, 0.0)
    cost = np.where(occupied[of], (layer @ weights.cost_1 + weights.cost_1_bias) / setting.even, 0.0)
    memory = used[of] / np.maximum(setting.memory[of], 1)
    code = np.stack([cost, memory, np.ones_like(cost)], axis=1) @ weights.device
    return np.hstack([sums[of], np.maximum(code, 0.0)])


def _advance(hidden: Floats, cell: Floats, unit: Floats, share: float, weights: Decoder) -> None:
    """One step of the LSTM, in place; `hidden[1]` becomes the state."""
    below = np.concatenate([unit, np.maximum(weights.share[0] * share + weights.share[1], 0.0)])
    for layer in range(2):
        gates = np.concatenate([below, hidden[layer]]) @ weights.lstm[layer] + weights.lstm_bias[layer]
        let_in, kept, new, shown = gates.reshape(4, 64)
        cell[layer] = _sigmoid(kept) * cell[layer] + _sigmoid(let_in) * np.tanh(new)
        below = hidden[layer] = _sigmoid(shown) * np.tanh(cell[layer])


def _scores(state: Floats, holds: Floats, weights: Decoder) -> Floats:
    """`(d,)` logits; the last bias is the same for all devices."""
    first = weights.on_device + weights.on_both * state[:, None]
    one = np.maximum(holds @ first + (weights.bias_0 + state @ weights.on_state), 0.0)
    two = np.maximum(one @ weights.layer_1 + weights.bias_1, 0.0)
    three = np.maximum(two @ weights.layer_2 + weights.bias_2, 0.0)
    found: Floats = three @ weights.layer_3
    return found


def _sigmoid(x: Floats) -> Floats:
    found: Floats = 1.0 / (1.0 + np.exp(-x))
    return found
