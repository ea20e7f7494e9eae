import numpy as np
import pyarrow as pa
import pytest

from shardwright.errors import InvalidInput
from shardwright.modelling.neuroshard_collectives import collectives_of, repeat_error
from tests.unit.modelling.made_collectives import rows, table


def changed(name, value):
    made = list(rows(12))
    made[0][name] = value
    return pa.Table.from_pylist(made)


def test_stores_are_joined_by_devices_and_their_samples_kept_apart():
    parts = collectives_of([table(12), table(12, seed=1), table(12, world=2)])
    assert [part.label for part in parts] == ["2 devices", "4 devices"]
    assert [len(np.unique(part.sample)) for part in parts] == [12, 24]
    assert len(np.unique(np.concatenate([part.sample for part in parts]))) == 36
    assert parts[1].dims.shape == (len(parts[1]), 4)


def test_repeats_are_aligned_row_by_row():
    (part,) = collectives_of([table(30, repeated=7, noise=0.1)])
    first, second = part.repeated()
    assert first.sample.tolist() == second.sample.tolist() == list(range(7))
    assert (first.repeat == 0).all()
    assert (second.repeat == 1).all()
    assert (first.forward != second.forward).all()


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("forward_ms", [1.0, 2.0, 3.0], "forward_ms of sample 0 has 3 numbers for 4 devices"),
        ("backward_ms", [], "backward_ms of sample 0 has 0 numbers for 4 devices"),
        ("forward_ms", None, "has 0 numbers"),
        ("forward_ms", [1.0, 2.0, float("nan"), 1.0], "forward_ms holds a time that is not finite"),
        ("backward_ms", [1.0, 0.0, 1.0, 1.0], "backward_ms holds a time that is not finite and greater than 0"),
        ("delays_ms", [-1.0, 0.0, 0.0, 0.0], "delays_ms must be finite and at least 0"),
        ("dims", [-1, 0, 0, 0], "dims must be finite and at least 0"),
    ],
)
def test_rows_that_contradict_themselves_are_refused(name, value, says):
    with pytest.raises(InvalidInput, match=says):
        collectives_of([changed(name, value)])


def test_no_stores_hold_nothing():
    assert collectives_of([]) == []
    assert collectives_of([table(6).slice(0, 0)]) == []


def test_without_repeats_there_is_no_repeat_noise():
    (part,) = collectives_of([table(60, repeated=0)])
    assert repeat_error(part, "forward") is None
    (noisy,) = collectives_of([table(400, repeated=400, noise=0.05)])  # two normal errors of 5% differ by 5.6%
    assert repeat_error(noisy, "backward") == pytest.approx(0.056, abs=0.01)
