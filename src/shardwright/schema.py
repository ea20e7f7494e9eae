"""Check documents against msgspec structs and dataclasses. Messages name the file, the field, the value and the rule."""

from __future__ import annotations

import re
import reprlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields, is_dataclass
from difflib import get_close_matches
from typing import Annotated, Any, TypeAlias, TypeVar

import msgspec
from msgspec import UNSET, Meta, Struct

from shardwright.errors import InvalidInput

T = TypeVar("T")

Amount: TypeAlias = Annotated[float, Meta(ge=0, le=1e100)]
"""A non-negative number, such as milliseconds. The maximum is far above real values, and keeps sums of such numbers finite."""
Whole: TypeAlias = Annotated[int, Meta(ge=0, le=2**63 - 1)]
"""A non-negative whole number, such as bytes."""

_UNKNOWN = re.compile(r"Object contains unknown field `(?P<field>.*)`", re.DOTALL)
_MISSING = re.compile(r"Object missing required field `(?P<field>.*)`", re.DOTALL)
_STEP = re.compile(r"\.([^.\[]+)|\[(\d+)\]")


@dataclass(frozen=True)
class Place:
    """The place of a value, file and field: "task.yaml: tables[3].rows"."""

    file: str
    field: str = ""

    def __str__(self) -> str:
        return f"{self.file}: {self.field}" if self.field else self.file

    def at(self, field: str) -> Place:
        """The place of a field inside the value at this place; "" for the value itself, "[3]" for an item."""
        dot = "." if self.field and field and not field.startswith("[") else ""
        return Place(self.file, f"{self.field}{dot}{field}")

    @contextmanager
    def naming(self, instead_of: str = "") -> Iterator[None]:
        """Put this place, once, before the message of every `InvalidInput` raised inside; it replaces the beginning `instead_of`."""
        try:
            yield
        except InvalidInput as error:
            raise type(error)(f"{self}: {str(error).removeprefix(instead_of).removeprefix(f'{self}: ')}") from None


def convert(document: object, kind: type[T], place: Place) -> T:
    """Convert a document to a struct or dataclass. Values keep their types, but a whole number may stand for a float.

    Raises:
        InvalidInput: a field is unknown, missing, of a wrong type, or beyond the bounds that its `Meta` states.
    """
    try:
        content = msgspec.convert(document, kind, strict=True)
    except msgspec.ValidationError as error:
        if isinstance(error.__cause__, InvalidInput):  # from a dataclass that checks itself and names its field
            raise type(error.__cause__)(f"{place}: {error.__cause__}") from None
        rule, _, path = str(error).partition(" - at `$")
        at = place.at(path.removesuffix("`").removeprefix("."))
        raise InvalidInput(f"{at}: {_explain(rule, _kinds_at(kind, path), _value(document, path))}") from None
    _check_dataclasses(document, content, place)
    return content


def _check_dataclasses(document: Any, content: object, place: Place) -> None:
    """Check in dataclasses what msgspec checks only in structs: unknown fields, and the bounds of numbers (all are amounts).

    A dataclass cannot state bounds by `Meta`: it must import where msgspec is not installed.
    """
    if is_dataclass(content) and isinstance(document, dict):  # a number may stand for a dataclass
        names = [field.name for field in fields(content)]
        for name, value in document.items():
            if name not in names:
                raise InvalidInput(f"{place}: {_unknown(name, names)}")
            _check_amounts(value, place.at(name))
            _check_dataclasses(value, getattr(content, name), place.at(name))
    elif isinstance(content, (list, tuple)) and content and is_dataclass(content[0]):  # all items have one type
        for index, item in enumerate(content):
            _check_dataclasses(document[index], item, place.at(f"[{index}]"))
    elif isinstance(content, Struct):
        for name in content.__struct_fields__:
            if name in document:
                _check_dataclasses(document[name], getattr(content, name), place.at(name))


def _check_amounts(value: object, place: Place) -> None:
    if isinstance(value, (list, tuple)):
        for index, item in enumerate(value):
            _check_amounts(item, place.at(f"[{index}]"))
    elif isinstance(value, (int, float)) and not isinstance(value, bool):
        convert(value, Amount if isinstance(value, float) else Whole, place)


def given(content: Struct) -> dict[str, Any]:
    """The fields that the file sets, with their values."""
    return {name: value for name in content.__struct_fields__ if (value := getattr(content, name)) is not UNSET}


def check_format(document: object, place: Place, what: str, version: int) -> None:
    """Check the field `format` of a document against this version; a document without the field passes.

    Raises:
        InvalidInput: the document has another version; the message names both.
    """
    stated = document.get("format", version) if isinstance(document, dict) else version
    if isinstance(stated, bool) or stated != version:
        raise InvalidInput(
            f"{place}: format is {reprlib.repr(stated)}, this version of shardwright reads {what}s of format {version}; "
            "write the file anew or use the version that wrote it"
        )


def _value(document: object, path: str) -> object:
    for key, index in _STEP.findall(path.removesuffix("`")):
        document = document[key] if key else document[int(index)]  # type: ignore[index]
    return document


def _kinds_at(kind: type, path: str) -> tuple[Any, ...]:
    """The types that msgspec allows at a path of a document."""
    kinds: tuple[Any, ...] = (msgspec.inspect.type_info(kind),)
    for key, index in _STEP.findall(path.removesuffix("`")):
        inner = [field.type for outer in kinds for field in getattr(outer, "fields", ()) if field.encode_name == key]
        for outer in kinds if index else ():
            inner += (
                [outer.item_type] if hasattr(outer, "item_type") else getattr(outer, "item_types", ())[int(index) :][:1]
            )
        kinds = tuple(option for entry in inner for option in getattr(entry, "types", (entry,)))
    return kinds


def _explain(rule: str, kinds: tuple[Any, ...], value: object) -> str:
    if match := _UNKNOWN.fullmatch(rule):
        return _unknown(match["field"], [field.encode_name for kind in kinds for field in getattr(kind, "fields", ())])
    if match := _MISSING.fullmatch(rule):
        return f"the field '{match['field']}' is missing; add it"
    shown = reprlib.repr(value)
    if rule.startswith("Invalid enum value"):
        return f"Invalid enum value {shown}, must be one of {', '.join(map(str, _choices(kinds)))}"
    if not rule.startswith("Expected"):
        return f"{rule}: {shown}"
    return f"{rule} {shown}" if rule.endswith("`") else f"{rule.partition(', got')[0]}, got {shown}"


def _choices(kinds: tuple[Any, ...]) -> list[object]:
    return [choice for kind in kinds for choice in getattr(kind, "values", ())]


def _unknown(name: str, known: list[str]) -> str:
    close = get_close_matches(name, known, n=1)
    hint = f"did you mean '{close[0]}'? " if close else ""
    return f"unknown field {reprlib.repr(name)}; {hint}known fields are {', '.join(known)}"
