"""How near sketches that forget come to the truth, on streams long enough for statistics."""

from collections import Counter

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardwright.errors import InvalidInput
from shardwright.task import AccessProfile
from shardwright.workload.profile import profile_logs
from shardwright.workload.profile.sketch import (
    AccessSketch,
    access_profile,
    hottest_ids,
    integer_keys,
    ranked_counts,
    scramble,
    text_keys,
    unscramble,
)

LIMIT = 1 << 12
EVENTS = 600_000


def zipf_stream(exponent, rows=200_000, seed=0):
    probability = np.arange(1, rows + 1.0) ** -exponent
    return np.random.default_rng(seed).choice(rows, EVENTS, p=probability / probability.sum())


def sketched(ids, limit=LIMIT, chunk=50_000):
    sketch = AccessSketch(limit)
    for start in range(0, ids.size, chunk):
        sketch = sketch.merged(AccessSketch.of(scramble(ids[start : start + chunk].astype(np.uint64)), limit))
    return sketch


@pytest.mark.parametrize("exponent", [0.0, 0.8, 1.05, 1.5])
def test_distinct_and_profile_of_a_long_stream(exponent):
    ids = zipf_stream(exponent)
    sketch = sketched(ids)
    counts = np.unique(ids, return_counts=True)[1]
    assert not sketch.exact
    assert sketch.distinct == pytest.approx(counts.size, rel=4 * sketch.distinct_error)
    profile, exact = access_profile(sketch), AccessProfile.from_counts(counts)
    ranks = np.geomspace(1, counts.size, 100)
    error = np.interp(ranks, profile.rows, profile.share) - np.interp(ranks, exact.rows, exact.share)
    assert np.abs(error).max() < 0.02


def test_hot_ids_are_counted_exactly():
    ids = zipf_stream(1.2)
    sketch = sketched(ids)
    hottest = np.sort(np.unique(ids, return_counts=True)[1])[::-1][:50]
    assert ranked_counts(sketch)[0][:50].tolist() == hottest.tolist()


def test_ids_chosen_against_the_hash_still_give_a_profile():
    keys = np.arange(2**63, 2**63 + 1000, dtype=np.uint64)  # all in the upper half: none is sampled
    sketch = AccessSketch.of(keys, 64)
    assert sketch.sample_keys.size == 0
    assert access_profile(sketch).total_rows == sketch.distinct == 1
    more = sketch.merged(AccessSketch.of(keys[:10], 64))
    assert access_profile(more).total_rows == more.distinct == 10


def test_keys_do_not_change_between_versions_and_machines():
    """Profiles made elsewhere merge by key, so these numbers may never change."""
    assert scramble(np.arange(2, dtype=np.uint64)).tolist() == [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4]
    keys = text_keys(pa.array(["", "a", "Grüße, Welt"]), "log")
    assert keys.tolist() == [0xE220A8397B1DCDAF, 0x6D6F1E5C9BFF01B5, 0x3C4DB455A6164039]


@given(st.lists(st.binary(max_size=40), unique=True, max_size=50))
def test_different_texts_have_different_keys_and_equal_ones_equal(texts):
    keys = text_keys(pa.array(texts + texts, type=pa.binary()), "log")
    assert np.unique(keys).size == len(texts)
    assert np.array_equal(keys[: len(texts)], keys[len(texts) :])


def test_padding_and_neighbours_do_not_enter_the_key():
    texts = ["a", "a\0", "\0", "", "12345678", "12345678\0", "123456781234567", "x" * 4096]
    alone = [int(text_keys(pa.array([text]), "log")[0]) for text in texts]
    assert text_keys(pa.array(texts), "log").tolist() == alone
    assert len(set(alone)) == len(texts)
    assert text_keys(pa.array(texts).slice(3, 2), "log").tolist() == alone[3:5]


@pytest.mark.parametrize(
    "kind", [pa.string(), pa.large_string(), pa.string_view(), pa.binary(), pa.large_binary()], ids=str
)
def test_every_text_type_gives_the_same_keys(kind):
    keys = text_keys(pa.array(["one", "a longer text"], type=kind), "log")
    assert keys.tolist() == text_keys(pa.array(["one", "a longer text"]), "log").tolist()


@pytest.mark.parametrize("kind", [pa.int8(), pa.int32(), pa.int64(), pa.uint8(), pa.uint64()], ids=str)
def test_every_integer_type_gives_the_same_keys(kind):
    keys, smallest, largest = integer_keys(pa.array([3, 100, 0], type=kind), "log")
    assert keys.tolist() == scramble(np.array([3, 100, 0], dtype=np.uint64)).tolist()
    assert (smallest, largest) == (0, 100)


def test_the_whole_unsigned_range_is_allowed():
    assert integer_keys(pa.array([2**64 - 1, 0], type=pa.uint64()), "log")[2] == 2**64 - 1


def test_negative_ids_and_huge_texts_are_refused():
    with pytest.raises(InvalidInput, match=r"a\.csv: column 'x': id -7 is negative; ids must be at least 0"):
        integer_keys(pa.array([3, -7]), "a.csv: column 'x'")
    with pytest.raises(InvalidInput, match=r"column 'x': an id has 4,097 bytes; .* at most 4,096"):
        text_keys(pa.array(["y" * 4097]), "a.csv: column 'x'")


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
    hottest = hottest_ids(sketch)
    counts = np.bincount(ids.astype(np.int64))
    assert 50 < hottest.size < sketch.sample_keys.size + sketch.heavy_keys.size
    assert set(np.argsort(-counts, kind="stable")[:20]) <= set(hottest[:25])
    held = counts[hottest]
    assert held[:10].tolist() == sorted(held[:10], reverse=True)
    assert (held > sketch.error // 2).all()
    assert hottest_ids(sketch, 7).tolist() == hottest[:7].tolist()


def test_rank_maps_of_a_log(parquet):
    path = parquet("log.parquet", user=[5, 5, 9], tags=[[3], [1, 3], [0, 1]], word=["a", "b", "c"])
    profile = profile_logs(path)
    maps = profile.rank_maps()
    assert list(maps) == ["user", "tags"]
    assert (maps["user"].rows, maps["user"].hottest.tolist()) == (10, [5, 9])
    assert maps["tags"].hottest.tolist() == [1, 3, 0]
    assert profile.rank_maps(1)["tags"].hottest.tolist() == [1]
    rows = {table.name: table.rows for table in profile.tables(rows="numbered")}
    assert rows == {"user": 10, "tags": 4, "word": 3}
    assert all(maps[name].rows == rows[name] for name in maps)
    with pytest.raises(InvalidInput, match="limit is 0; a rank map needs at least 1 id"):
        profile.rank_maps(0)


def test_numbers_too_large_for_row_numbers_have_no_rank_map(parquet):
    path = parquet("log.parquet", user=pa.array([2**63, 5, 5], pa.uint64()), item=[2**40, 1, 1])
    profile = profile_logs(path)
    assert list(profile.rank_maps()) == ["item"]
    assert [table.rows for table in profile.tables(rows="numbered")] == [2, 2**40 + 1]
    with pytest.raises(InvalidInput, match="is no row number"):
        profile.tables(rows="max_id")
