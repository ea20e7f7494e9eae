"""Options of a training from the command line: NAME=VALUE for any field of its dataclass."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, TypeVar

from shardwright.errors import InvalidInput

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

Options = TypeVar("Options", bound="DataclassInstance")


def options_from_texts(kind: type[Options], chosen: Mapping[str, Any], texts: Sequence[str]) -> Options:
    """The options of a training.

    Args:
        kind: dataclass of the options; each has a default that is a number or a text.
        chosen: options that have a flag of their own.
        texts: further ones, as in "learning_rate=0.001".

    Raises:
        InvalidInput: a text is not NAME=VALUE, names no option or one twice, or a value is of another type or breaks a rule.
    """
    defaults = {field.name: field.default for field in fields(kind)}
    values = dict(chosen)
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or name not in defaults:
            close = get_close_matches(name, defaults, n=1)
            hint = f"did you mean '{close[0]}'? " if close else ""
            raise InvalidInput(f"--option {text!r} must be NAME=VALUE; {hint}names are {', '.join(defaults)}")
        if name in values:
            raise InvalidInput(
                f"--option {text!r}: {name} is set already; give it once, and seed, iterations and steps by their own flags"
            )
        values[name] = _value(text, value, defaults[name])
    return kind(**values)


def _value(text: str, value: str, default: object) -> int | float | str:
    """The value, of the type that the default has."""
    if isinstance(default, str):
        return value
    try:
        return float(value) if isinstance(default, float) else int(value)
    except ValueError:
        wanted = "a number" if isinstance(default, float) else "a whole number"
        raise InvalidInput(f"--option {text!r}: the value must be {wanted}") from None
