from __future__ import annotations

import numpy as np

from shardwright.measure.collectives.sampling import CollectiveSpace, samples_of
from shardwright.task import AccessProfile, Table

POOL = tuple(Table(f"t{i}", 1000, 16, 0.5 + i, access=AccessProfile.uniform(1000)) for i in range(9))


def test_a_sample_follows_from_the_seed_and_its_number_alone() -> None:
    space = CollectiveSpace(POOL, 4, seed=3)
    forwards = [space.draw(sample) for sample in range(40)]
    backwards = [CollectiveSpace(POOL, 4, seed=3).draw(sample) for sample in reversed(range(40))]
    assert forwards == backwards[::-1]
    assert forwards != [CollectiveSpace(POOL, 4, seed=4).draw(sample) for sample in range(40)]


def test_all_to_all_samples_are_placed_tables_with_delays() -> None:
    space = CollectiveSpace(POOL, 4, batch_sizes=(64, 4096))
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
    space = CollectiveSpace(POOL, 4, batch_sizes=(4096,), nominal_bandwidth=1e9)
    for sample in (space.draw(number) for number in range(100)):
        nominal_ms = 0.5 + sum(sample.dims) * 1024 * 4 / 1e6
        assert max(sample.delays_ms) <= 4 * nominal_ms


def test_samples_that_do_not_divide_go_to_the_first_devices() -> None:
    assert samples_of(10, 4) == [3, 3, 2, 2]
