from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardwright.measure.collectives.sampling import all_to_all_volumes, ring_volumes, samples_of


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
