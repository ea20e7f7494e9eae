"""The documentation: every code block of every page runs, and nothing escapes."""

import importlib.util
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from tests.documentation import BadPage, missing_words, parse_page, read_page

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = [*sorted(DOCS.rglob("*.md")), ROOT / "README.md"]

# Blocks that are shown and not run: page and how many. Each says why, in the page; add to this list only what cannot be made small.
NOT_RUN = {
    "index.md": 2,
    "README.md": 2,
    "tutorials/calibrating.md": 2,
    "tutorials/torchrec.md": 1,
    "tutorials/tuning.md": 4,
}


def name_of(page: Path) -> str:
    return page.relative_to(DOCS if page.is_relative_to(DOCS) else ROOT).as_posix()


def run_page(page: Path, folder: Path) -> subprocess.CompletedProcess[str]:
    environment = {
        **os.environ,
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
        "PYTHONPATH": str(ROOT),  # for the package of tests that the program is in
        "COLUMNS": "120",
        "NO_COLOR": "1",
    }
    command = [sys.executable, "-m", "tests.documentation_program", str(page)]
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=1800, check=False
    )


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_block_of_the_page_runs(page, tmp_path):
    content = read_page(page)
    missing = [package for package in content.needs if importlib.util.find_spec(package) is None]
    if missing:
        pytest.skip(f"the page needs {', '.join(missing)}")
    done = run_page(page, tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr


def test_pages_of_results_are_those_of_their_figures():
    from scripts.results import pages

    assert {path: path.read_text(encoding="utf-8") for path in pages()} == pages()


def test_blocks_that_do_not_run_are_few_and_listed():
    skipped = Counter(name_of(page) for page in PAGES for block in read_page(page).blocks if block.skipped)
    assert skipped == NOT_RUN


BAD = {
    "no language": "```\nls\n```\n",
    "a language that nobody runs": "```sh\nls\n```\n",
    "options": "```python hl_lines='1'\n1\n```\n",
    "never closed": "```bash\nls\n",
    "indented": "Text:\n\n    shardwright demo\n",
    "pre": "<pre>ls</pre>\n",
    "no reason": "<!-- not run: -->\n```bash\nls\n```\n",
    "a slip in a comment": "<!-- not-run: slow -->\n```bash\nls\n```\n",
    "nothing to skip": "```bash\nls\n```\n<!-- not run: slow -->\n",
    "an unused file": '```yaml title="task.yaml"\na: 1\n```\n```bash\nls\n```\n',
    "output of nothing": "```output\nok\n```\n",
    "skipping what never runs": "<!-- not run: long -->\n```text\nok\n```\n",
}


@pytest.mark.parametrize("text", BAD.values(), ids=BAD.keys())
def test_nothing_escapes(text):
    with pytest.raises(BadPage, match=r"page\.md"):
        parse_page(Path("page.md"), text)


GOOD = """
<!-- run: bash
echo 3 > seen.txt
-->
1. A list

    with a paragraph that is no code, and a block:

    ```python
    number = int(open("seen.txt").read())
    ```

```python title="own.py"
GREETING = "hello there"
```

```python
from own import GREETING
print(GREETING, number + 1)
```

```output
hello … there
```

<!-- exits: 3 -->
```bash
exit 3
```

```yaml
exchange: {deduplicate: host}
```
"""


def test_a_page_runs_in_order_and_shares_names(tmp_path):
    page = tmp_path / "page.md"
    page.write_text(GOOD)
    folder = tmp_path / "folder"
    folder.mkdir()
    done = run_page(page, folder)
    assert done.returncode == 0, done.stderr
    assert (folder / "seen.txt").read_text() == "3\n"


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        ("hello … there", "hello nobody", "nobody"),
        ("exit 3", "true", "exit code 0, expected 3"),
        ("exit 3", "false\nexit 3", "exit code 1, expected 3"),
        ("deduplicate: host", "deduplicate: nowhere", "nowhere"),
        ("number + 1", "numbers + 1", "page.md"),
        ("echo 3", "echo 3 | grep 4", "exit code 1, expected 0"),
    ],
)
def test_a_page_that_is_wrong_fails(tmp_path, before, after, said):
    page = tmp_path / "page.md"
    page.write_text(GOOD.replace(before, after))
    folder = tmp_path / "folder"
    folder.mkdir()
    done = run_page(page, folder)
    assert done.returncode == 1
    assert said in done.stderr


def test_words_are_compared_loosely():
    assert missing_words("step 3.2 ms  bound", "  bound   step  4.19 ms") == []
    assert missing_words("step bound_ms gap", "step bound gap") == ["bound_ms"]
