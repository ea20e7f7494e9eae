"""Options of training runs: each is declared once, with its default and its bounds."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar, get_args, get_type_hints

from shardwright.errors import InvalidInput


def whole(default: int, least: int = 1) -> int:
    """Declare an option that is a whole number of at least `least`."""
    return field(default=default, metadata={"least": least})


def number(default: float, *, above: float | None = None, most: float = math.inf) -> float:
    """Declare an option that is a finite number of at least 0, or above `above`, and at most `most`."""
    return field(default=default, metadata={"above": above, "most": most})


@dataclass(frozen=True)
class Options:
    """Base of option sets: each field is a whole number, a number or a name of a Literal; values out of bounds are refused.

    Attributes:
        prefix: beginning of every message, such as "rnn: ".
    """

    prefix: ClassVar[str] = ""

    def __post_init__(self) -> None:
        types = get_type_hints(type(self))
        for known in fields(self):
            value = getattr(self, known.name)
            rule = _broken(known.metadata or {"names": get_args(types[known.name])}, value)
            if rule:
                raise InvalidInput(f"{self.prefix}{known.name} is {value!r}, must be {rule}")


def _broken(rule: Mapping[str, Any], value: Any) -> str | None:
    """The rule that the value breaks, in words; None if it breaks none."""
    if "names" in rule:
        return None if value in rule["names"] else f"one of {', '.join(rule['names'])}"
    real = not isinstance(value, bool) and isinstance(value, (int, float)) and math.isfinite(value)
    if "least" in rule:
        kept = real and isinstance(value, int) and value >= rule["least"]
        return None if kept else f"a whole number of at least {rule['least']}"
    above, most = rule["above"], rule["most"]
    if real and (value >= 0 if above is None else value > above) and value <= most:
        return None
    lowest = "of at least 0" if above is None else f"above {above:g}"
    return f"a finite number {lowest}" + (f" and at most {most:g}" if most < math.inf else "")
