"""The policy's choices, compiled: one unit after another, each to the device with the largest logit. No torch.

Letters: n units, d devices. Sizes and formulas are those of `weights`; weights are stored `(in, out)`.

Two things make a step cheap. A layer's inputs that are 0, about half of them behind a ReLU, are passed over. And the first layer of the
policy, W · (state, device, state × device), is (W_device + W_both · diag(state)) · device + W_state · state: one matrix a step serves
all devices.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from shardwright.jit import compiled, inner
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


@compiled
def decode(setting: Setting, weights: Decoder, order: Ints, noise: Floats, logits: Floats) -> tuple[int, Ints]:
    """Place the units in `order`.

    Args:
        setting: the task.
        weights: the policy.
        order: `(n,)` units, first to place first.
        noise: `(n, d)` added to the logits of each unit; `(0, 0)` for none.
        logits: `(n, d)` is filled with the logits of each unit, minus infinity where it may not go; `(0, 0)` to leave that out.

    Returns:
        The first unit for which no device is left, or -1, and the device of each unit `(n,)`.
    """
    count, devices = setting.allowed.shape
    fixed, memory = setting.fixed, setting.memory
    hidden = np.zeros((2, 64))
    cell = np.zeros((2, 64))
    used = setting.used.copy()
    holds = np.zeros((devices, 64))  # sum of the encodings, and the code of predicted cost and memory
    for rank in range(devices):
        holds[rank, :32] = fixed[rank]
        _describe(holds[rank], setting.occupied[rank], setting.even, used[rank] / max(memory[rank], 1), weights)
    assignment = np.full(count, -1, dtype=np.int64)
    scores = np.empty(devices)
    for step in range(count):
        unit = order[step]
        _advance(hidden, cell, setting.units[unit], step / count, weights)
        _score(scores, hidden[1], holds, setting.allowed[unit], used, memory, setting.bytes[unit], weights)
        if setting.rivals.size:
            for other in range(count):
                if setting.rivals[unit, other] and assignment[other] >= 0:
                    scores[assignment[other]] = _FORBIDDEN
        if logits.size:
            logits[unit] = scores
        best = -1
        room = memory - used
        for rank in range(devices):
            if noise.size:
                scores[rank] += noise[unit, rank]
            if scores[rank] > _FORBIDDEN and (best < 0 or _better(scores, room, rank, best)):
                best = rank
        if best < 0:
            return unit, assignment
        assignment[unit] = best
        used[best] += setting.bytes[unit]
        holds[best, :32] += setting.units[unit]
        _describe(holds[best], True, setting.even, used[best] / max(memory[best], 1), weights)
    return -1, assignment


@inner
def _better(scores: Floats, room: Ints, rank: int, best: int) -> bool:
    """Whether a device is to be preferred; among equals the one with more memory left, so that ranks do not matter."""
    gain = scores[rank] - scores[best]
    equal = _TIE * (1 + abs(scores[best]))
    return bool(gain > equal or (gain >= -equal and room[rank] > room[best]))


@inner
def _describe(holds: Floats, occupied: bool, even: float, memory: float, weights: Decoder) -> None:
    """Set the second half of a device's code from the first, which is the sum of its encodings."""
    cost = 0.0
    if occupied:
        layer = weights.cost_0_bias.copy()
        _add_product(layer, weights.cost_0, holds[:32], False)
        cost = weights.cost_1_bias
        for index in range(layer.size):
            cost += weights.cost_1[index] * max(layer[index], 0.0)
        cost /= even
    for index in range(32):
        code = weights.device[0, index] * cost + weights.device[1, index] * memory + weights.device[2, index]
        holds[32 + index] = max(code, 0.0)


@inner
def _advance(hidden: Floats, cell: Floats, unit: Floats, share: float, weights: Decoder) -> None:
    """One step of the LSTM, in place; `hidden[1]` becomes the state."""
    inputs = np.empty(128)
    inputs[:32] = unit
    for index in range(32):
        inputs[32 + index] = max(weights.share[0, index] * share + weights.share[1, index], 0.0)
    for layer in range(2):
        inputs[64:] = hidden[layer]
        gates = weights.lstm_bias[layer].copy()
        _add_product(gates, weights.lstm[layer], inputs, False)
        for index in range(64):
            kept = _sigmoid(gates[64 + index]) * cell[layer, index]
            cell[layer, index] = kept + _sigmoid(gates[index]) * np.tanh(gates[128 + index])
            hidden[layer, index] = _sigmoid(gates[192 + index]) * np.tanh(cell[layer, index])
        inputs[:64] = hidden[layer]


@inner
def _score(
    scores: Floats, state: Floats, holds: Floats, allowed: Bools, used: Ints, memory: Ints, need: int, weights: Decoder
) -> None:
    """Logits `(d,)` of the devices that are allowed and have room; minus infinity for the others."""
    first_bias = weights.bias_0.copy()
    _add_product(first_bias, weights.on_state, state, False)
    first = np.empty_like(weights.on_device)
    for row in range(first.shape[0]):
        for column in range(first.shape[1]):
            first[row, column] = weights.on_device[row, column] + weights.on_both[row, column] * state[row]
    one, two, three = np.empty(128), np.empty(128), np.empty(64)
    for rank in range(scores.size):
        scores[rank] = _FORBIDDEN
        if not allowed[rank] or used[rank] + need > memory[rank]:
            continue
        one[:] = first_bias
        _add_product(one, first, holds[rank], False)
        two[:] = weights.bias_1
        _add_product(two, weights.layer_1, one, True)
        three[:] = weights.bias_2
        _add_product(three, weights.layer_2, two, True)
        score = 0.0  # the last bias is the same for all devices
        for index in range(three.size):
            score += weights.layer_3[index] * max(three[index], 0.0)
        scores[rank] = score


@inner
def _add_product(out: Floats, weight: Floats, x: Floats, rectified: bool) -> None:
    """Add x · weight to `out`, or relu(x) · weight."""
    for row in range(x.size):
        value = x[row]
        if value == 0.0 or (rectified and value < 0.0):
            continue
        for column in range(out.size):
            out[column] += value * weight[row, column]


@inner
def _sigmoid(x: float) -> float:
    return float(1.0 / (1.0 + np.exp(-x)))
