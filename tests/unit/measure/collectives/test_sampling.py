from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardwright.errors import InvalidInput
from shardwright.measure.collectives.sampling import (
    ALL_GATHER,
    ALL_TO_ALL,
    KINDS,
    CollectiveSpace,
    all_to_all_volumes,
    ring_volumes,
    samples_of,
)
from shardwright.task import AccessProfile, Table

POOL = tuple(Table(f"t{i}", 1000, 16, 0.5 + i, access=AccessProfile.uniform(1000)) for i in range(9))


def test_a_sample_follows_from_the_seed_and_its_number_alone() -> None:
    space = CollectiveSpace(POOL, 4, seed=3)
    forwards = [space.draw(sample) for sample in range(40)]
    backwards = [CollectiveSpace(POOL, 4, seed=3).draw(sample) for sample in reversed(range(40))]
    assert forwards == backwards[::-1]
    assert forwards != [CollectiveSpace(POOL, 4, seed=4).draw(sample) for sample in range(40)]


def test_three_of_four_samples_are_all_to_all_and_the_others_take_turns() -> None:
    kinds = [CollectiveSpace(POOL, 2).draw(sample).kind for sample in range(24)]
    assert Counter(kinds) == {ALL_TO_ALL: 18, **dict.fromkeys(KINDS[1:], 2)}
    assert {CollectiveSpace(POOL, 2, kinds=[ALL_TO_ALL]).draw(sample).kind for sample in range(8)} == {ALL_TO_ALL}
    assert {CollectiveSpace(POOL, 2, kinds=[ALL_GATHER]).draw(sample).kind for sample in range(8)} == {ALL_GATHER}


def test_all_to_all_samples_are_placed_tables_with_delays() -> None:
    space = CollectiveSpace(POOL, 4, batch_sizes=(64, 4096), kinds=[ALL_TO_ALL])
    samples = [space.draw(sample) for sample in range(300)]
    dims = np.array([sample.dims for sample in samples])
    delays = np.array([sample.delays_ms for sample in samples])
    assert dims.shape == delays.shape == (300, 4)
    assert (dims % 4 == 0).all()
    assert (dims.sum(axis=1) >= 16).all()  # at least a table a device
    assert dims.sum(axis=1).max() <= 4 * 15 * 128
    assert (delays.min(axis=1) == 0).all()
    assert {sample.batch_size for sample in samples} == {64, 4096}
    silent = (delays == 0).all(axis=1).mean()
    assert 0.04 < silent < 0.2
    # Good and bad greedies: some plans are even, in some one device holds several times what another does.
    spread = dims.max(axis=1) / dims.mean(axis=1)
    assert spread.min() < 1.05
    assert spread.max() > 2


def test_delays_are_comparable_with_the_time_of_the_collective() -> None:
    space = CollectiveSpace(POOL, 4, batch_sizes=(4096,), kinds=[ALL_TO_ALL], nominal_bandwidth=1e9)
    for sample in (space.draw(number) for number in range(100)):
        nominal_ms = 0.5 + sum(sample.dims) * 1024 * 4 / 1e6
        assert max(sample.delays_ms) <= 4 * nominal_ms


def test_sizes_of_the_other_kinds_spread_over_the_decades() -> None:
    space = CollectiveSpace(POOL, 3, kinds=KINDS[1:], max_bytes=2**26)
    samples = [space.draw(sample) for sample in range(400)]
    sizes = np.array([4 * sample.elements for sample in samples])
    assert all(sample.elements % 3 == 0 and sample.dims == () and sample.delays_ms == (0, 0, 0) for sample in samples)
    assert sizes.min() >= 1000
    assert sizes.max() <= 2**26 + 12
    share, _ = np.histogram(np.log2(sizes), bins=4, range=(10, 26))
    assert share.min() > 60


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"pool": ()}, "pool: is empty"),
        ({"world": 1}, "world is 1, must be at least 2"),
        ({"seed": -1}, "seed is -1"),
        ({"batch_sizes": (512, 3)}, r"batch_sizes is \[512, 3\], must not be empty, with each size at least 4"),
        ({"batch_sizes": ()}, "batch_sizes"),
        ({"kinds": ("broadcast",)}, "kinds: .*broadcast.* must be one or more of all_to_all"),
        ({"kinds": ()}, "kinds"),
        ({"max_bytes": 10}, "max_bytes is 10, must be at least 1024"),
    ],
)
def test_impossible_spaces_are_refused(changes: dict[str, Any], message: str) -> None:
    options: dict[str, Any] = {"pool": POOL, "world": 4, **changes}
    with pytest.raises(InvalidInput, match=message):
        CollectiveSpace(**options)


def test_samples_that_do_not_divide_go_to_the_first_devices() -> None:
    assert samples_of(10, 4) == [3, 3, 2, 2]


def test_all_to_all_on_one_host() -> None:
    volumes = all_to_all_volumes(8, [4, 12], hosts=1)
    assert volumes.buffer.tolist() == [8 * 4 * 4, 8 * 12 * 4]
    assert volumes.sent.tolist() == [[4 * 4 * 4, 4 * 12 * 4], [0, 0]]
    assert volumes.received.tolist() == [[4 * 12 * 4, 4 * 4 * 4], [0, 0]]


def test_all_to_all_between_hosts() -> None:
    volumes = all_to_all_volumes(4, [1, 2, 3, 4], hosts=2)  # one sample a device, 4 bytes a value
    assert volumes.sent.tolist() == [[4, 8, 12, 16], [8, 16, 24, 32]]
    assert volumes.received.tolist() == [[8, 4, 16, 12], [28, 28, 12, 12]]


@given(st.integers(1, 3), st.integers(1, 3), st.integers(9, 100), st.data())
def test_what_is_sent_is_received(hosts: int, per_host: int, batch_size: int, data: st.DataObject) -> None:
    devices = hosts * per_host
    dims = data.draw(st.lists(st.integers(0, 50), min_size=devices, max_size=devices))
    volumes = all_to_all_volumes(batch_size, dims, hosts)
    np.testing.assert_array_equal(volumes.sent.sum(axis=1), volumes.received.sum(axis=1))
    kept = [4 * dim * share for dim, share in zip(dims, samples_of(batch_size, devices), strict=True)]
    np.testing.assert_array_equal(volumes.sent.sum(axis=0) + kept, volumes.buffer)


@pytest.mark.parametrize(
    ("gathers", "reduces", "buffer", "intra", "inter"),
    [(True, False, 400, 1200, 0), (False, True, 1600, 1200, 0), (True, True, 1600, 2400, 0)],
)
def test_rings_on_one_host(gathers: bool, reduces: bool, buffer: int, intra: int, inter: int) -> None:
    volumes = ring_volumes(400, 4, 1, gathers=gathers, reduces=reduces)
    assert volumes.buffer.tolist() == [buffer] * 4
    assert volumes.sent.tolist() == volumes.received.tolist() == [[intra] * 4, [inter] * 4]


def test_rings_between_hosts_are_hierarchical() -> None:
    volumes = ring_volumes(400, 4, 2, gathers=True, reduces=True)
    assert volumes.sent.tolist() == [[2 * 1600 // 2] * 4, [2 * 1600 // 4] * 4]
