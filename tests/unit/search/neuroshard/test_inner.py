"""The native inner search against its rules, one by one."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from shardwright import _engine
from shardwright.cost import score
from shardwright.search.neuroshard import NO_LIMIT, Placed, Score, candidates, halved, make_pieces, shards_of
from shardwright.search.units import take_apart
from shardwright.testing.model import SimpleCostModel
from tests.unit.search.neuroshard.tasks import FakeNetworks, FakeNeuroShardModel, constrained, equal_tables, random_task

MODEL = SimpleCostModel()
STEP, EMBEDDING = Score(embedding=False), Score(embedding=True)


def pieces_of(task):
    return make_pieces(task, take_apart(task), MODEL)


def some_state(cuts, seed, splits):
    """The whole tables after random splits."""
    rng, state = np.random.default_rng(seed), cuts.whole
    for _ in range(splits):
        state = halved(cuts, state, int(rng.choice(candidates(cuts, state, 10))))
    return state


@pytest.mark.parametrize("seed", range(5))
def test_the_grid_passes_over_runs_that_would_repeat_another(seed):
    """Every bound run for itself gives the same different placements, in the same order."""
    task = random_task(seed, 20, 4, room=1.2 if seed % 2 else None)
    pieces, cuts = pieces_of(task)
    state = some_state(cuts, seed, 5)
    mean = pieces.dims[state].sum() / 4
    limits = np.floor(np.linspace(1, 1.5, 11) * mean).astype(np.int64)
    each = []
    for limit in limits[::-1]:
        placed, _, device = _engine.greedy(pieces.native, state, int(limit))
        if placed == state.size and not any((device == d).all() for d in each):
            each.append(device)
    placements = _engine.grid_placements(pieces.native, state, limits)
    assert len(placements) > 1
    np.testing.assert_array_equal(placements, each)


def test_a_bound_on_dims_is_kept():
    pieces, cuts = pieces_of(equal_tables(8, 4, dim=16))
    *placed_and_dims, device = _engine.greedy(pieces.native, cuts.whole, 32)
    assert placed_and_dims == [8, 32]
    assert np.bincount(device).tolist() == [2, 2, 2, 2]
    assert _engine.greedy(pieces.native, cuts.whole, 31)[:2] == (4, 16)


def test_ties_go_to_the_lowest_rank():
    pieces, cuts = pieces_of(equal_tables(6, 4))
    assert _engine.greedy(pieces.native, cuts.whole, NO_LIMIT)[2].tolist() == [0, 1, 2, 3, 0, 1]


@pytest.mark.parametrize("seed", range(6))
def test_a_placement_costs_what_its_shards_cost(seed):
    """The ticks of the arrays are the step time of the shards, fixed shards, replicas and several hosts included."""
    task = random_task(seed, 13, 2, hosts=2)
    task = constrained(task, seed) if seed % 2 else task
    pieces, cuts = pieces_of(task)
    state = some_state(cuts, seed, 3)
    device = np.random.default_rng(seed).integers(0, 4, state.size)
    ticks = STEP(pieces, state, device)
    shards = shards_of(pieces, Placed(ticks, state, device), lambda *_: np.inf)  # nothing is joined
    cost = score(task, shards, MODEL)
    assert ticks == pytest.approx(cost.step_ms * _engine.TICKS, abs=2)
    assert EMBEDDING(pieces, state, device) == pytest.approx(cost.embedding_cost_ms * _engine.TICKS, abs=2)
    (times,), (dims,) = _engine.placement_times(pieces.native, state, device[None])
    np.testing.assert_allclose(times, [[d.forward_ms, d.backward_ms] for d in cost.devices], rtol=1e-12)
    assert dims.tolist() == [sum(s.dim for s in shards if rank in s.devices) for rank in range(4)]


@pytest.mark.parametrize("score_of", [STEP, EMBEDDING])
def test_the_lowest_of_equal_bounds_and_the_cheapest_placement_win(score_of):
    task = random_task(4, 20, 4)
    pieces, cuts = pieces_of(task)
    mean = pieces.dims[cuts.whole].sum() / 4
    limits = np.floor(np.linspace(1, 1.5, 11) * mean).astype(np.int64)
    scores = [
        score_of(pieces, cuts.whole, device) for device in _engine.grid_placements(pieces.native, cuts.whole, limits)
    ]
    ticks, device = score_of.best_of_grid(pieces, cuts.whole, limits)
    assert ticks == min(scores) == score_of(pieces, cuts.whole, device)


def test_networks_are_taken_from_the_model_that_has_them():
    task, model = random_task(0, 5, 4), FakeNeuroShardModel()
    assert Score.of(task, MODEL, embedding=True) == EMBEDDING
    assert Score.of(task, model, embedding=True) == Score(True, FakeNetworks(), task.batch_size)
    assert Score.of(task, model, embedding=False) == STEP
    assert Score.of(random_task(0, 5, 1), model, embedding=True) == EMBEDDING  # one device sends nothing


def test_by_networks_too_the_lowest_of_equal_bounds_wins():
    class Free(FakeNetworks):
        def forward_ms(self, dims, delays, batch_size):
            return np.where(delays >= 0, 0.0, np.nan)

        def backward_ms(self, dims, batch_size):
            return 1000.0 - 0 * dims

    pieces, cuts = pieces_of(equal_tables(8, 4, dim=16))
    head, added = pieces.head, pieces.added
    free = {"head": head._replace(mix=0 * head.mix), "added": added._replace(vectors=0 * added.vectors)}
    pieces = replace(pieces, **free)  # every occupied device costs the same
    limits = np.array([32, 48, 64])
    placements = _engine.grid_placements(pieces.native, cuts.whole, limits)
    assert len(placements) > 1
    _, device = Score(True, Free(), 10).best_of_grid(pieces, cuts.whole, limits)
    assert device.tolist() == placements[-1].tolist()
