"""Checking documents against msgspec structs, with messages that name the file, the field, the value and the rule."""

from __future__ import annotations

import re
import reprlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, TypeVar

import msgspec
from msgspec import UNSET, Struct

from shardwright.errors import InvalidInput

S = TypeVar("S", bound=Struct)

_UNKNOWN = re.compile(r"Object contains unknown field `(?P<field>.*)`", re.DOTALL)
_MISSING = re.compile(r"Object missing required field `(?P<field>.*)`", re.DOTALL)
_STEP = re.compile(r"\.([^.\[]+)|\[(\d+)\]")


@dataclass(frozen=True)
class Place:
    """Where in which file a value stands: "task.yaml: tables[3].rows"."""

    file: str
    field: str = ""

    def __str__(self) -> str:
        return f"{self.file}: {self.field}" if self.field else self.file

    def at(self, field: str) -> Place:
        """The place of a field of the mapping at this place; "" for itself, "[3]" for an item."""
        dot = "." if self.field and field and not field.startswith("[") else ""
        return Place(self.file, f"{self.field}{dot}{field}")

    @contextmanager
    def naming(self, instead_of: str = "") -> Iterator[None]:
        """Put this place before the message of every `InvalidInput` raised inside, once, and instead of a beginning it may have."""
        try:
            yield
        except InvalidInput as error:
            raise type(error)(f"{self}: {str(error).removeprefix(instead_of).removeprefix(f'{self}: ')}") from None


def convert(document: object, kind: type[S], place: Place) -> S:
    """The document as a struct. No value is converted, except whole numbers where a float is expected.

    Raises:
        InvalidInput: a field is unknown, missing or of a wrong type.
    """
    try:
        return msgspec.convert(document, kind, strict=True)
    except msgspec.ValidationError as error:
        rule, _, path = str(error).partition(" - at `$")
        at = place.at(path.removesuffix("`").removeprefix("."))
        raise InvalidInput(f"{at}: {_explain(rule, kind, _value(document, path))}") from None


def given(content: Struct) -> dict[str, Any]:
    """The fields that the file has."""
    return {name: value for name in content.__struct_fields__ if (value := getattr(content, name)) is not UNSET}


def check_format(document: object, place: Place, what: str, version: int) -> None:
    """Check that a document, if it is a mapping with a field `format`, is of this version.

    Raises:
        InvalidInput: it is of another one; the message names both.
    """
    found = document.get("format", version) if isinstance(document, dict) else version
    if isinstance(found, bool) or found != version:
        raise InvalidInput(
            f"{place}: format is {reprlib.repr(found)}, this version of shardwright reads {what}s of format {version}; "
            "write the file anew or use the version that wrote it"
        )


def _value(document: object, path: str) -> object:
    for key, index in _STEP.findall(path.removesuffix("`")):
        document = document[key] if key else document[int(index)]  # type: ignore[index]
    return document


def _explain(rule: str, kind: type[Struct], value: object) -> str:
    fields = [field.encode_name for field in msgspec.structs.fields(kind)]
    if match := _UNKNOWN.fullmatch(rule):
        close = get_close_matches(match["field"], fields, n=1)
        hint = f"did you mean '{close[0]}'? " if close else ""
        return f"unknown field {reprlib.repr(match['field'])}; {hint}known fields are {', '.join(fields)}"
    if match := _MISSING.fullmatch(rule):
        return f"the field '{match['field']}' is missing; add it"
    return f"{rule} {reprlib.repr(value)}" if rule.startswith("Expected") else f"{rule}: {reprlib.repr(value)}"
