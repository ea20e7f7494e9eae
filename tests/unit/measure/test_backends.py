from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from shardwright.errors import InvalidInput
from shardwright.measure.backends import check_backend, is_own, load_backend, source_digest
from shardwright.measure.embedding_bag import EmbeddingBagBackend

OWN = "shardwright.measure.embedding_bag:EmbeddingBagBackend"

GOOD = """
class Good:
    name = "good"

    def build(self, group, optimizer, arena, learning_rate=0.1):
        raise NotImplementedError
"""


@pytest.fixture
def written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], str]]:
    """Writes a module that can be imported, and gives its name; a new one each time, as modules stay in memory."""
    monkeypatch.syspath_prepend(str(tmp_path))
    made: list[str] = []

    def write(text: str) -> str:
        name = f"own_backend_{len(made)}_{tmp_path.name}"
        made.append(name)
        (tmp_path / f"{name}.py").write_text(text)
        return name

    yield write
    for name in made:
        sys.modules.pop(name, None)


def test_a_class_is_named_by_its_import_path() -> None:
    assert is_own(OWN)
    assert not is_own("fbgemm")
    assert isinstance(load_backend(OWN), EmbeddingBagBackend)


def test_a_module_of_the_user_is_imported(written: Callable[[str], str]) -> None:
    name = f"{written(GOOD)}:Good"
    assert load_backend(name).name == "good"
    check_backend(name)


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("mine", "known backends are fbgemm, embedding_bag, and one of your own is named package.module:ClassName"),
        (":Mine", "must read package.module:ClassName"),
        ("a.b:", "must read package.module:ClassName"),
        ("a..b:Mine", "must read package.module:ClassName"),
        ("a:b:Mine", "must read package.module:ClassName"),
        ("a/b.py:Mine", "must read package.module:ClassName"),
        ("a:Mine.inner", "must read package.module:ClassName"),
        ("__main__:Mine", "move it into a module and name that"),
        ("nowhere_to_be_found:Mine", "no module 'nowhere_to_be_found'; install its package, or name its folder in PYTHONPATH"),
        ("shardwright.nowhere:Mine", "no module 'shardwright.nowhere'"),
        ("shardwright.measure.embedding_bag:Nothing", "does not exist in .*, which defines EmbeddingBagBackend, EmbeddingBagCall"),
        ("shardwright.measure.embedding_bag:_sgd", "_sgd is no class"),
        ("shardwright.measure.embedding_bag:EmbeddingBagCall", "could not be created .TypeError.*without arguments"),
        ("collections:Counter", "has no `name`"),
    ],
)  # fmt: skip
def test_objects_that_are_no_backend_are_refused(name: str, says: str) -> None:
    for load in (load_backend, check_backend):
        with pytest.raises(InvalidInput, match=says):
            load(name)


@pytest.mark.parametrize(
    ("before", "after", "says"),
    [
        ("class Good:", "import nothing_of_the_kind\n\nclass Good:", "importing .* failed .ModuleNotFoundError: No module"),
        ("class Good:", "class Good", "importing .* failed .SyntaxError"),
        ("class Good:", "1 / 0\n\nclass Good:", "failed .ZeroDivisionError: division by zero.; measuring processes"),
        ('name = "good"', "name = 7", "has no `name`, which must be a text"),
        ("def build", "def make", "has no method build"),
        ("(self, group, optimizer, arena, learning_rate=0.1)", "(self, group, optimizer)", "build does not take"),
        ("learning_rate=0.1", "learning_rate", "build does not take its arguments .missing a required argument"),
    ],
)  # fmt: skip
def test_errors_of_a_module_are_reported(written: Callable[[str], str], before: str, after: str, says: str) -> None:
    assert before in GOOD
    with pytest.raises(InvalidInput, match=says):
        load_backend(f"{written(GOOD.replace(before, after))}:Good")


def test_the_digest_is_that_of_the_source(written: Callable[[str], str]) -> None:
    first, same, other = (written(text) for text in (GOOD, GOOD, GOOD + "# changed\n"))
    assert source_digest(f"{first}:Good") == source_digest(f"{same}:Good")
    assert source_digest(f"{first}:Good") != source_digest(f"{other}:Good")
    assert source_digest("builtins:dict") == "unknown"
