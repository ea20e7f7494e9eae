import json

import numpy as np
import pyarrow as pa
import pytest

from shardwright.cost.links import (
    FITS,
    LinkFit,
    LinkFits,
    collectives_of,
    fit_links,
    link_errors,
    links_to_text,
    repeat_error,
    split,
)
from shardwright.errors import InvalidInput
from tests.unit.cost.made_links import INTER, INTRA, rows, table


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


def assert_recovered(fit, figures, tolerance):
    assert fit.latency_ms == pytest.approx(figures[0], rel=tolerance)
    assert fit.bandwidth == pytest.approx(figures[1], rel=tolerance)


def test_latency_and_bandwidth_come_back_exactly_without_noise():
    fits = fit_links(collectives_of([table(300)]))
    assert set(fits) == set(FITS)
    for fit in fits.values():
        assert_recovered(fit.intra, INTRA, 1e-3)
        assert fit.inter is None


def test_latency_and_bandwidth_come_back_from_noise_and_disturbed_samples():
    """10% noise on times that include the waits, and every twentieth sample five times too slow."""
    fits = fit_links(collectives_of([table(1200, noise=0.1, slow=0.05), table(600, world=2, noise=0.1)]))
    for name in ("all_to_all", "all_to_all_backward", "all_reduce"):
        assert_recovered(fits[name].intra, INTRA, 0.1)


def test_both_link_classes_come_back_from_two_hosts():
    """The links inside a host are told apart only where they decide, so here they are slow enough to decide sometimes."""
    intra = (0.3, 0.5e9)
    parts = collectives_of([table(600, hosts=2, intra=intra, noise=0.02), table(600, seed=1, intra=intra, noise=0.02)])
    fit = fit_links(parts)["all_to_all"]
    assert_recovered(fit.intra, intra, 0.05)
    assert_recovered(fit.inter, INTER, 0.05)


def test_kinds_with_too_few_samples_are_left_out():
    assert set(fit_links(collectives_of([table(60)]))) == {"all_to_all", "all_to_all_forward", "all_to_all_backward"}
    assert fit_links([]) == {}


def test_figures_are_never_negative_whatever_the_times():
    """Times that fall with the bytes: no line through them has a non-negative slope and is right."""
    (part,) = collectives_of([table(120, kinds=("all_to_all",))])
    part.forward[:] = part.wait + 1 + 1e3 / part.busiest[:, 0].clip(1)
    part.backward[:] = 1 + 1e3 / part.busiest[:, 0].clip(1)
    for fits in fit_links([part]).values():
        assert fits.intra.latency_ms >= 0
        assert 0 < fits.intra.bandwidth < float("inf")


def test_predicted_times_by_hand():
    """Device 0 waits 2 ms and has 1 MB inside: 0.5 + 1 ms; device 1 has 3 MB between hosts: 1 + 6 ms; device 2 has nothing."""
    fits = LinkFits(LinkFit(0.5, 1e9), LinkFit(1.0, 0.5e9))
    busiest = np.array([[[1e6, 1e6, 0.0], [0.0, 3e6, 0.0]]])
    np.testing.assert_allclose(fits.predict(busiest, np.array([[2.0, 0.0, 4.0]])), [[3.5, 7.0, 4.0]])


def test_a_link_class_that_was_not_measured_cannot_be_predicted():
    fits = LinkFits(LinkFit(0.5, 1e9), None)
    assert fits.predict(np.array([[[1e6], [0.0]]]), np.zeros((1, 1))).tolist() == [[1.5]]
    with pytest.raises(InvalidInput, match="between hosts were not measured"):
        fits.predict(np.array([[[1e6], [1.0]]]), np.zeros((1, 1)))


def test_errors_on_held_out_collectives_are_about_the_noise():
    """A normal error of 5% has a mean absolute value of 4%, and two such differ by 5.6%."""
    (part,) = collectives_of([table(1200, noise=0.05, repeated=400)])
    train, _, test = split(part, seed=0)
    errors = link_errors(fit_links([train]), [test], [part])
    assert set(errors) == set(FITS)
    for name in ("all_to_all_forward", "all_to_all_backward"):
        assert errors[name].mean_error == pytest.approx(0.04, abs=0.01)
        assert errors[name].median_error < errors[name].mean_error
        assert errors[name].repeat_error == pytest.approx(0.056, abs=0.01)
        assert errors[name].devices == 4 * 60
    assert errors["all_to_all"].devices == 8 * 60


def test_without_repeats_there_is_no_repeat_noise():
    assert repeat_error(collectives_of([table(60, repeated=0)]), "all_to_all") is None


def test_fits_are_told_in_the_metadata():
    fits = {"all_to_all": LinkFits(LinkFit(0.25, 3e9), None)}
    assert json.loads(links_to_text(fits)) == {
        "all_to_all": {"intra": {"latency_ms": 0.25, "bandwidth": 3e9}, "inter": None}
    }
