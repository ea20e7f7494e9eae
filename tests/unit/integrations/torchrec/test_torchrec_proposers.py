from itertools import product

import numpy as np
import pytest

pytest.importorskip("torchrec")

from shardwright.integrations.torchrec.proposers import cheapest_by_memory

MEMORY, BINS = 1000.0, 100_000  # so many bins that hardly two choices share one


def options(rng, count):
    return rng.uniform(1, 300, count), rng.uniform(1, 10, count)


@pytest.mark.parametrize("seed", range(5))
def test_no_choice_that_fits_is_cheaper(seed):
    rng = np.random.default_rng(seed)
    tables = [options(rng, count) for count in (3, 4, 2, 5)]
    choices = cheapest_by_memory(tables, MEMORY, BINS)
    costs = [sum(ms[index] for (_, ms), index in zip(tables, each, strict=True)) for each in choices]
    memory = [sum(size[index] for (size, _), index in zip(tables, each, strict=True)) for each in choices]
    assert memory == sorted(memory, reverse=True)
    assert max(memory) < MEMORY
    every = [
        sum(ms[index] for (_, ms), index in zip(tables, each, strict=True))
        for each in product(*(range(len(ms)) for _, ms in tables))
        if sum(size[index] for (size, _), index in zip(tables, each, strict=True)) < MEMORY
    ]
    assert min(costs) == pytest.approx(min(every))


def test_few_bins_keep_the_cheapest_of_each():
    tables = [(np.array([10.0, 20.0, 900.0]), np.array([5.0, 3.0, 1.0]))]
    assert cheapest_by_memory(tables, MEMORY, 10) == [[2], [1]]  # 10 and 20 share a bin


def test_no_choice_fits():
    assert cheapest_by_memory([(np.array([MEMORY]), np.array([1.0]))], MEMORY, 10) == []
    assert cheapest_by_memory([(np.array([]), np.array([]))], MEMORY, 10) == []
