"""The beam alone, with inner searches made up."""

from __future__ import annotations

import numpy as np
import pytest

from shardwright.search.neuroshard.beam import Beam, Width, candidates, halved
from shardwright.search.neuroshard.pieces import Cuts, make_pieces
from shardwright.search.units import take_apart
from shardwright.task import Constraints, Table, TableConstraint, Task, Topology
from shardwright.testing.model import SimpleCostModel


def cuts_of(*dims: int, limits: dict | None = None) -> Cuts:
    """Tables t0, t1, … of these dims, each looked up less than the one before it."""
    tables = [Table(f"t{i}", rows=1000, dim=dim, pooling=1000.0 / 10**i) for i, dim in enumerate(dims)]
    task = Task(tables, Topology(devices_per_host=2), 256, constraints=Constraints(limits or {}))
    return make_pieces(task, take_apart(task), SimpleCostModel())[1]


def run(cuts: Cuts, costs, *, tried=10, kept=3, steps=10, threads=1) -> tuple[Beam, list]:
    """Search with the cost of a state given by its tables' piece counts; also the states priced, as piece counts."""
    seen = []

    def inner(state):
        counts = tuple(np.bincount(cuts.table[state]).tolist())
        seen.append(counts)
        return float(costs(counts)), state

    beam = Beam(cuts, inner, Width(tried, kept, steps), threads, None)
    beam.search()
    return beam, seen


def counts_of(cuts: Cuts, beam: Beam) -> list[int]:
    return np.bincount(cuts.table[beam.best.state]).tolist()


def test_halves_are_divisible_by_four():
    cuts = cuts_of(64, 24, 12, 4, 6)
    chain = {int(cuts.table[row]): 0 for row in cuts.whole}
    for row in cuts.whole:
        step = row
        while cuts.half[step] >= 0:
            step = cuts.half[step]
            chain[int(cuts.table[row])] += 1
    assert chain == {0: 4, 1: 1, 2: 0, 3: 0, 4: 0}  # 64 → 4; 24 → 12; no half of 12, 4 and 6


def test_candidates_are_the_largest_by_cost_and_by_size():
    cuts = cuts_of(8, 8, 8, 32, 64)
    tables = cuts.table[candidates(cuts, cuts.whole, 2)]
    assert sorted(tables.tolist()) == [0, 1, 3, 4]


def test_pieces_that_cannot_be_halved_keep_their_place_among_the_largest():
    cuts = cuts_of(12, 8, 64)
    assert cuts.table[candidates(cuts, cuts.whole, 1)].tolist() == [2]  # t0 is the costliest, and 12 has no half


def test_constraints_say_what_may_be_cut():
    limits = {"t0": TableConstraint(sharding_types=("table_wise",)), "t1": TableConstraint(max_shards=2)}
    cuts = cuts_of(64, 64, 64, limits=limits)
    assert cuts.table[candidates(cuts, cuts.whole, 10)].tolist() == [1, 2]
    state = halved(cuts, cuts.whole, int(cuts.whole[cuts.table[cuts.whole] == 1][0]))
    assert set(cuts.table[candidates(cuts, state, 10)]) == {2}


def test_halving_replaces_one_piece_by_two():
    cuts = cuts_of(32, 16)
    state = halved(cuts, cuts.whole, int(cuts.whole[0]))
    state = halved(cuts, state, int(cuts.half[cuts.whole[0]]))
    assert (np.diff(state) >= 0).all()
    assert np.bincount(cuts.table[state]).tolist() == [3, 1]


def test_it_goes_through_states_that_are_worse_to_find_a_better_one():
    cuts = cuts_of(64, 64)
    beam, _ = run(cuts, lambda counts: {(1, 1): 5.0, (3, 1): 1.0}.get(counts, 9.0))
    assert counts_of(cuts, beam) == [3, 1]


def test_it_keeps_the_best_seen_not_the_last():
    cuts = cuts_of(64, 64)
    beam, seen = run(cuts, sum)
    assert counts_of(cuts, beam) == [1, 1]
    assert max(map(sum, seen)) == 12  # all ten steps were made


def test_only_the_best_go_on():
    cuts = cuts_of(32, 32, 32)
    _, seen = run(
        cuts, lambda counts: {(2, 1, 1): 1.0, (1, 2, 1): 2.0, (1, 1, 2): 3.0}.get(counts, 4.0), kept=1, steps=2
    )
    assert set(seen[4:]) == {(3, 1, 1), (2, 2, 1), (2, 1, 2)}


def test_a_state_is_priced_once_however_it_was_reached():
    cuts = cuts_of(8, 8, 8)
    _, seen = run(cuts, sum)
    assert len(seen) == len(set(seen)) == 8


def test_it_ends_where_nothing_can_be_halved():
    cuts = cuts_of(4, 12)
    _, seen = run(cuts, sum)
    assert seen == [(1, 1)]


def test_no_placement_so_far_does_not_end_the_search():
    cuts = cuts_of(64, 64)
    beam, _ = run(cuts, lambda counts: 7.0 if sum(counts) > 4 else np.inf)
    assert beam.best.ticks == 7.0


@pytest.mark.parametrize("threads", [1, 2, 4])
def test_ctrl_c_gives_the_best_so_far(threads):
    cuts = cuts_of(64, 64, 64)
    calls = []

    def costs(counts):
        calls.append(counts)
        if len(calls) == 9:
            raise KeyboardInterrupt
        return 100 - sum(counts)

    beam, seen = run(cuts, costs, threads=threads)
    assert 4 <= sum(counts_of(cuts, beam)) <= 6
    assert len(seen) < 30


def test_ctrl_c_before_any_placement_ends_the_search():
    cuts = cuts_of(64, 64)

    def costs(counts):
        if sum(counts) > 3:
            raise KeyboardInterrupt
        return np.inf

    with pytest.raises(KeyboardInterrupt):
        run(cuts, costs)
