import sys

import pytest

import shardwright
from shardwright import __main__
from shardwright.cli.main import main

COMMANDS = ("profile", "collect", "train", "learn", "plan", "compare", "verify", "show", "report", "demo")


def test_version(cli):
    assert cli("--version").out == f"shardwright {shardwright.__version__}\n"


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


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["nope"], "No such command 'nope' (see: shardwright --help)"),
        (["plan"], "Missing argument 'TASK' (see: shardwright plan --help)"),
        (["plan", "task.yaml", "--nope"], "No such option: --nope"),
        (["plan", "task.yaml", "--seed", "x"], "Invalid value for '--seed'"),
        (["plan", "task.yaml", "--seed", "-1"], "Invalid value for '--seed'"),
    ],
)
def test_bad_usage_is_one_line_and_exit_code_2(cli, arguments, says):
    outcome = cli(*arguments)
    assert outcome.code == 2
    assert outcome.out == ""
    assert outcome.err.startswith(f"error: {says}")
    assert outcome.err.count("\n") == 1


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


def test_ctrl_c_while_parts_are_imported_is_one_line(monkeypatch, capsys):
    monkeypatch.setattr("builtins.__import__", _interrupt)
    code = __main__.main()
    monkeypatch.undo()
    assert (code, capsys.readouterr().err) == (130, "error: interrupted\n")
