import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("torch", reason="the runtime needs torch")

import torch

from shardwright.runtime.hop import Distinct, sum_equal

numbers = st.lists(st.integers(0, 9), max_size=60)


@given(numbers)
def test_distinct_numbers_are_found_with_their_places(values):
    found = Distinct.of(torch.tensor(values, dtype=torch.int64))
    distinct, inverse, counts = np.unique(np.array(values, dtype=np.int64), return_inverse=True, return_counts=True)
    assert found.numbers.tolist() == distinct.tolist()
    assert found.inverse().tolist() == inverse.tolist()
    assert found.counts.tolist() == counts.tolist()


@given(numbers, st.integers(1, 9))
def test_rows_of_equal_numbers_are_added_in_order_of_place(values, width):
    rows = torch.from_numpy(np.random.default_rng(0).standard_normal((len(values), width)).astype(np.float32))
    (distinct,), (sums,) = sum_equal([torch.tensor(values, dtype=torch.int64)], [rows])
    for number, found in zip(distinct.tolist(), sums, strict=True):
        wanted = torch.zeros(width)
        for value, row in zip(values, rows, strict=True):
            if value == number:
                wanted = wanted + row
        assert torch.equal(found, wanted)
