import re
import signal
import subprocess
import sys
import time
import tomllib
from pathlib import Path

import pytest
import typer

import shardwright
from shardwright.cli.main import COMMANDS, application, main, overview


def test_version(cli):
    assert cli("--version").out == f"shardwright {shardwright.__version__}\n"


def test_the_version_is_that_of_the_project_and_has_its_notes():
    root = Path(__file__).parents[3]
    version = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
    assert version == shardwright.__version__
    assert f"\n## {version} (" in (root / "CHANGELOG.md").read_text(encoding="utf-8")


def test_without_arguments_the_help_is_printed_and_the_usage_is_bad(cli):
    outcome = cli()
    assert outcome.code == 2
    assert "Usage" in outcome.out
    assert outcome.err == ""


def test_the_help_lists_every_command(cli):
    outcome = cli("--help")
    assert outcome.code == 0
    assert all(f" {command} " in outcome.out for command in COMMANDS)


@pytest.mark.parametrize("command", COMMANDS)
def test_the_help_of_a_command_has_an_example_and_the_json_option(cli, command):
    outcome = cli(command, "--help")
    assert outcome.code == 0
    assert f"shardwright {command} " in outcome.out.split("Example:")[1]
    assert "--json" in outcome.out


def test_the_help_wraps_at_the_width_of_the_terminal(cli, monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setattr("typer.rich_utils.MAX_WIDTH", 100)
    lines = [line.strip() for line in cli("plan", "--help").out.splitlines()]
    begin = next(number for number, line in enumerate(lines) if line.startswith("If the plan of"))
    assert "With --json the document is the plan file itself" in lines[begin + 1]
    assert "shardwright plan task.yaml -o plan.json" in lines


def test_bad_usage_is_a_json_document_too(cli):
    outcome = cli("plan", "--json")
    assert outcome.code == 2
    assert outcome.document["error"]["type"] == "UsageError"
    assert "Missing argument" in outcome.document["error"]["message"]


def test_without_stdout_and_stderr_what_is_printed_goes_nowhere(monkeypatch):
    monkeypatch.setattr("sys.stdout", None)
    monkeypatch.setattr("sys.stderr", None)
    try:
        assert main(["--version"]) == 0
        assert main(["nope"]) == 2
    finally:
        for stream in (sys.stdout, sys.stderr):
            stream.close()


def _interrupt(*_):
    raise KeyboardInterrupt


def test_ctrl_c_before_a_command_runs_is_one_line(monkeypatch, capsys):
    monkeypatch.setattr("typer.main.get_command", _interrupt)
    assert main(["--version"]) == 130
    assert capsys.readouterr().err == "error: interrupted\n"


def interrupted_after(program, delay_s):
    """Exit code and stderr of a program that gets SIGINT so long after its first line of output."""
    command = [sys.executable, "-c", program]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        process.stdout.readline()
        time.sleep(delay_s)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
    return process.returncode, err


@pytest.mark.slow
@pytest.mark.parametrize("delay_s", [0.0, 0.02, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5])
def test_ctrl_c_while_parts_are_imported_is_one_line(delay_s):
    program = """
import sys
from shardwright import __main__, interrupts
interrupts.end_at_once()
print(flush=True)
sys.argv = ["shardwright", "learn", "dreamshard", "--tasks", "/nope", "-o", "/tmp/nope"]  # which imports torch
code = __main__.main()
if code == 2:
    import time
    time.sleep(3)
sys.exit(code)
"""
    code, err = interrupted_after(program, delay_s)
    # Before the command starts, Python tells of an interrupt that it cannot raise, as while an object is torn down, and goes on.
    err = re.sub(r"Exception ignored in: .*?KeyboardInterrupt: ?\n", "", err, flags=re.DOTALL)
    assert (code, err) in [
        (130, "error: interrupted\n"),
        (130, "error: stopped without saving; name a --checkpoint to resume later\n"),
        (130, "error: /nope: there is no such training tasks file; check the path\nerror: interrupted\n"),
        (
            2,
            "error: /nope: there is no such training tasks file; check the path\n",
        ),  # while the command was ending by itself
    ]


@pytest.mark.parametrize("calls", [1, 2])
def test_ctrl_c_that_a_callback_drops_is_raised_again(calls):
    program = f"""
import time
from shardwright.interrupts import raise_outside_imports
for _ in range({calls}):
    raise_outside_imports()
class Dropping:
    def __del__(self):
        print(flush=True)
        time.sleep(5)
        print("never printed", flush=True)
try:
    Dropping()
    time.sleep(5)
except KeyboardInterrupt:
    raise SystemExit(3)
"""
    assert interrupted_after(program, 0.1) == (3, "")


def test_other_dropped_exceptions_are_told_as_before():
    program = """
from shardwright.interrupts import raise_outside_imports
raise_outside_imports()
raise_outside_imports()
class Failing:
    def __del__(self):
        raise ValueError("in a finalizer")
Failing()
"""
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert run.stderr.count("ValueError: in a finalizer") == 1


def test_ctrl_c_within_an_import_waits_for_its_end(tmp_path):
    (tmp_path / "slow.py").write_text("import time\nprint(flush=True)\ntime.sleep(0.5)\ndone = True\n")
    program = f"""
import sys, time
sys.path.insert(0, {str(tmp_path)!r})
from shardwright.interrupts import raise_outside_imports
raise_outside_imports()
try:
    import slow
    time.sleep(60)
except KeyboardInterrupt:
    print("whole" if sys.modules["slow"].done else "half", file=sys.stderr)
"""
    assert interrupted_after(program, 0.1) == (0, "whole\n")


def test_ctrl_c_that_the_shell_has_turned_off_stays_off():
    program = """
import os, signal
signal.signal(signal.SIGINT, signal.SIG_IGN)
from shardwright.interrupts import end_at_once, raise_outside_imports
end_at_once()
raise_outside_imports()
print(flush=True)
import time
time.sleep(0.3)
"""
    assert interrupted_after(program, 0.0) == (0, "")


@pytest.mark.slow  # loads every command
def test_the_overview_names_the_commands_and_their_help_as_the_whole_program_does():
    whole, shown = (typer.main.get_command(program()).commands for program in (application, overview))
    assert {name: command.help for name, command in shown.items()} == {
        name: command.help for name, command in whole.items()
    }
    assert list(shown) == list(COMMANDS)


def test_the_help_loads_neither_numpy_nor_a_command():
    code = (
        "import sys\nfrom shardwright.cli.main import main\nassert main(['--help']) == 0\n"
        "assert not {'numpy', 'shardwright.cli.plan'} & sys.modules.keys()"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)
