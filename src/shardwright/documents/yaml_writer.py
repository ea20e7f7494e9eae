"""YAML text that the reader, and any other, reads back exactly."""

from __future__ import annotations

import math
from typing import Any

import yaml

from shardwright.documents.yaml_reader import WORDS


def dump_yaml(document: object) -> str:
    """The YAML text of plain data; top-level fields and the items of their lists have a line each.

    Raises:
        ValueError: a number is NaN or infinite.
    """
    text: str = yaml.dump(document, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=120)
    return text


_BaseDumper: Any = getattr(yaml, "CSafeDumper", yaml.SafeDumper)


class _Dumper(_BaseDumper):  # type: ignore[misc]
    """Writes what `parse_yaml` reads back exactly."""

    def ignore_aliases(self, data: object) -> bool:
        """Write every use of a value out."""
        return True

    def serialize(self, node: Any) -> None:
        """Write the document."""
        _lay_out(node)
        super().serialize(node)


def _lay_out(root: Any) -> None:
    """Lines for the fields of the document and the items of their lists, everything deeper in line."""
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
        text = text.replace("e", ".0e")  # 1e-05 is text to YAML 1.1, 1.0e-05 a number to both
    return dumper.represent_scalar("tag:yaml.org,2002:float", text)


_Dumper.add_representer(str, _represent_text)
_Dumper.add_representer(float, _represent_float)
