"""Measure the size of the code base: lines, files, and the files to open to understand a part.

    python scripts/house.py [--since COMMIT]

Prints a Markdown table: lines and files of the package and of its core, what `sw.plan` loads, the median file, files that only one other
file imports, files under 60 lines, dependencies, and lines by folder; then lines beside the package. --since adds a column for an earlier
commit.
"""

from __future__ import annotations

import argparse
import ast
import statistics
import subprocess
import tomllib
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).parent.parent
PACKAGE = "src/shardwright"
ENDINGS = (".py", ".cpp", ".hpp")
SMALL = 60
CORE = ("task", "sharding", "cost", "search", "questions")
BESIDE = ("tests", "benchmarks", "experiments", "native")
PLANNING = "search/solve.py"


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--since", metavar="COMMIT", help="show an earlier commit beside the files at hand")
    options = parser.parse_args(arguments)
    columns = [measured(read_files())]
    if options.since:
        columns.insert(0, measured(read_commit(options.since)))
    heads = ["", options.since, "now"] if options.since else ["", "now"]
    print("| " + " | ".join(heads) + " |")
    print("| --- |" + " ---: |" * len(columns))
    for name in dict.fromkeys(name for column in columns for name in column):
        print(f"| {name} | " + " | ".join(str(column.get(name, "–")) for column in columns) + " |")


def read_files() -> dict[str, str]:
    """Return the text of the package's files now, by path."""
    paths = [
        path for folder in (PACKAGE, *BESIDE) for ending in ENDINGS for path in (ROOT / folder).rglob(f"*{ending}")
    ]
    return {path.relative_to(ROOT).as_posix(): path.read_text() for path in (*paths, ROOT / "pyproject.toml")}


def read_commit(commit: str) -> dict[str, str]:
    """Return the text of the package's files at a commit, by path."""

    def git(*command: str) -> str:
        return subprocess.run(["git", *command], cwd=ROOT, check=True, capture_output=True, text=True).stdout

    paths = git("ls-tree", "-r", "--name-only", commit, PACKAGE, *BESIDE).splitlines()
    wanted = [*(path for path in paths if path.endswith(ENDINGS)), "pyproject.toml"]
    return {path: git("show", f"{commit}:{path}") for path in wanted}


def measured(texts: dict[str, str]) -> dict[str, object]:
    """Return the figures of the table, by name."""
    project = tomllib.loads(texts.pop("pyproject.toml"))["project"]
    files = {path.removeprefix(f"{PACKAGE}/"): text for path, text in texts.items() if path.startswith(PACKAGE)}
    lines = {path: len(text.splitlines()) for path, text in files.items()}
    imports = {path: set(imported(text, files)) for path, text in files.items()}
    importers = Counter(target for path, targets in imports.items() for target in targets - {path})
    loaded = closure(PLANNING, imports)
    core = [path for path in files if path.startswith(tuple(f"{folder}/" for folder in CORE))]
    folders = Counter[str]()
    for path, count in lines.items():
        folders[path.split("/")[0] + "/" if "/" in path else "(top)"] += count
    return {
        "lines": sum(lines.values()),
        "files": len(lines),
        f"lines of the core ({', '.join(CORE)})": sum(lines[path] for path in core),
        "files of the core": len(core),
        "lines that `sw.plan` may load": sum(lines[path] for path in loaded),
        "files that `sw.plan` may load": len(loaded),
        "median file": round(statistics.median(lines.values())),
        f"files under {SMALL} lines": sum(count < SMALL for count in lines.values()),
        "longest file": max(lines.values()),
        "files with one importer": sum(count == 1 for count in importers.values()),
        "dependencies": len(project["dependencies"]),
        **{f"lines of {name}": count for name, count in sorted(folders.items(), key=lambda item: -item[1])},
        **{f"lines of {folder}/, beside the package": _lines_in(folder, texts) for folder in BESIDE},
    }


def _lines_in(folder: str, texts: dict[str, str]) -> int:
    return sum(len(text.splitlines()) for path, text in texts.items() if path.startswith(f"{folder}/"))


def imported(text: str, files: Iterable[str]) -> Iterable[str]:
    """Yield the files of the package that a file imports, in functions and for type checking too."""
    known = set(files)
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "shardwright":
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names if alias.name.split(".")[0] == "shardwright"]
        else:
            continue
        for name in names:
            parts = name.split(".")[1:]
            for end in (len(parts), len(parts) - 1):
                stem = "/".join(parts[:end])
                target = next((path for path in (f"{stem}.py", f"{stem}/__init__.py") if path in known), None)
                if target:
                    yield target
                    break


def closure(start: str, imports: dict[str, set[str]]) -> set[str]:
    """Return all files that a file imports, directly or through others."""
    found, new = set(), {start}
    while new:
        found |= new
        new = {target for path in new for target in imports.get(path, ())} - found
    return found


if __name__ == "__main__":
    main()
