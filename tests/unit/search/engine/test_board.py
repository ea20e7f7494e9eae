"""The compiled state must always agree with the plain definition: the score of the shards it stands for."""

import numpy as np
import pytest

from shardwright.cost import score
from shardwright.search.engine.board import refresh, step_ms
from shardwright.search.engine.improve import improve, move_piece, split_piece
from shardwright.search.engine.session import Session
from shardwright.search.engine.setup import copy_board, shards_on
from shardwright.search.units import take_apart
from shardwright.testing.model import SimpleCostModel
from shardwright.testing.tasks import conformance_tasks, task_of

MODEL = SimpleCostModel()
TASKS = conformance_tasks()


def session_of(task) -> Session:
    return Session(task, take_apart(task), MODEL, np.random.default_rng(0))


@pytest.mark.parametrize("what", TASKS)
@pytest.mark.parametrize("limit", [np.inf, 0.5])
def test_a_board_costs_what_its_shards_cost(what, limit):
    task = TASKS[what]
    session = session_of(task)
    if session.start(limit, 0.0) is not None:  # cut tables take more memory than the tightest task has
        assert what == "memory that fits to the byte"
        assert limit < np.inf
        return
    cost = score(task, session.shards(), MODEL)
    assert session.best_ms == pytest.approx(cost.step_ms, rel=1e-9)
    assert session.best.used.tolist() == [device.memory_bytes for device in cost.devices]
    phases = [
        [d.forward_ms, d.forward_communication_ms, d.backward_communication_ms, d.backward_ms] for d in cost.devices
    ]
    occupied = [device for device in range(len(phases)) if phases[device][0] > 0]
    np.testing.assert_allclose(session.best.times[occupied], np.array(phases)[occupied], rtol=1e-9)


@pytest.mark.parametrize("seed", range(4))
def test_sums_kept_incrementally_equal_sums_made_anew(seed):
    """After a few hundred random splits and moves the board agrees with its shards, priced from nothing."""
    task = task_of(20, 3, hosts=2)
    session = session_of(task)
    session.start(np.inf, 0.0)
    board, rng = copy_board(session.best), np.random.default_rng(seed)
    for _ in range(300):
        piece = int(rng.integers(board.live[0]))
        if board.width[piece] > 1 and board.live[0] < board.item.size and rng.random() < 0.4:
            split_piece(session.setting, board, piece, int(rng.integers(1, board.width[piece])))
            piece = int(board.live[0]) - 1
        target = int(rng.integers(6))
        if target != board.device[piece]:
            move_piece(session.setting, board, piece, target)
        elif (board.item[: board.live[0]] == board.item[piece]).sum() > 1:
            move_piece(session.setting, board, piece, (target + 1) % 6)
    refresh(session.setting, board)
    shards = shards_on(session._units, session._items, board)
    assert step_ms(board) == pytest.approx(score(task, shards, MODEL).step_ms, rel=1e-6)


def test_improving_never_makes_a_step_slower_and_ends():
    session = session_of(task_of(30, 4))
    session.start(np.inf, 0.0)
    board = copy_board(session._empty)
    board.device[:30] = np.random.default_rng(1).integers(0, 4, 30)
    from shardwright.search.engine.board import add_to_device

    for piece in range(30):
        add_to_device(session.setting, board, board.item[piece], board.width[piece], board.device[piece], 1)
    refresh(session.setting, board)
    before = step_ms(board)
    for _ in range(2000):
        if not improve(session.setting, board, 1, True):
            break
        after = step_ms(board)
        assert after <= before * (1 + 1e-9)
        before = after
    else:
        pytest.fail("no local optimum after 2,000 changes")
