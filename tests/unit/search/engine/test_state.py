"""The compiled state must always agree with the plain definition: the score of the shards it stands for."""

import numpy as np
import pytest

from shardwright.cost import score
from shardwright.search.engine.descent import descend
from shardwright.search.engine.objective import refresh_times, set_objective, step_ms
from shardwright.search.engine.placing import join_kin
from shardwright.search.engine.spreading import respread
from shardwright.search.engine.state import add_piece, copy_state, drop_piece, lift, piece_on, place
from shardwright.search.engine.transfer import best_swap, best_transfer, swap, transfer
from shardwright.testing.tasks import conformance_tasks, task_of
from tests.unit.search.engine.searches import MODEL, placed, session_of

TASKS = conformance_tasks()


def assert_agrees(prepared, state, rel=1e-9):
    cost = score(prepared.task, prepared.shards(state), MODEL)
    refresh_times(state, prepared.assembly.setting)
    assert state.used.tolist() == [device.memory_bytes for device in cost.devices]
    phases = np.array(
        [[d.forward_ms, d.forward_communication_ms, d.backward_communication_ms, d.backward_ms] for d in cost.devices]
    )
    np.testing.assert_allclose(np.array(state.times), phases, rtol=rel, atol=1e-12)


def assert_linked(prepared, state):
    """Every piece hangs in exactly the lists it belongs to, and the counts hold."""
    setting, live = prepared.assembly.setting, int(state.live[0])
    for heads, lists, owner in ((state.on, state.near, state.device), (state.of, state.kin, setting.item[state.form])):
        seen = []
        for head, first in enumerate(heads):
            piece, before = first, -1
            while piece >= 0:
                assert owner[piece] == head
                assert lists[piece, 1] == before
                seen.append(piece)
                piece, before = lists[piece, 0], piece
        assert sorted(seen) == list(range(live))
    assert np.bincount(setting.item[state.form[:live]], minlength=state.pieces.size).tolist() == state.pieces.tolist()


@pytest.mark.parametrize("what", TASKS)
@pytest.mark.parametrize("spreading", [1.0, np.inf])
def test_a_state_costs_what_its_shards_cost(what, spreading):
    prepared, _ = session_of(TASKS[what])
    state = placed(prepared, np.inf, spreading)
    assert_linked(prepared, state)
    assert_agrees(prepared, state)


@pytest.mark.parametrize("what", TASKS)
def test_improving_keeps_the_account(what):
    prepared, _ = session_of(TASKS[what])
    state = placed(prepared)
    before = step_ms(state)
    for squarings in (3, 6):
        descend(state, prepared.assembly.setting, squarings, 10_000, 8)
    set_objective(state, prepared.assembly.setting, 6)
    respread(state, prepared.assembly.setting)
    assert_linked(prepared, state)
    # Row blocks may be a row shorter than the search takes them for.
    assert step_ms(state) <= before * 1.2
    cost = score(prepared.task, prepared.shards(state), MODEL)
    assert (state.used >= [device.memory_bytes for device in cost.devices]).all()
    assert step_ms(state) == pytest.approx(cost.step_ms, rel=2e-2)


@pytest.mark.parametrize("seed", range(4))
def test_sums_kept_incrementally_equal_sums_made_anew(seed):
    """After a few hundred random transfers and trades a state agrees with its shards, priced from nothing."""
    prepared, _ = session_of(task_of(20, 3, hosts=2))
    setting, rng = prepared.assembly.setting, np.random.default_rng(seed)
    state = copy_state(placed(prepared))
    for _ in range(300):
        piece, target = int(rng.integers(state.live[0])), int(rng.integers(6))
        other = int(rng.integers(state.live[0]))
        form, width = int(state.form[piece]), int(state.width[piece])
        if target == state.device[piece]:
            item, others = int(setting.item[form]), int(setting.item[state.form[other]])
            if item != others and state.device[other] != target and state.pieces[item] == state.pieces[others] == 1:
                swap(state, setting, piece, other)
        elif form < state.spread.size:  # column blocks: their nominal sizes are exact
            transfer(state, setting, piece, form, int(rng.integers(1, width + 1)), target)
    assert_linked(prepared, state)
    assert_agrees(prepared, state, rel=1e-6)


def test_a_transfer_gains_what_was_promised_or_more():
    """The objective is linearised from above, so a promise is kept."""
    prepared, _ = session_of(task_of(30, 4))
    setting = prepared.assembly.setting
    state = placed(prepared)
    for _ in range(20):
        set_objective(state, setting, 5)
        one = int(np.argmax(state.heat))
        target = int(np.argmin(state.times.sum(axis=1)))
        gain, piece, form, units = best_transfer(state, setting, one, target, 1e-9, True)
        promised, mine, theirs = best_swap(state, setting, one, target, gain)
        heat = state.heat.sum()
        if mine >= 0:
            swap(state, setting, mine, theirs)
            gain = promised
        elif piece >= 0:
            transfer(state, setting, piece, form, units, target)
        else:
            break
        assert heat - state.heat.sum() == pytest.approx(gain, rel=0.2)


def test_pieces_come_and_go():
    prepared, _ = session_of(task_of(8, 2))
    setting = prepared.assembly.setting
    state = placed(prepared)
    for piece in (5, 0, 3):
        item = int(setting.item[state.form[piece]])
        form, width, device = int(state.form[piece]), int(state.width[piece]), int(state.device[piece])
        lift(state, setting, piece)
        drop_piece(state, setting, piece)
        assert_linked(prepared, state)
        assert piece_on(state, item, device) == -1
        place(state, setting, add_piece(state, setting, form, width), device)
        assert_linked(prepared, state)
    join_kin(state, setting)
    assert_agrees(prepared, state)
