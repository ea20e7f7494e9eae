"""Runs the blocks of one page in the current folder: python documentation_program.py PAGE.

A process of its own, since blocks of a page share names, change the process and may end it. Prints the first failure, and exits with 1.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

import yaml

from tests.documentation import Block, missing_words, read_page

SMALL_TASK = {
    "batch_size": 256,
    "topology": {"hosts": 2, "devices_per_host": 2, "device": "cpu", "memory": "8 GB"},
    "tables": [
        {"name": "user_id", "rows": 4000, "dim": 16, "pooling": 1.0},
        {"name": "item_id", "rows": 2000, "dim": 32, "pooling": 8.0},
        {"name": "history", "rows": 2000, "dim": 16, "pooling": 20.0, "pooled": False},
    ],
}


def main() -> int:
    """Run the page named by the first argument."""
    page = read_page(Path(sys.argv[1]))
    state = _State(page.path)
    for block in page.blocks:
        try:
            state.do(block)
        except BaseException as problem:  # a block that leaves Python has failed like any other
            sys.stderr.write(f"{page.path.name}:{block.line}: this {block.language} block failed:\n\n{block.code}\n")
            sys.stderr.write("".join(traceback.format_exception(problem)) + f"\nit printed:\n{state.printed}\n")
            return 1
    return 0


class _State:
    """State that blocks leave for later blocks."""

    def __init__(self, page: Path) -> None:
        self.page, self.printed = page, ""
        module = ModuleType("page")  # a module that can be found: dataclasses look up the one that they are defined in
        sys.modules["page"], self.names = module, module.__dict__
        self.task: dict[str, object] = SMALL_TASK

    def do(self, block: Block) -> None:
        action = getattr(self, f"_{block.action}", None)
        if action is not None:  # blocks that are only shown, or left out, have none
            action(block)

    def _bash(self, block: Block) -> None:
        with self._capture():
            command = ["bash", "-euo", "pipefail", "-c", block.code]
            done = subprocess.run(command, stdin=subprocess.DEVNULL, check=False)
        assert done.returncode == block.exits, f"exit code {done.returncode}, expected {block.exits}"

    def _python(self, block: Block) -> None:
        source = "\n" * (block.line - 1) + block.code  # so that tracebacks name lines of the page
        with self._capture():
            exec(compile(source, str(self.page), "exec"), self.names)

    def _file(self, block: Block) -> None:
        target = Path(str(block.title))
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(block.code, encoding="utf-8")
        if block.language == "python":
            compile(block.code, str(target), "exec")
            return
        document = yaml.safe_load(block.code)
        if isinstance(document, dict) and {"topology", "tables"} <= document.keys():
            self.task = document
            _load(document)

    def _fragment(self, block: Block) -> None:
        document = yaml.safe_load(block.code)
        assert isinstance(document, dict), "a part of a task file is a mapping"
        _load({**self.task, **document})

    def _output(self, block: Block) -> None:
        missing = missing_words(block.code, self.printed)
        assert not missing, f"shown, but not printed: {', '.join(missing)}"

    @contextmanager
    def _capture(self) -> Iterator[None]:
        """Captures the output of this process and its children."""
        with tempfile.TemporaryFile() as file:
            sys.stdout.flush()
            sys.stderr.flush()
            before = os.dup(1), os.dup(2)
            os.dup2(file.fileno(), 1)
            os.dup2(file.fileno(), 2)
            try:
                yield
            finally:
                sys.stdout.flush()
                sys.stderr.flush()
                for number, saved in enumerate(before, start=1):
                    os.dup2(saved, number)
                    os.close(saved)
                file.seek(0)
                self.printed = file.read().decode(errors="replace")


def _load(document: dict[str, object]) -> None:
    import shardwright as sw

    # Beside the files that it names.
    with tempfile.NamedTemporaryFile("w", suffix=".yaml", dir=".", encoding="utf-8") as file:
        yaml.safe_dump(document, file)
        file.flush()
        sw.Task.load(file.name)


if __name__ == "__main__":
    sys.exit(main())
