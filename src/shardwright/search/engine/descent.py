"""Local search: change what the hottest devices hold until nothing helps."""

from __future__ import annotations

import numpy as np
from numba import njit

from shardwright.search.engine.devices import Floats, Ints
from shardwright.search.engine.objective import set_objective, step_ms
from shardwright.search.engine.state import Setting, State
from shardwright.search.engine.transfer import best_swap, best_transfer, swap, transfer

_TARGETS = 32  # coldest devices that a change considers
_WIDEST = 256  # hottest devices that are looked at before the search takes a state for a local optimum
_WORTH = 1e-6  # of the step time: gains below are not worth a change


@njit(cache=True, nogil=True)
def descend(state: State, setting: Setting, squarings: int, most_changes: int) -> int:
    """Improve a full state until no change helps, or `most_changes` are made; returns how many were.

    Args:
        state: the state; changed.
        setting: the search.
        squarings: the power of the objective is 2 to this; see `objective`.
        most_changes: a stop.
    """
    devices = state.used.size
    scratch = np.empty((2, setting.vectors.shape[1]))
    made, failed, hot = 0, 0, max(1, devices // 16)
    while made < most_changes and failed < min(devices, _WIDEST):
        set_objective(state, setting, squarings)
        least = _WORTH * step_ms(state)
        hottest = np.argsort(-state.heat, kind="mergesort")
        targets = np.argsort(state.times.sum(axis=1), kind="mergesort")[:_TARGETS]
        before = made
        cold = False
        for rank in range(failed, min(max(4 * failed, hot), devices, _WIDEST)):
            one = hottest[rank]
            cold = state.heat[one] < least
            if cold:
                break
            if _improve(state, setting, scratch, one, targets, least):
                made += 1
                if hot == 1:
                    break
            elif made == before:
                failed = rank + 1
        if made > before:
            failed = 0
        elif cold:
            break
    return made


@njit(cache=True, nogil=True)
def _improve(state: State, setting: Setting, scratch: Floats, one: int, targets: Ints, least: float) -> bool:
    """Relieve a device by the best move or swap with the coldest target that allows one, else by cutting a piece."""
    for target in targets:
        if target != one:
            gain, piece, form, units = best_transfer(state, setting, scratch, one, target, least, False)
            _, mine, other = best_swap(state, setting, scratch, one, target, gain)
            if mine >= 0:
                swap(state, setting, mine, other)
                return True
            if piece >= 0:
                transfer(state, setting, piece, form, units, target)
                return True
    if state.live[0] < state.form.size:
        for target in targets:
            if target != one:
                _, piece, form, units = best_transfer(state, setting, scratch, one, target, least, True)
                if piece >= 0:
                    transfer(state, setting, piece, form, units, target)
                    return True
    return False
