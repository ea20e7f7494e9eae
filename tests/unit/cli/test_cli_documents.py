"""The schemas in docs/reference are what scripts/schemas.py makes, and the reference lists each of them."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from shardwright.cli.documents import DOCUMENTS
from shardwright.cli.main import main
from tests.json_documents import SCHEMAS, schema_name, validator

ROOT = Path(__file__).parents[3]


def test_the_committed_schemas_are_those_that_the_script_makes():
    made = "from scripts.schemas import *; print(json.dumps({name_of(c) + '.json': schema_of(c) for c in DOCUMENTS}))"
    completed = subprocess.run([sys.executable, "-c", made], cwd=ROOT, capture_output=True, text=True, check=True)
    assert json.loads(completed.stdout) == {path.name: path.read_text() for path in SCHEMAS.iterdir()}


@pytest.mark.parametrize("command", DOCUMENTS)
def test_a_schema_is_valid_and_the_reference_links_to_it(command):
    name = schema_name(command.split())
    validator(name)
    assert f"[`shardwright {command}`](schemas/{name}.json)" in (ROOT / "docs/reference/json.md").read_text()


def test_commands_with_a_schema_exist(capsys):
    main(["--help"])
    words = capsys.readouterr().out.split()
    named = {command.split()[0] for command in DOCUMENTS}
    assert named <= set(words)
