from dataclasses import dataclass
from typing import Literal

import msgspec
import pytest

from shardwright.errors import InvalidInput, InvalidPlan
from shardwright.schema import Place, check_format, convert


class _Thing(msgspec.Struct, forbid_unknown_fields=True):
    rows: int
    share: list[float] = []
    kind: str | dict[str, object] = ""


class _Kind(msgspec.Struct, forbid_unknown_fields=True):
    kind: Literal["a", "b"] = "a"


@dataclass
class _Point:
    x: int
    others: "tuple[_Point, ...]" = ()

    def __post_init__(self) -> None:
        if self.x == 13:
            raise InvalidInput("point: x is 13, must be luckier")


class _Nested(msgspec.Struct, forbid_unknown_fields=True):
    kinds: list[_Kind] = []
    pair: tuple[int, _Kind] | msgspec.UnsetType = msgspec.UNSET
    point: _Point | None = None


def test_places() -> None:
    place = Place("task.yaml")
    assert str(place) == "task.yaml"
    assert str(place.at("tables").at("[3]").at("rows")) == "task.yaml: tables[3].rows"
    assert place.at("") == place


def test_conversion() -> None:
    assert convert({"rows": 3, "share": [0, 0.5]}, _Thing, Place("f")) == _Thing(3, [0.0, 0.5])


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ({"rows": "5"}, "f: t[1].rows: Expected `int`, got `str` '5'"),
        ({"rows": True}, "f: t[1].rows: Expected `int`, got `bool` True"),
        ({"rows": None}, "f: t[1].rows: Expected `int`, got `null` None"),
        ({"rows": 1.5}, "f: t[1].rows: Expected `int`, got `float` 1.5"),
        ({"rows": 1, "share": [0, "x"]}, "f: t[1].share[1]: Expected `float`, got `str` 'x'"),
        ({"rows": 1, "share": [10**400]}, "f: t[1].share[0]: Number out of range: 1000"),
        (
            {"rows": 1, "shares": []},
            "f: t[1]: unknown field 'shares'; did you mean 'share'? known fields are rows, share, kind",
        ),
        ({"rows": 1, "a.b[0]` - at": 1}, "f: t[1]: unknown field 'a.b[0]` - at'; known fields are rows, share, kind"),
        ({}, "f: t[1]: the field 'rows' is missing; add it"),
        ([], "f: t[1]: Expected `object`, got `array` []"),
        (None, "f: t[1]: Expected `object`, got `null` None"),
        ({"rows": "x" * 1000}, "f: t[1].rows: Expected `int`, got `str` 'xxxxxxxxxxxx...xxxxxxxxxxxxx'"),
    ],
)
def test_messages(document: object, message: str) -> None:
    with pytest.raises(InvalidInput) as error:
        convert(document, _Thing, Place("f", "t[1]"))
    assert str(error.value).startswith(message)
    assert len(str(error.value)) < 200


@pytest.mark.parametrize(
    ("document", "message"),
    [
        (
            {"kinds": [{}, {"kin": "a"}]},
            "f: t.kinds[1]: unknown field 'kin'; did you mean 'kind'? known fields are kind",
        ),
        ({"kinds": [{"kind": "c"}]}, "f: t.kinds[0].kind: Invalid enum value 'c', must be one of a, b"),
        ({"pair": [1, {"kind": "c"}]}, "f: t.pair[1].kind: Invalid enum value 'c', must be one of a, b"),
        ({"pair": [1]}, "f: t.pair: Expected `array` of length 2, got [1]"),
        ({"point": {}}, "f: t.point: the field 'x' is missing; add it"),
        ({"point": {"x": -1}}, "f: t.point.x: Expected `int` >= 0, got -1"),
        ({"point": {"x": 1, "others": [{"x": 2**63}]}}, "f: t.point.others[0].x: Expected `int` <= "),
        ({"point": {"x": 1, "y": 1}}, "f: t.point: unknown field 'y'; known fields are x, others"),
        (
            {"point": {"x": 1, "others": [{"x": 1, "z": 1}]}},
            "f: t.point.others[0]: unknown field 'z'; known fields are",
        ),
        ({"point": {"x": 13}}, "f: t: point: x is 13, must be luckier"),
    ],
)
def test_messages_on_what_lies_deeper(document: object, message: str) -> None:
    with pytest.raises(InvalidInput) as error:
        convert(document, _Nested, Place("f", "t"))
    assert str(error.value).startswith(message)


@pytest.mark.parametrize("document", [{}, {"format": 1}, [], None])
def test_formats_that_are_read(document: object) -> None:
    check_format(document, Place("f"), "task file", 1)


@pytest.mark.parametrize("format_given", [2, 0, "1", None, True, [1] * 10_000])
def test_formats_that_are_not_read(format_given: object) -> None:
    with pytest.raises(InvalidInput, match=r"f: format is .*, this version .* reads task files of format 1; write"):
        check_format({"format": format_given}, Place("f"), "task file", 1)


def test_naming_keeps_the_kind_of_error() -> None:
    with pytest.raises(InvalidPlan, match=r"^f: a\[0\]: bad$"), Place("f", "a[0]").naming(instead_of="a: "):
        raise InvalidPlan("a: bad")
