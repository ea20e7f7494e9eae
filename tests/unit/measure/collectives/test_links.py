from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from shardwright.measure.collectives.links import CHAIN, ROUNDS, SIZES, Rung, ladders, measure_ladders
from shardwright.task.link_files import Cluster
from shardwright.task.links import COLLECTIVES, DIRECT, TORCHREC_CALLS

TWO_HOSTS, ONE_HOST, SINGLES = (Cluster("cpu", hosts, near, "gloo", "2") for hosts, near in ((2, 4), (1, 4), (4, 1)))
MIB = 2**20


@pytest.mark.parametrize(
    ("cluster", "collective", "within", "sent"),
    [
        (ONE_HOST, "all_to_all", True, (3 / 4, 0)), (TWO_HOSTS, "all_to_all", True, (3 / 4, 0)),
        (TWO_HOSTS, "all_to_all", False, (3 / 8, 4 / 8)), (SINGLES, "all_to_all", False, (0, 3 / 4)),
        (ONE_HOST, "reduce_scatter", True, (3 / 4, 0)), (TWO_HOSTS, "all_gather", False, (7 / 8, 7 / 8 / 4)),
        (SINGLES, "all_gather", False, (0, 3 / 4)), (TWO_HOSTS, "all_reduce", False, (2 * 3 / 4, 2 * 1 / 2 / 4)),
        (SINGLES, "all_reduce", False, (0, 2 * 3 / 4)), (ONE_HOST, "all_reduce", True, (2 * 3 / 4, 0)),
    ],
)  # fmt: skip
def test_bytes_by_link_class(cluster: Cluster, collective: Any, within: bool, sent: tuple[float, float]) -> None:
    sent_bytes = Rung(collective, within, MIB).sent(cluster)
    assert sent_bytes == pytest.approx(tuple(MIB * part for part in sent))


def test_a_cluster_is_measured_over_the_links_that_it_has() -> None:
    for cluster, classes in ((TWO_HOSTS, [True, False]), (ONE_HOST, [True]), (SINGLES, [False])):
        first = [ladder[0] for ladder in ladders(cluster, COLLECTIVES)]
        every = [(rung.round, rung.within, rung.collective, rung.calls) for rung in first if not rung.alone]
        one_sender = [(rung.round, rung.within, rung.collective) for rung in first if rung.alone]
        assert one_sender == [(n, within, name) for n in range(ROUNDS) for within in classes for name in DIRECT]
        alone = [(n, within, name, 1) for n in range(ROUNDS) for within in classes for name in COLLECTIVES]
        assert [row for row in every if row[3] == 1] == alone
        chains = [(n, within, name, CHAIN) for n in range(ROUNDS) for within in classes for name in DIRECT]
        assert [row for row in every if row[3] > 1] == chains


@pytest.mark.parametrize("devices", [2, 8])
def test_one_device_sends_to_all_others_of_its_group(devices: int) -> None:
    each = MIB // 4 // devices
    splits = [Rung("all_to_all", False, MIB, alone=True).splits(rank, devices) for rank in range(devices)]
    sent, received = zip(*splits, strict=True)
    assert list(sent) == [[each] * devices, *[[0] * devices] * (devices - 1)]
    assert [list(column) for column in zip(*sent, strict=True)] == list(received)


def test_known_rungs_are_not_measured_again() -> None:
    asked: list[dict[str, Any]] = []

    def ask(request: dict[str, Any], what: str) -> dict[str, Any]:
        asked.append(request["rung"])
        return {"ms": 0.001}

    known = dict(measure_ladders(ask, ONE_HOST, 1e6, {}))
    assert len(known) == len(asked) == ROUNDS * (len(TORCHREC_CALLS) * len(SIZES) + 1 + len(SIZES) // 2)
    del known[Rung("all_gather", True, SIZES[3], 1)], asked[:]
    done: list[tuple[int, int]] = []
    again = list(measure_ladders(ask, ONE_HOST, 1e6, known, lambda now, all_, _: done.append((now, all_))))
    assert again == [(Rung("all_gather", True, SIZES[3], 1), 0.001)]
    assert [rung["size"] for rung in asked] == [SIZES[3]]
    assert done == [(number, len(known) + 1) for number in range(1, len(known) + 2)]


def test_sizes_that_would_take_too_long_are_left_out() -> None:
    def ask(request: dict[str, Any], what: str) -> dict[str, Any]:
        return {"ms": request["rung"]["size"] / 1e6 * 1e3}  # 1 MB/s

    first = [
        rung.size
        for rung, _ in measure_ladders(ask, ONE_HOST, 150.0, {})
        if rung == replace(rung, collective="all_to_all", round=0)
    ]
    assert SIZES[0] < max(first) < SIZES[-1]
