"""The engine's placement by a policy, without torch: the sanitizers run these tests too."""

import numpy as np
import pytest

from shardwright._engine import place_by_policy
from shardwright.learned.priced.policy import FACTS, FEATURES, HIDDEN, SHAPES

UNITS, DEVICES, CALLS, GATES = 5, 3, 2, 1
WIDTH = 4 + 3 * GATES + 2


def arrays(**changes):
    """Random arrays of a small task and of a policy."""
    rng = np.random.default_rng(0)
    layers = {
        "device_weight": (HIDDEN, len(FEATURES)), "facts_weight": (HIDDEN, len(FACTS)), "facts_bias": (HIDDEN,),
        "between_weight": (HIDDEN, HIDDEN), "between_bias": (HIDDEN,), "last_weight": (HIDDEN,),
    }  # fmt: skip
    given = {name: rng.normal(size=shape).astype(np.float32) for name, shape in layers.items()}
    return given | {
        "gain": np.full(1, 8.0), "vectors": rng.random((UNITS, CALLS, WIDTH)), "calls": rng.random((UNITS, CALLS)) < 0.7,
        "links": rng.random((UNITS, 3)), "fixed_vectors": np.zeros((DEVICES, CALLS, WIDTH)), "fixed_links": np.zeros((DEVICES, 2)),
        "fixed_calls": np.zeros((DEVICES, CALLS), dtype=bool), "base": rng.random(WIDTH), "once": np.ones(2), "over": np.ones(4),
        "mix": rng.random((2, WIDTH - 2)), "gates": np.array([GATES]), "parts": np.full(4, 0.25), "facts": rng.random((UNITS, len(FACTS))),
        "kernels": np.ones(UNITS), "bytes": np.full(UNITS, 10), "used": np.zeros(DEVICES, dtype=np.int64), "memory": np.full(DEVICES, 20),
        "allowed": np.ones((UNITS, DEVICES), dtype=bool), "rivals": np.zeros((0, 0), dtype=bool), "order": np.arange(UNITS),
        "noise": rng.gumbel(size=(UNITS, 3, DEVICES)), "copies": np.array([4]), "record": np.array([True]),
    } | changes  # fmt: skip


def test_memory_rules_and_rivals_hold():
    rivals = np.zeros((UNITS, UNITS), dtype=bool)
    rivals[0, 1] = rivals[1, 0] = True
    allowed = np.ones((UNITS, DEVICES), dtype=bool)
    allowed[2] = False, True, False
    assignment, times, *_ = place_by_policy(**arrays(rivals=rivals, allowed=allowed))
    assert (assignment[:, 0] != assignment[:, 1]).all()
    assert set(assignment[:, 2].tolist()) <= {1, -1}
    assert (times >= 0).all()
    assert all(np.bincount(row[row >= 0], minlength=DEVICES).max() <= 2 for row in assignment)


def test_what_is_recorded_has_a_number_for_each_decision():
    assignment, times, seen, facts, logits, slowest = place_by_policy(**arrays())
    assert seen.shape == (UNITS, 4, DEVICES, SHAPES["device.weight"][1])
    assert facts.shape == (UNITS, 4, SHAPES["facts.weight"][1])
    assert np.isneginf(logits).any()
    np.testing.assert_allclose(slowest[-1], times.max(axis=1))
    bare = place_by_policy(**arrays(record=np.array([False])))
    np.testing.assert_array_equal(bare[0], assignment)
    assert not any(each.size for each in bare[2:])


def test_a_unit_that_fits_nowhere_stays_unplaced():
    assignment, *_ = place_by_policy(**arrays(memory=np.full(DEVICES, 10)))
    assert ((assignment < 0).sum(axis=1) == UNITS - DEVICES).all()


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"order": np.array([0, 1, 2, 3, 5])}, "order has 5"),
        ({"copies": np.array([2])}, "noise must be for the last copies"),
        ({"copies": np.array([0])}, "there must be a copy"),
        ({"facts": np.zeros((UNITS, 3))}, "facts_weight must have a column for each fact"),
        ({"memory": np.zeros(0, dtype=np.int64)}, "there must be a device"),
        ({"links": np.zeros((UNITS, 2))}, "links must be a contiguous numpy array of float64"),
        ({"device_weight": np.zeros((HIDDEN, 3), dtype=np.float32)}, "device_weight must be .* float32"),
        ({"gates": np.array([9])}, "gates must have three hidden units each"),
    ],
)
def test_arrays_that_do_not_fit_are_refused(changes, match):
    with pytest.raises(ValueError, match=match):
        place_by_policy(**arrays(**changes))
