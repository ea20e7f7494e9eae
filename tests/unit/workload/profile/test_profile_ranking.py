from collections import Counter

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardwright.errors import InvalidInput
from shardwright.workload.profile import profile_logs
from shardwright.workload.profile.keys import scramble, unscramble
from shardwright.workload.profile.ranking import hottest_ids
from shardwright.workload.profile.sketch import AccessSketch


@given(st.lists(st.integers(0, 2**64 - 1), max_size=50))
def test_unscramble_inverts_scramble(numbers):
    keys = scramble(np.array(numbers, dtype=np.uint64))
    assert unscramble(keys).tolist() == numbers


@given(st.lists(st.integers(0, 30), min_size=1, max_size=200))
def test_an_exact_sketch_orders_all_ids_by_count_then_id(ids):
    found = hottest_ids(AccessSketch.of(scramble(np.array(ids, dtype=np.uint64)), limit=64))
    assert found.tolist() == [one for one, _ in sorted(Counter(ids).items(), key=lambda item: (-item[1], item[0]))]


def test_a_full_sketch_names_the_hottest_ids_and_leaves_out_those_of_unknown_order():
    rng = np.random.default_rng(1)
    ids = np.minimum(rng.zipf(1.3, 200_000), 50_000).astype(np.uint64)
    sketch = AccessSketch(256)
    for chunk in np.split(ids, 20):
        sketch = sketch.merged(AccessSketch.of(scramble(chunk), 256))
    assert not sketch.exact
    found = hottest_ids(sketch)
    counts = np.bincount(ids.astype(np.int64))
    assert 50 < found.size < sketch.sample_keys.size + sketch.heavy_keys.size
    assert set(np.argsort(-counts, kind="stable")[:20]) <= set(found[:25])
    held = counts[found]
    assert held[:10].tolist() == sorted(held[:10], reverse=True)
    assert (held > sketch.error // 2).all()
    assert hottest_ids(sketch, 7).tolist() == found[:7].tolist()


def test_rank_maps_of_a_log(parquet):
    path = parquet("log.parquet", user=[5, 5, 9], tags=[[3], [1, 3], [0, 1]], word=["a", "b", "c"])
    found = profile_logs(path)
    maps = found.rank_maps()
    assert list(maps) == ["user", "tags"]
    assert (maps["user"].rows, maps["user"].hottest.tolist()) == (10, [5, 9])
    assert maps["tags"].hottest.tolist() == [1, 3, 0]
    assert found.rank_maps(1)["tags"].hottest.tolist() == [1]
    rows = {table.name: table.rows for table in found.tables(rows="numbered")}
    assert rows == {"user": 10, "tags": 4, "word": 3}
    assert all(maps[name].rows == rows[name] for name in maps)
    with pytest.raises(InvalidInput, match="rank maps of 0 ids"):
        found.rank_maps(0)


def test_numbers_too_large_for_row_numbers_have_no_rank_map(parquet):
    path = parquet("log.parquet", user=pa.array([2**63, 5, 5], pa.uint64()), item=[2**40, 1, 1])
    found = profile_logs(path)
    assert list(found.rank_maps()) == ["item"]
    assert [table.rows for table in found.tables(rows="numbered")] == [2, 2**40 + 1]
    with pytest.raises(InvalidInput, match="is no row number"):
        found.tables(rows="max_id")
