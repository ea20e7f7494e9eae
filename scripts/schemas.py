"""Write docs/reference/schemas: the JSON Schemas of `shardwright.cli.documents`. `python scripts/schemas.py`, after a change there."""

import json
from dataclasses import is_dataclass
from inspect import cleandoc
from pathlib import Path

import msgspec

from shardwright.cli.documents import DOCUMENTS, measuring, planning
from shardwright.cli.output import Document

FOLDER = Path(__file__).parents[1] / "docs" / "reference" / "schemas"


def name_of(command: str) -> str:
    """The name of a command's schema: "plan --check" gives "plan-check"."""
    return "-".join(word.removeprefix("--") for word in command.split())


def schema_of(command: str) -> str:
    """The text of a command's schema."""
    found = msgspec.json.schema(DOCUMENTS[command])
    own = found.pop("$defs")
    top = own.pop(found.pop("$ref").rpartition("/")[2])
    top["required"] = sorted({*top["required"], *Document.__annotations__})  # commands need not give what `emit` adds
    schema = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **top,
        "title": f"shardwright {command}",
        "$defs": own,
    }
    for name, one in own.items():
        if is_dataclass(vars(planning).get(name, vars(measuring).get(name))):  # results; NaN is printed as null
            for field in one["properties"].values():
                if field.get("type") == "number":
                    field["type"] = ["number", "null"]
    for one in (schema, *own.values()):
        if "properties" in one:
            one["additionalProperties"] = False
        if "description" in one:
            one["description"] = cleandoc(one["description"])  # msgspec does so from 0.23 on
    return json.dumps(schema, indent=1) + "\n"


if __name__ == "__main__":
    for command in DOCUMENTS:
        (FOLDER / f"{name_of(command)}.json").write_text(schema_of(command))
