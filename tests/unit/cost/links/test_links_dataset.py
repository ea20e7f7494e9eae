import numpy as np
import pyarrow as pa
import pytest

from shardwright.cost.links import collectives_of, split
from shardwright.errors import InvalidInput
from tests.unit.cost.links.made import rows, table


def changed(name, value, kind="all_to_all"):
    made = list(rows(12))
    row = next(row for row in made if row["kind"] == kind)
    row[name] = value
    return pa.Table.from_pylist(made)


def test_stores_are_joined_by_devices_and_hosts_and_their_samples_kept_apart():
    parts = collectives_of([table(12), table(12, seed=1), table(12, world=2), table(12, hosts=2)])
    assert [part.label for part in parts] == ["2 devices", "4 devices", "4 devices on 2 hosts"]
    assert [len(np.unique(part.sample)) for part in parts] == [12, 24, 12]
    assert len(np.unique(np.concatenate([part.sample for part in parts]))) == 48
    assert parts[1].dims.shape == (len(parts[1]), 4)


def test_only_all_to_alls_have_dims_and_a_backward_pass():
    (part,) = collectives_of([table(12)])
    passes = part.kind == "all_to_all"
    assert passes.any()
    assert not passes.all()
    for values in (part.dims, part.backward):
        assert np.isfinite(values[passes]).all()
        assert np.isnan(values[~passes]).all()


def test_the_busier_direction_counts_and_the_last_to_start_waits_for_nobody():
    made = list(rows(1, repeated=0))
    made[0] |= {"sent_intra": [1, 2, 3, 4], "received_intra": [4, 3, 2, 1], "delays_ms": [0.0, 2.0, 5.0, 1.0]}
    (part,) = collectives_of([pa.Table.from_pylist(made)])
    assert part.busiest[0].tolist() == [[4, 3, 3, 4], [0, 0, 0, 0]]
    assert part.wait[0].tolist() == [5, 3, 0, 4]


def test_the_split_shares_out_each_kind_and_keeps_repeats_together():
    (part,) = collectives_of([table(600, repeated=300)])
    parts = split(part, seed=3)
    ids = [set(p.sample.tolist()) for p in parts]
    assert sum(map(len, ids)) == len(set.union(*ids)) == 600
    assert sum(map(len, parts)) == 900
    for kind, total in (("all_to_all", 300), ("all_gather", 100)):
        assert [len(set(p.of_kind(kind).sample.tolist())) for p in parts] == [0.8 * total, 0.1 * total, 0.1 * total]
    assert set(split(part, seed=4)[2].sample.tolist()) != ids[2]


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
        ("sent_intra", [-1, 0, 0, 0], "bytes sent and received must be"),
        ("kind", "broadcast", "broadcast"),
        ("hosts", 9, "1 ≤ hosts ≤ devices"),
    ],
)
def test_rows_that_contradict_themselves_are_refused(name, value, says):
    with pytest.raises(InvalidInput, match=says):
        collectives_of([changed(name, value)])


def test_no_stores_hold_nothing():
    assert collectives_of([]) == []
    assert collectives_of([table(6).slice(0, 0)]) == []
