import enum
import math
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest

from shardwright.errors import InvalidInput
from shardwright.task.values import checked_flag, checked_whole, listed, real, text_list, whole, whole_list


class Level(enum.IntEnum):
    ONE = 1


@pytest.mark.parametrize("value", [1, np.int64(1), np.uint8(1), np.array(1), Level.ONE])
def test_whole_numbers_become_ints(value: object) -> None:
    assert whole(value) == 1
    assert type(whole(value)) is int


@pytest.mark.parametrize("value", [True, np.True_, np.array(True), 1.0, np.float64(1), "1", None, [1], np.array([1])])
def test_what_is_no_whole_number(value: object) -> None:
    assert whole(value) is None


@pytest.mark.parametrize("value", [2.5, np.float32(2.5), np.float64(2.5), np.float16(2.5), Fraction(5, 2)])
def test_real_numbers_become_floats(value: object) -> None:
    assert real(value) == 2.5
    assert type(real(value)) is float


def test_whole_numbers_are_real_numbers() -> None:
    assert [real(value) for value in (7, np.int32(7), np.uint64(7))] == [7.0] * 3
    assert real(10**400) == math.inf


@pytest.mark.parametrize("value", [True, np.True_, "1", None, Decimal(1), 1j, [1.0]])
def test_what_is_no_real_number(value: object) -> None:
    assert real(value) is None


@pytest.mark.parametrize("value", [(1, 0), [1, 0], np.array([1, 0]), range(1, -1, -1), iter([1, 0])])
def test_lists_keep_their_order(value: object) -> None:
    assert whole_list(value) == (1, 0)


def test_sets_are_sorted() -> None:
    assert (
        whole_list({9, 1, 20})
        == whole_list(frozenset([20, 9, 1]))
        == whole_list({20: 0, 9: 0, 1: 0}.keys())
        == (1, 9, 20)
    )
    assert text_list({"b", "a"}) == ("a", "b")
    assert text_list(np.array(["b", "a"])) == ("b", "a")
    assert {type(item) for item in text_list(np.array(["b"])) or ()} == {str}


@pytest.mark.parametrize("value", ["12", b"12", bytearray(b"12"), {1: 2}, 1, None, np.array(1)])
def test_what_is_no_list(value: object) -> None:
    assert listed(value) is None
    assert whole_list(value) is None
    assert text_list(value) is None


@pytest.mark.parametrize("value", [(0.5,), (0, "1"), {0, "1"}, (True,), [None], np.array([0.0])])
def test_lists_of_other_things(value: object) -> None:
    assert whole_list(value) is None
    assert text_list(value) is None


def test_checked_values_are_plain() -> None:
    assert type(checked_whole(np.int64(8), "n", 8)) is int
    assert checked_flag(np.True_, "n") is True
    assert checked_flag(False, "n") is False


@pytest.mark.parametrize(
    ("value", "most", "message"),
    [
        (0, None, "hosts is 0, must be a whole number of at least 1"),
        (True, None, "hosts is True, must be a whole number of at least 1"),
        (9, 8, "hosts is 9, must be a whole number from 1 to 2**3"),
        ("1", 8, "hosts is '1', must be a whole number from 1 to 2**3"),
    ],
)
def test_messages_of_whole_numbers(value: object, most: int | None, message: str) -> None:
    with pytest.raises(InvalidInput) as error:
        checked_whole(value, "hosts", most)
    assert str(error.value) == message


@pytest.mark.parametrize("value", ["false", "", 0, 1, None, np.int64(1)])
def test_truthy_is_not_true(value: object) -> None:
    with pytest.raises(InvalidInput, match="pooled is .*, must be True or False"):
        checked_flag(value, "pooled")
