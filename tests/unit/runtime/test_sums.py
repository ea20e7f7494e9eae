import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("torch", reason="the runtime needs torch")

import torch

from shardwright.runtime.sums import Groups, sum_equal

numbers = st.lists(st.integers(0, 9), max_size=60)


@given(numbers)
def test_groups_find_what_is_equal(values):
    groups = Groups.of(torch.tensor(values, dtype=torch.int64))
    distinct, inverse, counts = np.unique(np.array(values, dtype=np.int64), return_inverse=True, return_counts=True)
    assert groups.distinct.tolist() == distinct.tolist()
    assert groups.inverse().tolist() == inverse.tolist()
    assert groups.counts.tolist() == counts.tolist()


@given(numbers, st.integers(1, 9))
def test_rows_of_equal_numbers_are_added_in_order_of_place(values, width):
    rows = torch.from_numpy(np.random.default_rng(0).standard_normal((len(values), width)).astype(np.float32))
    distinct, sums = sum_equal(torch.tensor(values, dtype=torch.int64), rows)
    for number, found in zip(distinct.tolist(), sums, strict=True):
        wanted = torch.zeros(width)
        for value, row in zip(values, rows, strict=True):
            if value == number:
                wanted = wanted + row
        assert torch.equal(found, wanted)
