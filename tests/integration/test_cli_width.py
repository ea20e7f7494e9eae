"""Output of commands on a terminal of 80 columns."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from pathlib import Path

import pytest
from rich.cells import cell_len

import shardwright as sw

WIDTH = 80
ENVIRONMENT = {key: value for key, value in os.environ.items() if key not in ("COLUMNS", "LINES")} | {
    "PYTHONPATH": str(Path(sw.__file__).parents[1]),
    "TERM": "xterm",
}
LONG = "user_purchased_categories_of_the_last_thirty_days_and_of_the_year_before_table_0001"
TABLES = f"""
  - {{name: {LONG}, rows: 40_000_000, dim: 128, pooling: 1.0, access: {{zipf: 1.05}}}}
  - {{name: item, rows: 1_900_000_000, dim: 128, pooling: 5.0}}
  - {{name: shared, rows: 2_000_000, dim: 64, pooling: [5, 3, 2]}}
  - {{name: words, rows: 3_000_000, dim: 64, pooling: 50, access: {{zipf: 1.2}}, pooled: false}}
"""
TASK = "batch_size: 65536\ntopology: {{preset: h100-8, hosts: {hosts}}}\ntables:{tables}"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with two tasks and plans of the first."""
    path = tmp_path_factory.mktemp("wide")
    (path / "task.yaml").write_text(TASK.format(hosts=16, tables=TABLES))
    (path / "changed.yaml").write_text(TASK.format(hosts=16, tables=TABLES.replace("pooling: 5.0", "pooling: 500.0")))
    pooled = TABLES.replace(", pooled: false", "").replace("1_900_000_000", "100_000_000")
    (path / "small.yaml").write_text(TASK.format(hosts=2, tables=pooled))
    sw.plan(sw.Task.load(path / "task.yaml"), strategy="greedy").save(path / "greedy.json")
    sw.plan(sw.Task.load(path / "task.yaml"), time_limit=0.5).save(path / "plan.json")
    return path


def lines_on_a_terminal(arguments: list[str], folder: Path) -> list[str]:
    """Run the command on a terminal of 80 columns; return the printed lines, without the progress line."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(ours, termios.TIOCSWINSZ, struct.pack("HHHH", 50, WIDTH, 0, 0))
    command = [sys.executable, "-m", "shardwright", *arguments]
    process = subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, cwd=folder, env=ENVIRONMENT)
    os.close(theirs)
    printed = b""
    while True:
        try:
            block = os.read(ours, 65536)
        except OSError:  # the other end is closed
            break
        if not block:
            break
        printed += block
    os.close(ours)
    assert process.wait(timeout=60) == 0, printed.decode()
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", printed.decode()).replace("\r\n", "\n")
    return [line.split("\r")[-1].rstrip() for line in text.split("\n")]


@pytest.mark.slow
@pytest.mark.parametrize(
    "arguments",
    [
        ["plan", "task.yaml", "--time-limit", "0.5"],
        ["plan", "small.yaml", "--time-limit", "0.5", "--sharding-group-size", "auto"],
        ["plan", "changed.yaml", "--from", "plan.json", "--time-limit", "0.5"],
        ["plan", "--check", "plan.json"],
        ["show", "greedy.json"],
        ["show", "plan.json"],
        ["compare", "small.yaml", "--strategies", "random,greedy,certified", "--time-limit", "0.5"],
        ["review", "greedy.json", "--time-limit", "0.5"],
        ["scale", "small.yaml", "--hosts", "1,64", "--devices", "h100-8,h200-8", "--price", "h100=2.5", "--batch-per-device", "1M"],
        ["models"],
    ],
    ids=" ".join,
)  # fmt: skip
def test_no_line_is_wider_than_the_terminal(arguments: list[str], folder: Path) -> None:
    lines = lines_on_a_terminal(arguments, folder)
    assert len(lines) > 5
    assert [line for line in lines if cell_len(line) > WIDTH] == []
    if arguments[0] == "show":  # nothing of a name is lost
        assert LONG in "".join(line.split(" ")[1] for line in lines if line.startswith(" "))
