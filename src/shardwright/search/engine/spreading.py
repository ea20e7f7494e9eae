"""Changing between single pieces and spreads, which touches many devices at once."""

from __future__ import annotations

from numba import njit

from shardwright.search.engine.objective import refresh_heat, refresh_times
from shardwright.search.engine.placing import coolest_device
from shardwright.search.engine.state import NOTHING, Setting, State, add_piece, book_spread, drop_piece, lift, place


@njit(cache=True, nogil=True)
def respread(state: State, setting: Setting) -> int:
    """Spread every whole item, and gather every spread one, for which that lowers the objective; returns how many changed."""
    changed = 0
    for item in range(state.spread.size):
        if state.spread[item] >= 0:
            changed += _gather(state, setting, item)
        elif state.pieces[item] == 1 and not setting.rivals.size:
            for spread in range(setting.spread_first[item], setting.spread_first[item + 1]):
                if _try_spread(state, setting, state.of[item], spread):
                    changed += 1
                    break
    return changed


@njit(cache=True, nogil=True)
def _try_spread(state: State, setting: Setting, piece: int, spread: int) -> bool:
    """Spread the item of a whole piece, and undo that if it does not help."""
    if not _fits(
        state,
        setting,
        spread,
        state.device[piece],
        setting.bytes[setting.first[state.form[piece]] + state.width[piece] - 1],
    ):
        return False
    before, one = state.heat.sum(), state.device[piece]
    lift(state, setting, piece)
    book_spread(state, setting, spread, 1)
    refresh_times(state, setting)
    refresh_heat(state)
    if state.heat.sum() < before * (1 - 1e-9):
        state.spread[setting.item[state.form[piece]]] = spread
        drop_piece(state, setting, piece)
        return True
    book_spread(state, setting, spread, -1)
    place(state, setting, piece, one)
    refresh_times(state, setting)
    refresh_heat(state)
    return False


@njit(cache=True, nogil=True)
def _fits(state: State, setting: Setting, spread: int, leaving: int, freed: int) -> bool:
    for index in range(setting.spread_begin[spread], setting.spread_begin[spread + 1]):
        device = setting.spread_device[index]
        room = setting.memory[device] - state.used[device] + (freed if device == leaving else 0)
        if setting.spread_bytes[spread] > room:
            return False
    return True


@njit(cache=True, nogil=True)
def _gather(state: State, setting: Setting, item: int) -> bool:
    """Put a spread item whole on a device if that helps."""
    if not setting.legal[setting.first[item + 1] - 1]:
        return False
    spread, before = state.spread[item], state.heat.sum()
    book_spread(state, setting, spread, -1)
    refresh_times(state, setting)
    refresh_heat(state)
    piece = add_piece(state, setting, item, setting.first[item + 1] - setting.first[item])
    device = coolest_device(state, setting, piece)
    if device >= 0:
        place(state, setting, piece, device)
        refresh_times(state, setting)
        refresh_heat(state)
        if state.heat.sum() < before * (1 - 1e-9):
            state.spread[item] = NOTHING
            return True
        lift(state, setting, piece)
    drop_piece(state, setting, piece)
    book_spread(state, setting, spread, 1)
    refresh_times(state, setting)
    refresh_heat(state)
    return False
