import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardwright.errors import InvalidInput
from shardwright.workload.profile.keys import integer_keys, scramble, text_keys


def test_keys_do_not_change_between_versions_and_machines():
    """Profiles made elsewhere merge by key, so these numbers may never change."""
    assert scramble(np.arange(2, dtype=np.uint64)).tolist() == [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4]
    keys = text_keys(pa.array(["", "a", "Grüße, Welt"]), "log")
    assert keys.tolist() == [0xE220A8397B1DCDAF, 0x6D6F1E5C9BFF01B5, 0x3C4DB455A6164039]


def test_scramble_is_one_to_one():
    numbers = np.concatenate([np.arange(100_000, dtype=np.uint64), np.arange(2**63, 2**63 + 100_000, dtype=np.uint64)])
    assert np.unique(scramble(numbers)).size == numbers.size


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
