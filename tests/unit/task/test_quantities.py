import enum
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest

from shardwright.errors import InvalidInput
from shardwright.task.quantities import (
    format_bytes,
    list_of,
    listed,
    parse_bandwidth,
    parse_bytes,
    real,
    text,
    whole,
)

DECIMAL = {"B": 1, "KB": 10**3, "kB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12, "PB": 10**15}
BINARY = {"KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40, "PiB": 2**50}
BITS = {"bit": 1 / 8, "Kbit": 125, "kbit": 125, "Mbit": 125e3, "Gbit": 125e6, "Tbit": 125e9}


@pytest.mark.parametrize(("unit", "size"), (DECIMAL | BINARY).items())
def test_every_size_unit(unit: str, size: int) -> None:
    assert parse_bytes(f"80 {unit}") == 80 * size
    assert parse_bytes(f"80{unit}") == 80 * size
    assert parse_bytes(f"  1.5e1 {unit} ") == 15 * size
    assert isinstance(parse_bytes(f"2 {unit}"), int)


@pytest.mark.parametrize(("unit", "size"), (DECIMAL | BINARY | BITS).items())
def test_every_bandwidth_unit(unit: str, size: float) -> None:
    assert parse_bandwidth(f"400 {unit}/s") == 400 * size


@pytest.mark.parametrize(
    ("value", "size"),
    [
        (7, 7), (1e9, 10**9), ("123", 123), ("40_000_000", 40_000_000), ("2.01 GB", 2_010_000_000),
        (2**62 + 1, 2**62 + 1), (np.int64(2**62 + 1), 2**62 + 1), (np.float32(2**20), 2**20),
    ],
)  # fmt: skip
def test_sizes_are_exact(value: object, size: int) -> None:
    assert parse_bytes(value) == size
    assert type(parse_bytes(value)) is int


def test_a_number_is_a_bandwidth_in_bytes_per_second() -> None:
    assert parse_bandwidth(450e9) == 450e9
    assert parse_bandwidth("450e9") == 450e9
    assert parse_bandwidth("10/s") == 10
    assert type(parse_bandwidth(np.int64(10))) is float


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("80 gb", "unknown unit 'gb' in '80 gb'; known units are B, KB"), ("80 GB/s", "should not end in '/s'"),
        ("80/s", "should not end in '/s'"), ("400 Gbit", "unknown unit 'Gbit'"),
        ("", "write a number or text such as '80 GB'"), ("-1 GB", "is not a quantity"), ("nan", "is not a quantity"),
        ("1 GB extra", "is not a quantity"), ("٣ GB", "is not a quantity"), (0, "at least 1 byte"),
        (-5, "at least 1 byte"), ("0 GB", "greater than 0"), (0.3, "at least 1 byte"),
        (float("nan"), "must be finite"), (float("inf"), "must be finite"), ("1e400 GB", "must be finite"),
        ("9" * 400 + " PB", "must be finite"), (10**400, "less than 2**63"), ("1e300 B", "less than 2**63"),
        (True, "True is not a quantity"), (None, "None is not a quantity"), ([1], "is not a quantity"),
    ],
)  # fmt: skip
def test_bad_sizes(value: object, message: str) -> None:
    with pytest.raises(InvalidInput) as error:
        parse_bytes(value, "topology: memory")
    assert str(error.value).startswith("topology: memory: ")
    assert message in str(error.value)
    assert len(str(error.value)) < 600


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("450 GB", "should end in '/s', as in '450 GB/s'"),
        ("450 Gb/s", "unknown unit 'Gb'"),
        (0, "greater than 0"),
        (-1.0, "greater than 0"),
        (1e-300, "at least 1 byte per second"),
        (10**400, "must be finite"),
        (float("nan"), "must be finite"),
        (False, "is not a quantity"),
    ],
)
def test_bad_bandwidths(value: object, message: str) -> None:
    with pytest.raises(InvalidInput) as error:
        parse_bandwidth(value, "topology: intra_bandwidth")
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("size", "text"),
    [(0, "0 B"), (999, "999 B"), (1500, "1.5 KB"), (61_000_000_000, "61.0 GB"), (2.5e15, "2.5 PB"), (-1500, "-1.5 KB")],
)
def test_sizes_for_people(size: float, text: str) -> None:
    assert format_bytes(size) == text


class Level(enum.IntEnum):
    ONE = 1


@pytest.mark.parametrize("value", [1, np.int64(1), np.uint8(1), np.array(1), Level.ONE])
def test_whole_numbers_become_ints(value: object) -> None:
    assert whole(value) == 1
    assert type(whole(value)) is int


@pytest.mark.parametrize("value", [True, np.True_, np.array(True), 1.0, np.float64(1), "1", None, [1], np.array([1])])
def test_other_values_are_no_whole_numbers(value: object) -> None:
    assert whole(value) is None


@pytest.mark.parametrize("value", [2.5, np.float32(2.5), np.float64(2.5), np.float16(2.5), Fraction(5, 2)])
def test_real_numbers_become_floats(value: object) -> None:
    assert real(value) == 2.5
    assert type(real(value)) is float


@pytest.mark.parametrize("value", [True, np.True_, "1", None, Decimal(1), 1j, [1.0]])
def test_other_values_are_no_real_numbers(value: object) -> None:
    assert real(value) is None


@pytest.mark.parametrize("value", [(1, 0), [1, 0], np.array([1, 0]), range(1, -1, -1), iter([1, 0])])
def test_lists_keep_their_order(value: object) -> None:
    assert list_of(whole, value) == (1, 0)


def test_sets_are_sorted() -> None:
    assert (
        list_of(whole, {9, 1, 20})
        == list_of(whole, frozenset([20, 9, 1]))
        == list_of(whole, {20: 0, 9: 0, 1: 0}.keys())
        == (1, 9, 20)
    )
    assert list_of(text, {"b", "a"}) == ("a", "b")
    assert list_of(text, np.array(["b", "a"])) == ("b", "a")
    assert {type(item) for item in list_of(text, np.array(["b"])) or ()} == {str}


@pytest.mark.parametrize("value", ["12", b"12", bytearray(b"12"), {1: 2}, 1, None, np.array(1)])
def test_other_values_are_no_lists(value: object) -> None:
    assert listed(value) is None
    assert list_of(whole, value) is None
    assert list_of(text, value) is None


@pytest.mark.parametrize("value", [(0.5,), (0, "1"), {0, "1"}, (True,), [None], np.array([0.0])])
def test_lists_of_other_things(value: object) -> None:
    assert list_of(whole, value) is None
    assert list_of(text, value) is None
