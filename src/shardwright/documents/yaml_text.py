"""Read and write YAML without its dangers: no file can run code, hang the reader or eat its memory.

The reader builds the document event by event. Any YAML reader reads back exactly what the writer writes.

Why not ruamel.yaml: it knows YAML 1.2 and refuses duplicate keys, but takes 22 times as long for a task of 10,000 tables (880 KB): 7.3 s
against 0.3 s. With its C loader, a separate extra, it takes 7 times as long. It also sets no limits on depth and aliases, accepts
`.inf` and tags, and makes dates of text, so this module would still have to check the events.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Any, NoReturn

import yaml

from shardwright.errors import InvalidInput

MAX_DEPTH = 32
_MAX_DIGITS = 400  # more digits than a float can hold; bounds the time of int()

WORDS = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL"), None),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
}
_INTEGER = re.compile(r"[-+]?[0-9][0-9_]*")
_FLOAT = re.compile(r"[-+]?(?:\.[0-9]+|[0-9][0-9_]*(?:\.[0-9_]*)?)(?:[eE][-+]?[0-9]+)?")
_NOT_FINITE = re.compile(r"[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)")


def parse_yaml(text: str, name: str, max_values: int) -> object:
    """The content of a YAML text by the core schema of YAML 1.2: "no" is text, 1e5 is a number, 010 is ten, a date is text.

    Aliases are followed. Every use of an alias counts its values again, so an alias bomb runs into `max_values`.

    Raises:
        InvalidInput: the text is not YAML, or holds a tag, a duplicate key, a number that is not finite, or too much.
    """
    builder = _Builder(max_values)
    try:
        for event in yaml.parse(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader)):
            builder.feed(event)
    except _Refused as error:
        raise InvalidInput(f"{name}: {error}") from None
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
        raise InvalidInput(f"{name}: {place}not YAML: {error.problem or error.context}") from None
    except yaml.YAMLError as error:
        raise InvalidInput(f"{name}: not YAML: {str(error).splitlines()[0]}") from None
    if not builder.documents:
        raise InvalidInput(f"{name}: is empty; name a file with content")
    return builder.root


class _Refused(Exception):
    """The text is YAML, but holds something that is not allowed."""


@dataclass(slots=True)
class _Open:
    """A list or mapping that has begun."""

    items: Any
    anchor: str | None
    values_before: int
    key: str | None = None


class _Builder:
    """Builds the document from parser events, without recursion."""

    def __init__(self, max_values: int) -> None:
        self.root: object = None
        self.documents = 0
        self._max_values = max_values
        self._values = 0
        self._open: list[_Open] = []
        self._anchors: dict[str, tuple[object, int]] = {}

    def feed(self, event: Any) -> None:
        """Take the next event of the parser."""
        kind = type(event)
        if kind is yaml.ScalarEvent:
            self._scalar(event)
        elif kind in (yaml.SequenceStartEvent, yaml.MappingStartEvent):
            self._begin(event, [] if kind is yaml.SequenceStartEvent else {})
        elif kind in (yaml.SequenceEndEvent, yaml.MappingEndEvent):
            done = self._open.pop()
            self._anchor(done.anchor, done.items, self._values - done.values_before)
        elif kind is yaml.AliasEvent:
            self._alias(event)
        elif kind is yaml.DocumentStartEvent:
            self.documents += 1
            if self.documents > 1:
                self._refuse(event, "a second document begins; a file holds one")

    def _scalar(self, event: Any) -> None:
        self._count(1, event)
        parent = self._open[-1] if self._open else None
        if event.tag is not None and event.tag != "!":
            self._refuse(event, f"the tag {event.tag!r} is not allowed; remove it")
        if parent is not None and parent.key is None and isinstance(parent.items, dict):
            if event.value in parent.items:
                self._refuse(event, f"the key {event.value!r} occurs twice in one mapping; keep one")
            parent.key = event.value
            self._anchor(event.anchor, event.value, 1)
            return
        try:
            value = resolve(event.value) if event.implicit[0] else event.value
        except ValueError as error:
            self._refuse(event, str(error))
        self._anchor(event.anchor, value, 1)
        self._add(event, value)

    def _begin(self, event: Any, items: list[object] | dict[str, object]) -> None:
        if event.tag is not None:
            self._refuse(event, f"the tag {event.tag!r} is not allowed; remove it")
        if len(self._open) >= MAX_DEPTH:
            self._refuse(event, f"nested more than {MAX_DEPTH} deep; flatten it")
        self._add(event, items)
        self._open.append(_Open(items, event.anchor, self._values))
        self._count(1, event)

    def _alias(self, event: Any) -> None:
        if event.anchor not in self._anchors:
            self._refuse(event, f"the alias '*{event.anchor}' has no complete anchor '&{event.anchor}' before it")
        value, size = self._anchors[event.anchor]
        self._count(size, event)
        self._add(event, value)

    def _add(self, event: Any, value: object) -> None:
        if not self._open:
            self.root = value
            return
        parent = self._open[-1]
        if isinstance(parent.items, list):
            parent.items.append(value)
        elif parent.key is None:
            self._refuse(event, "a key of a mapping must be plain text")
        else:
            parent.items[parent.key] = value
            parent.key = None

    def _anchor(self, anchor: str | None, value: object, size: int) -> None:
        if anchor is not None:
            self._anchors[anchor] = (value, size)

    def _count(self, values: int, event: Any) -> None:
        self._values += values
        if self._values > self._max_values:
            most = f"{self._max_values} values, the most that is read"
            self._refuse(event, f"the document holds more than {most}; split the file")

    def _refuse(self, event: Any, why: str) -> NoReturn:
        raise _Refused(f"line {event.start_mark.line + 1}, column {event.start_mark.column + 1}: {why}")


def resolve(text: str) -> object:
    """The value of an unquoted YAML scalar.

    Raises:
        ValueError: it is a number that is not finite or has too many digits.
    """
    if text in WORDS:
        return WORDS[text]
    if text[0] not in "0123456789+-.":
        return text
    if _INTEGER.fullmatch(text):
        if len(text) > _MAX_DIGITS:
            raise ValueError(f"an integer has {len(text)} digits, the most that is read is {_MAX_DIGITS}")
        return int(text.replace("_", ""))
    if _NOT_FINITE.fullmatch(text):
        raise ValueError(f"{text} is not allowed; numbers must be finite")
    if _FLOAT.fullmatch(text):
        number = float(text.replace("_", ""))
        if not math.isfinite(number):
            raise ValueError(f"the number {text[:40]} is too large; numbers must be finite")
        return number
    return text


def dump_yaml(document: object) -> str:
    """The YAML text of plain data; top-level fields and the items of their lists have a line each.

    Raises:
        ValueError: a number is NaN or infinite.
    """
    text: str = yaml.dump(document, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=120)
    return text


_BaseDumper: Any = getattr(yaml, "CSafeDumper", yaml.SafeDumper)


class _Dumper(_BaseDumper):  # type: ignore[misc]
    """A writer whose output `parse_yaml` reads back exactly."""

    def ignore_aliases(self, data: object) -> bool:
        """Write every use of a value in full, never an alias."""
        return True

    def serialize(self, node: Any) -> None:
        """Lay out and write the document."""
        _lay_out(node)
        super().serialize(node)


def _lay_out(root: Any) -> None:
    """Give each field of the document, and each item of its lists, its own line; keep everything deeper inline."""
    root.flow_style = False
    for value in (pair[1] for pair in root.value) if isinstance(root, yaml.MappingNode) else ():
        lists = isinstance(value, yaml.SequenceNode) and any(
            not isinstance(item, yaml.ScalarNode) for item in value.value
        )
        value.flow_style = not lists
        for item in value.value if lists else ():
            item.flow_style = True


def _represent_text(dumper: Any, text: str) -> Any:
    plain = text[:1] not in "0123456789+-." and text not in WORDS
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=None if plain else '"')


def _represent_float(dumper: Any, number: float) -> Any:
    if not math.isfinite(number):
        raise ValueError(f"{number} cannot be written")
    text = repr(number)
    if "." not in text:
        text = text.replace("e", ".0e")  # 1e-05 is text in YAML 1.1; 1.0e-05 is a number in 1.1 and 1.2
    return dumper.represent_scalar("tag:yaml.org,2002:float", text)


_Dumper.add_representer(str, _represent_text)
_Dumper.add_representer(float, _represent_float)
