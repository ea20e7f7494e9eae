"""Every JSON document of the command line has the schema of its command, in docs/reference/schemas."""

import json
from functools import cache
from pathlib import Path

from jsonschema import Draft202012Validator

SCHEMAS = Path(__file__).parents[1] / "docs" / "reference" / "schemas"
_MODES = ("--check", "--links", "--collectives", "--steps")


def schema_name(arguments: list[str]) -> str:
    """The name of the schema for a command line: the command, and the option that gives it another document."""
    command, *options = arguments
    if command == "learn":  # its --steps is a number
        return command
    if command == "models":
        return "models-remove" if "remove" in options else command
    return command + "".join(mode.removeprefix("-") for mode in _MODES if mode in options)


@cache
def validator(name: str) -> Draft202012Validator:
    """The validator of a schema."""
    schema = json.loads((SCHEMAS / f"{name}.json").read_text())
    Draft202012Validator.check_schema(schema)
    return Draft202012Validator(schema)


def check_document(arguments: list[str], text: str) -> None:
    """Check a document that a command printed; one about an error holds that alone."""
    document = json.loads(text)
    if "error" in document:
        assert document.keys() == {"error"}
        assert document["error"].keys() == {"type", "message"}
        return
    errors = [
        f"{error.json_path}: {error.message[:200]}" for error in validator(schema_name(arguments)).iter_errors(document)
    ]
    assert not errors, "\n".join(errors)
