import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from shardwright.documents.json_text import dump_json, parse_json
from shardwright.documents.yaml_text import dump_yaml, parse_yaml
from shardwright.errors import InvalidInput
from shardwright.task import Task
from shardwright.task.files import load_task, save_task, task_from_dict, task_to_dict
from tests.strategies import tasks

MAX_VALUES = 100_000

scalars = (
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs", "Cc"]))
)
documents = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(st.characters(categories=["L", "N", "P"])), inner)
    ),
    max_leaves=20,
)


@given(tasks(constrained=True))
def test_tasks_survive_files(tmp_path_factory: pytest.TempPathFactory, task: Task) -> None:
    folder = tmp_path_factory.mktemp("task")
    for name in ("task.yaml", "task.json"):
        save_task(task, folder / name)
        assert load_task(folder / name) == task


@given(tasks(constrained=True))
def test_the_plain_form_is_stable(task: Task) -> None:
    document = task_to_dict(task)
    assert task_to_dict(task_from_dict(document)) == document


@given(documents)
@example({"a": "1e5", "b": ["no", {"c": ""}], "~": ".5"})
def test_documents_survive_yaml(document: object) -> None:
    assert parse_yaml(dump_yaml(document), "a", MAX_VALUES) == document


@given(documents)
def test_documents_survive_json(document: object) -> None:
    text = dump_json(document)
    assert parse_json(text, "a", MAX_VALUES) == document == json.loads(text)


@given(st.binary(max_size=300), st.sampled_from(["junk.yaml", "junk.json"]))
@example(b"\xff\xfe\x00", "junk.yaml")
@example(b"%YAML 99.1\n---\na", "junk.yaml")
def test_junk_is_refused(tmp_path_factory: pytest.TempPathFactory, content: bytes, name: str) -> None:
    path = tmp_path_factory.getbasetemp() / name
    path.write_bytes(content)
    with pytest.raises(InvalidInput):
        load_task(path)


@given(st.text(st.sampled_from("ab01:-[]{},&*!?|>'\"#%@ \n\t.~eE_+")))
def test_yaml_like_text_is_read_or_refused(text: str) -> None:
    message = "a: fine"
    try:
        parse_yaml(text, "a", MAX_VALUES)
    except InvalidInput as error:
        message = str(error)
    assert message.startswith("a: ")


@st.composite
def damaged(draw: st.DrawFn, document: Any) -> Any:
    """The document with one value somewhere replaced by another, removed or renamed."""
    if isinstance(document, (dict, list)) and document and draw(st.integers(0, 4)):
        keys = list(document) if isinstance(document, dict) else list(range(len(document)))
        key = draw(st.sampled_from(keys))
        changed = document.copy()
        changed[key] = draw(damaged(document[key]))
        return changed
    extreme = st.sampled_from([10**30, 10**400, -1, 0, 1e308, 5e-324, "1e400 GB", "", True, None, [], {}, [[]]])
    return draw(extreme | documents)


@given(tasks(max_tables=2, constrained=True), st.data())
def test_any_damage_is_a_task_or_refused(task: Task, data: st.DataObject) -> None:
    document = data.draw(damaged(task_to_dict(task)))
    try:
        result = task_from_dict(document, "task.yaml", Path("/nonexistent"))
    except InvalidInput:
        return
    assert task_from_dict(task_to_dict(result)) == result
