"""Local search: change what the hottest devices hold until nothing helps."""

from __future__ import annotations

import numpy as np

from shardwright.jit import compiled, inner
from shardwright.search.engine.devices import Ints
from shardwright.search.engine.objective import set_objective, step_ms
from shardwright.search.engine.state import NOTHING, Setting, State
from shardwright.search.engine.transfer import best_swap, best_transfer, swap, transfer

_TARGETS = 16  # coldest devices that a change considers
_CUT_TARGETS = 4  # of these, the coldest, that cutting a piece considers
_WORTH = 1e-6  # of the step time: gains below are not worth a change


@compiled
def descend(state: State, setting: Setting, squarings: int, most_changes: int, widest: int) -> int:
    """Improve a full state until no change helps, or `most_changes` are made; returns how many were.

    Args:
        state: the state; changed.
        setting: the search.
        squarings: the power of the objective is 2 to this; see `objective`.
        most_changes: a stop.
        widest: hottest devices that are looked at before a state is taken for a local optimum.
    """
    devices = state.used.size
    hot, rest = max(1, devices // 16), max(2, devices // 8)
    tried = np.full(devices, NOTHING)  # changes that had been made when a device was last found to be stuck
    made, looked_at = 0, hot
    while made < most_changes:
        set_objective(state, setting, squarings)
        least = _WORTH * step_ms(state)
        hottest = np.argsort(-state.heat, kind="mergesort")
        targets = np.argsort(state.times.sum(axis=1), kind="mergesort")[:_TARGETS]
        before, cold = made, False
        for one in hottest[:looked_at]:
            cold = state.heat[one] < least
            if cold:
                break
            if looked_at == hot and tried[one] >= 0 and made - tried[one] < rest:
                continue
            if tried[one] == made:
                continue
            if _improve(state, setting, one, targets, least):
                made += 1
                if hot == 1:
                    break
            else:
                tried[one] = made
        if made > before:
            looked_at = hot
        elif cold or looked_at >= min(devices, widest):
            break
        else:
            looked_at = min(4 * looked_at, devices, widest)
    return made


@inner
def _improve(state: State, setting: Setting, one: int, targets: Ints, least: float) -> bool:
    """Relieve a device by the best move or swap with the coldest target that allows one, else by cutting a piece."""
    for target in targets:
        if target != one:
            gain, piece, form, units = best_transfer(state, setting, one, target, least, False)
            _, mine, other = best_swap(state, setting, one, target, gain)
            if mine >= 0:
                swap(state, setting, mine, other)
                return True
            if piece >= 0:
                transfer(state, setting, piece, form, units, target)
                return True
    if state.live[0] < state.form.size:
        for target in targets[:_CUT_TARGETS]:
            if target != one:
                _, piece, form, units = best_transfer(state, setting, one, target, least, True)
                if piece >= 0:
                    transfer(state, setting, piece, form, units, target)
                    return True
    return False
