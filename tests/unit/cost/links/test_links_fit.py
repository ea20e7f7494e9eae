import numpy as np
import pytest

from shardwright.cost.links import FITS, LinkFit, LinkFits, collectives_of, fit_links, link_errors, repeat_error, split
from shardwright.errors import InvalidInput
from tests.unit.cost.links.made import INTER, INTRA, table


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
