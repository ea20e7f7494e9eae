"""The engine's placement by a policy, without torch: the sanitizers run these tests too."""

from types import SimpleNamespace

import numpy as np
import pytest

from shardwright._engine import place_by_policy
from shardwright.learned.priced.policy import FACTS, FEATURES, HIDDEN, SHAPES

UNITS, DEVICES, CALLS, GATES = 5, 3, 2, 1
WIDTH = 4 + 3 * GATES + 2


def placed(**changes):
    """Random arrays of a small task and of a policy, some of them changed, as they are placed."""
    rng = np.random.default_rng(0)
    shapes = {
        "device": (HIDDEN, len(FEATURES)), "facts": (HIDDEN, len(FACTS)), "bias": (HIDDEN,),
        "between": (HIDDEN, HIDDEN), "between_bias": (HIDDEN,), "last": (HIDDEN,),
    }  # fmt: skip
    layers = {name: rng.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}
    head = {"mix": rng.random((2, WIDTH - 2)), "gates": GATES, "base": rng.random(WIDTH), "once": np.ones(2)}
    arrays = {
        "bytes": np.full(UNITS, 10), "used": np.zeros(DEVICES, dtype=np.int64), "memory": np.full(DEVICES, 20),
        "allowed": np.ones((UNITS, DEVICES), dtype=bool), "rivals": np.zeros((UNITS, UNITS), dtype=bool),
    }  # fmt: skip
    task = {
        "vectors": rng.random((UNITS, CALLS, WIDTH)), "calls": rng.random((UNITS, CALLS)) < 0.7, "links": rng.random((UNITS, 3)),
        "fixed_vectors": np.zeros((DEVICES, CALLS, WIDTH)), "fixed_links": np.zeros((DEVICES, 2)),
        "fixed_calls": np.zeros((DEVICES, CALLS), dtype=bool),
        "pricing": SimpleNamespace(head=SimpleNamespace(**_changed(head, changes))), "arrays": SimpleNamespace(**_changed(arrays, changes)),
    }  # fmt: skip
    known = {
        "over": np.ones(4),
        "parts": np.full(4, 0.25),
        "facts": changes.get("known_facts", rng.random((UNITS, len(FACTS)))),
        "kernels": np.ones(UNITS),
    }
    rest = {"order": np.arange(UNITS), "noise": rng.gumbel(size=(UNITS, 3, DEVICES)), "copies": 4, "record": True}
    objects = (SimpleNamespace(**_changed(of, changes)) for of in (layers | {"gain": 8.0}, task, known))
    return place_by_policy(*objects, **_changed(rest, changes))


def _changed(fields, changes):
    return {name: changes.get(name, value) for name, value in fields.items()}


def test_memory_rules_and_rivals_hold():
    rivals = np.zeros((UNITS, UNITS), dtype=bool)
    rivals[0, 1] = rivals[1, 0] = True
    allowed = np.ones((UNITS, DEVICES), dtype=bool)
    allowed[2] = False, True, False
    assignment, times, *_ = placed(rivals=rivals, allowed=allowed)
    assert (assignment[:, 0] != assignment[:, 1]).all()
    assert set(assignment[:, 2].tolist()) <= {1, -1}
    assert (times >= 0).all()
    assert all(np.bincount(row[row >= 0], minlength=DEVICES).max() <= 2 for row in assignment)


def test_records_have_a_number_for_each_decision():
    assignment, times, seen, facts, logits, slowest = placed()
    assert seen.shape == (UNITS, 4, DEVICES, SHAPES["device.weight"][1])
    assert facts.shape == (UNITS, 4, SHAPES["facts.weight"][1])
    assert np.isneginf(logits).any()
    np.testing.assert_allclose(slowest[-1], times.max(axis=1))
    bare = placed(record=False)
    np.testing.assert_array_equal(bare[0], assignment)
    assert not any(each.size for each in bare[2:])


def test_a_unit_that_fits_nowhere_stays_unplaced():
    assignment, *_ = placed(memory=np.full(DEVICES, 10))
    assert ((assignment < 0).sum(axis=1) == UNITS - DEVICES).all()


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"order": np.array([0, 1, 2, 3, 5])}, "order has 5"),
        ({"copies": 2}, "noise must be for the last copies"),
        ({"copies": 0}, "there must be a copy"),
        ({"known_facts": np.zeros((UNITS, 3))}, "facts of the policy must have a column for each fact"),
        ({"memory": np.zeros(0, dtype=np.int64)}, "arrays.memory must be .*at least 1"),
        ({"links": np.zeros((UNITS, 2))}, "links must be a contiguous numpy array of float64"),
        ({"device": np.zeros((HIDDEN, 3), dtype=np.float32)}, "device must be .* float32"),
        ({"gates": 9}, "gates must be a whole number of at least 0 and at most 2"),
    ],
)
def test_arrays_that_do_not_fit_are_refused(changes, match):
    with pytest.raises(ValueError, match=match):
        placed(**changes)
