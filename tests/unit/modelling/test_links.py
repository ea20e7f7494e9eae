from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from shardwright.measure.collectives.links import Rung, ladders
from shardwright.modelling.links import cached_links, fit_speeds, links_path, measured_links, predicted_ms
from shardwright.task import Links, LinkSpeed, Topology
from shardwright.task.link_files import Cluster, MeasuredLinks
from shardwright.task.links import COLLECTIVES

CLUSTER = Cluster("cpu", 2, 4, "gloo", "2")
INTRA, INTER = LinkSpeed(0.03, 20e9), LinkSpeed(0.2, 1e9)


def times(cluster: Cluster, noise: float = 0.0, slow: float = 0.0, inter: LinkSpeed = INTER) -> dict[Rung, float]:
    """Ms by rung, a share `slow` five times too long."""
    rng = np.random.default_rng(0)
    ms_by_rung = {}
    for rung in (rung for ladder in ladders(cluster, COLLECTIVES) for rung in ladder):
        (ms,) = predicted_ms((INTRA, inter), np.array([rung.sent(cluster)]))
        ms_by_rung[rung] = float(ms * np.exp(noise * rng.standard_normal()) * (5 if rng.random() < slow else 1))
    return ms_by_rung


@pytest.mark.parametrize("shape", [(2, 4), (1, 4), (4, 1)])
def test_latency_and_bandwidth_come_back(shape: tuple[int, int]) -> None:
    cluster = replace(CLUSTER, hosts=shape[0], devices_per_host=shape[1])
    measured = measured_links(cluster, times(cluster))
    for collective in COLLECTIVES:
        for speed, expected, there in zip(
            measured.links.of(collective), (INTRA, INTER), (shape[1] > 1, shape[0] > 1), strict=True
        ):
            if not there:
                assert speed is None
                continue
            assert speed.latency_ms == pytest.approx(expected.latency_ms, rel=1e-3)
            assert speed.bandwidth == pytest.approx(expected.bandwidth, rel=1e-3)
        assert all(error.held_out < 1e-3 and error.repeats == 0 for error in measured.errors[collective].values())


@pytest.mark.parametrize(
    ("following", "expected"), [(0.05, 0.05), (-1.0, 0.0), (9.0, 0.2)], ids=["less", "noise", "no more than alone"]
)
def test_chains_give_the_latency_of_collectives_that_follow_at_once(following: float, expected: float) -> None:
    cluster = replace(CLUSTER, devices_per_host=1)
    ms_by_rung = times(cluster)
    for rung in [rung for rung in ms_by_rung if rung.calls > 1]:
        ms_by_rung[rung] = ms_by_rung[replace(rung, calls=1)] + (rung.calls - 1) * (
            following + 1e3 * rung.sent(cluster)[1] / INTER.bandwidth
        )
    links = measured_links(cluster, ms_by_rung).links
    assert links.all_to_all[1].following_ms == pytest.approx(expected, rel=1e-3)
    assert links.all_to_all[1].latency_ms == pytest.approx(INTER.latency_ms, rel=1e-3)
    assert all(speed is None or speed.following_ms is None for speed in (links.all_to_all[0], *links.all_gather))


@pytest.mark.parametrize(("factor", "expected"), [(1.5, 1.5e9), (9.0, 4e9), (1.02, None), (0.5, None)])
def test_links_that_carry_clearly_more_for_one_sender_say_how_much(factor: float, expected: float | None) -> None:
    ms_by_rung = times(CLUSTER)
    for rung in [rung for rung in ms_by_rung if rung.alone]:
        speeds = LinkSpeed(0.03, factor * 20e9), LinkSpeed(0.2, factor * 1e9)
        (ms_by_rung[rung],) = predicted_ms(speeds, np.array([rung.sent(CLUSTER)]))
    links = measured_links(CLUSTER, ms_by_rung).links
    assert links.all_to_all[1].bandwidth == pytest.approx(1e9, rel=1e-3)
    assert links.all_to_all[1].alone == (None if expected is None else pytest.approx(expected, rel=1e-3))
    assert links.all_gather[1] == replace(links.all_to_all[1], alone=None, following_ms=None)


def test_a_few_noisy_sizes_of_one_sender_give_no_speed() -> None:
    ms_by_rung = times(CLUSTER, noise=0.3)
    few = {rung: ms for rung, ms in ms_by_rung.items() if not rung.alone or (rung.within and rung.size < 2**17)}
    assert measured_links(CLUSTER, few).links.all_to_all[1].alone is None
    for speeds in (measured_links(CLUSTER, few).links, measured_links(CLUSTER, ms_by_rung).links):
        for speed in speeds.all_to_all:
            assert speed.alone is None or speed.alone < 2 * speed.bandwidth


def test_noise_and_disturbed_runs_move_them_little_and_are_told() -> None:
    measured = measured_links(CLUSTER, times(CLUSTER, noise=0.05, slow=0.05))
    for collective in COLLECTIVES:
        for speed, expected in zip(measured.links.of(collective), (INTRA, INTER), strict=True):
            assert speed.latency_ms == pytest.approx(expected.latency_ms, rel=0.3)
            assert speed.bandwidth == pytest.approx(expected.bandwidth, rel=0.3)
        for error in measured.errors[collective].values():
            assert 0.02 < error.held_out < 0.5
            assert error.repeats > 0.02


def test_links_between_hosts_that_never_decide_are_still_numbers() -> None:
    """Simulated hosts of one machine: times inside hosts decide, and the fit must not be slower than these show."""
    links = measured_links(CLUSTER, times(CLUSTER, inter=LinkSpeed(0.0, 100e9))).links
    for collective in COLLECTIVES:
        intra, inter = links.of(collective)
        assert inter.bandwidth > 1e9
        assert inter.latency_ms <= 2 * intra.latency_ms


def test_times_that_fall_with_the_bytes_give_possible_figures() -> None:
    sent = np.array([[1e4, 0], [1e5, 0], [1e6, 0], [1e7, 0]])
    intra, inter = fit_speeds(sent, np.array([4.0, 3.0, 2.0, 1.0]))
    assert inter is None
    assert intra.latency_ms >= 0
    assert 0 < intra.bandwidth < float("inf")


def test_collectives_of_too_few_sizes_are_left_out() -> None:
    few = {rung: ms for rung, ms in times(CLUSTER).items() if rung.size < 2**15 or rung.collective == "all_gather"}
    measured = measured_links(CLUSTER, few)
    assert set(measured.errors) == {"all_gather"}
    assert measured.links.all_reduce == (None, None)


def test_cached_links_are_those_of_such_a_cluster(cache_folder: Path) -> None:
    topology = Topology(2, 4)
    assert cached_links(topology) is None
    path = links_path("cpu", 2, 4)
    path.parent.mkdir(parents=True)
    measured = MeasuredLinks(CLUSTER, Links(all_to_all=(INTRA, INTER)), {}, "2026-11-28")
    measured.save(path)
    assert path == cache_folder / "links" / "cpu-2x4.json"
    assert cached_links(topology) == measured
    for other in (Topology(4, 4), Topology(2, 2), Topology(2, 4, "h100")):
        assert cached_links(other) is None


def test_a_damaged_file_in_the_cache_is_moved_aside_with_a_warning(cache_folder: Path) -> None:
    path = links_path("cpu", 1, 2)
    path.parent.mkdir(parents=True)
    path.write_text("{")
    with pytest.warns(UserWarning, match="moved aside"):
        assert cached_links(Topology(1, 2)) is None
    assert [file.name for file in path.parent.iterdir()] == ["cpu-1x2.json.damaged"]
    assert cached_links(Topology(1, 2)) is None
