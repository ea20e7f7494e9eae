"""Shared parts of the programs: options, journals of finished rows, separate processes, sizes and ratios.

A light module, since processes that measure memory import it.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

Options = argparse.Namespace
Size = tuple[int, int]
"""Numbers of tables and devices."""
HIDDEN = argparse.SUPPRESS
"""Help of an option that a program passes to itself."""


MEASURED_ROWS: dict[str, Any] = {
    "rows": (Path, "file of the measured rows", {"required": True}),
    "model": (Path, "cost model of the kernels; by default that of this machine"),
    "page": (False, "measure no rows, make the page of those in the file"),
    "links": (
        Path,
        "links of each bed to price with, in place of the rows' own; measured for beds that the file lacks",
    ),
    "minutes": (600.0, "no case begins later; a later run goes on (default: %(default)s)"),
    "quick": (False, "one case, some minutes"),
}
"""Options of programs that measure rows on beds of hosts."""


def options_of(about: str | None, arguments: Sequence[str] | None, **wanted: Any) -> Options:
    """Return the options of a command line.

    Args:
        about: docstring of the program.
        arguments: the command line; None for that of this process.
        wanted: each option's default, or a tuple of default, help, and either choices, type, or arguments of `add_argument`. False
            makes a flag, a list or tuple an option of several values, a type an option without a default. `time_limit` becomes
            --time-limit; a `positional` option has no name on the command line.
    """
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, told in wanted.items():
        given = told if isinstance(told, tuple) else (told,)
        default, text, rest = (*given, *("", {})[len(given) - 1 :])
        more = rest if isinstance(rest, dict) else {"type": rest} if callable(rest) else {"choices": rest}
        flag = name if (more := dict(more)).pop("positional", False) else f"--{name.replace('_', '-')}"
        parser.add_argument(flag, **{"help": text or None, **_kind(default), **more})
    return parser.parse_args(arguments)


def _kind(default: Any) -> dict[str, Any]:
    """How the command line reads an option with this default."""
    if default is False:
        return {"action": "store_true"}
    if isinstance(default, type):
        return {"type": default}
    if isinstance(default, list | tuple):
        return {"nargs": "+", "default": default, **({"type": type(default[0])} if default else {})}
    return {"default": default, **({} if default is None else {"type": type(default)})}


class Journal:
    """Rows of a program, one JSON document a line, so that a stopped run resumes. An unfinished last line is dropped.

    Args:
        path: the file; the first row creates it.
        name: the column that identifies a row; the last row of an identity counts.
    """

    def __init__(self, path: Path, name: str = "key") -> None:
        self._path, self._name = path, name
        text = path.read_text(encoding="utf-8") if path.exists() else ""
        whole = text[: text.rfind("\n") + 1]
        if whole != text:
            path.write_text(whole, encoding="utf-8")
        self._rows: dict[Any, dict[str, Any]] = {row[name]: row for row in map(json.loads, whole.splitlines())}

    @property
    def rows(self) -> list[dict[str, Any]]:
        """All rows, in the order of their first lines."""
        return list(self._rows.values())

    def row(self, key: Any) -> dict[str, Any] | None:
        """The row of a key; None if there is none."""
        return self._rows.get(key)

    def add(self, key: Any, **facts: Any) -> dict[str, Any]:
        """Store a row, on disk at once."""
        self._rows[key] = {self._name: key, **facts}
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(self._rows[key]) + "\n")
        return self._rows[key]

    def kept(self, key: Any, facts: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """The row of a key; a missing row is made, stored and printed now."""
        if key not in self._rows:
            print(self.add(key, **facts()), file=sys.stderr, flush=True)
        return self._rows[key]


def run_apart(program: str, *arguments: object, timeout_s: float | None = None) -> Any:
    """Run a program of this folder in a separate process, and return the JSON document of its last line.

    Raises:
        subprocess.TimeoutExpired: it took longer.
        subprocess.CalledProcessError: it failed.
    """
    command = [sys.executable, "-m", f"benchmarks.{program}", *map(str, arguments)]
    run = subprocess.run(command, capture_output=True, text=True, check=True, timeout=timeout_s)
    return json.loads(run.stdout.splitlines()[-1])


def size_of(text: str) -> Size:
    """Return tables and devices of a text such as 200x16."""
    tables, devices = text.split("x")
    return int(tables), int(devices)


def peak_memory() -> int:
    """Return the peak memory of this process in bytes; getrusage would count its parent's too."""
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) * 1024


def spread(values: Sequence[float]) -> float:
    """Return the largest less the smallest value, over the median."""
    return (max(values) - min(values)) / statistics.median(values)


def mean_and_range(ratios: Sequence[float], spec: str = ".2f") -> str:
    """Return the geometric mean with the smallest and the largest ratio, for example "0.98 (0.91 to 1.04)"."""
    return f"{statistics.geometric_mean(ratios):{spec}} ({min(ratios):.2f} to {max(ratios):.2f})"
