"""Read and write JSON with unique keys and finite numbers only."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterable
from typing import NoReturn

from shardwright.errors import InvalidInput


def parse_json(text: str, name: str, max_values: int) -> object:
    """The content of a JSON text.

    Args:
        text: the document.
        name: the file's name, for messages.
        max_values: most scalars, lists and mappings (commas and brackets inside texts count too).

    Raises:
        InvalidInput: the text is not JSON, or holds a duplicate key, a number that is not finite, or too much.
    """
    if text.count(",") + text.count("[") + text.count("{") > max_values:
        raise InvalidInput(f"{name}: holds more than {max_values} values, the most that is read; split the file")
    try:
        return json.loads(text, object_pairs_hook=_unique_keys, parse_constant=_refuse_constant, parse_float=_finite)
    except json.JSONDecodeError as error:
        raise InvalidInput(f"{name}: line {error.lineno}, column {error.colno}: not JSON: {error.msg}") from None
    except RecursionError:
        raise InvalidInput(f"{name}: nested too deeply; flatten it") from None
    except InvalidInput as error:
        raise InvalidInput(f"{name}: {error}") from None
    except ValueError:  # json raises no other ValueError
        raise InvalidInput(f"{name}: an integer has thousands of digits; numbers must fit a float") from None


def _unique_keys(pairs: list[tuple[str, object]]) -> dict[str, object]:
    mapping = dict(pairs)
    if len(mapping) < len(pairs):
        twice, _ = Counter(key for key, _ in pairs).most_common(1)[0]
        raise InvalidInput(f"the key {twice!r} occurs twice in one mapping; keep one")
    return mapping


def _refuse_constant(text: str) -> NoReturn:
    raise InvalidInput(f"{text} is not allowed; numbers must be finite")


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise InvalidInput(f"the number {text[:40]} is too large; numbers must be finite")
    return number


def dump_json(document: object) -> str:
    """The JSON text of plain data. Each top-level field has its own line, and so has each item of its lists.

    Raises:
        ValueError: a number is NaN or infinite.
    """
    if not isinstance(document, dict):
        return _compact(document) + "\n"
    fields = (f"  {_compact(key)}: {_lines(value)}" for key, value in document.items())
    return _block("{", fields, "}", "") + "\n"


def _lines(value: object) -> str:
    if not isinstance(value, (list, tuple)) or not any(isinstance(item, (dict, list, tuple)) for item in value):
        return _compact(value)
    return _block("[", (f"    {_compact(item)}" for item in value), "]", "  ")


def _block(opening: str, items: Iterable[str], closing: str, indent: str) -> str:
    return f"{opening}\n" + ",\n".join(items) + f"\n{indent}{closing}"


def _compact(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False)
