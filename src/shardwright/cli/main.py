"""The program `shardwright`: its commands and their exit codes."""

from __future__ import annotations

import ast
import inspect
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, cast

import typer

from shardwright.cli.errors import exit_code_of
from shardwright.cli.output import begin, note
from shardwright.interrupts import CODE

COMMANDS = (
    "profile",
    "calibrate",
    "models",
    "collect",
    "train",
    "learn",
    "plan",
    "tune",
    "scale",
    "review",
    "drift",
    "compare",
    "verify",
    "show",
    "report",
    "demo",
)
"""All commands, in the order of the help. Each command is the function `run` of its module."""


def application(commands: Sequence[str] = COMMANDS) -> typer.Typer:
    """Build the program with some of its commands. Only their modules are loaded, because loading all takes longer than a small plan."""
    return _program({name: import_module(f"shardwright.cli.{name}").run for name in commands})


def overview() -> typer.Typer:
    """Build the program as its help and its errors show it: with all commands, but only their docstrings, so that it loads no module."""
    return _program({name: _documented(name) for name in COMMANDS})


def _program(runs: Mapping[str, Callable[..., None]]) -> typer.Typer:
    app = typer.Typer(add_completion=False, no_args_is_help=True, pretty_exceptions_enable=False)
    for name, run in runs.items():
        app.command(name, help=unwrapped(run.__doc__ or ""))(run)
    app.callback()(_root)
    return app


def _documented(name: str) -> Callable[..., None]:
    """A function that has only the docstring of a command; the command itself if its source is not at hand."""
    module = f"shardwright.cli.{name}"
    source = getattr(getattr(find_spec(module), "loader", None), "get_source", lambda _: None)(module)
    if source is None:
        return cast("Callable[..., None]", import_module(module).run)
    tree = ast.parse(source)
    command = next(node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == "run")

    def run() -> None: ...

    run.__doc__ = ast.get_docstring(command, clean=False)
    return run


def unwrapped(docstring: str) -> str:
    """Put each paragraph of a docstring on one line, so that the terminal's width breaks it. Paragraphs with indented lines stay."""
    paragraphs = inspect.cleandoc(docstring).split("\n\n")
    return "\n\n".join(text if "\n " in text else text.replace("\n", " ") for text in paragraphs)


def _print_version(wanted: bool) -> None:
    if wanted:
        from shardwright import __version__

        print(f"shardwright {__version__}")
        raise typer.Exit


def _root(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and exit.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    """Decide which piece of each embedding table goes on which device, and prove how far the plan is from the best possible.

    Try it on this machine: shardwright demo
    """


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit code.

    Args:
        argv: arguments after the program's name; by default those of the process.
    """
    try:
        return _run(list(sys.argv[1:] if argv is None else argv))
    except KeyboardInterrupt:  # outside a command; inside one, typer handles Ctrl-C
        note("error: interrupted")
        return CODE


def _run(arguments: list[str]) -> int:
    begin()
    _open_streams()
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")  # a name that the terminal cannot show must not end a command
    while arguments[:1] == ["--"]:
        arguments = arguments[1:]
    known = [name for name in arguments[:1] if name in COMMANDS]
    command = typer.main.get_command(application(known) if known else overview())
    return exit_code_of(
        lambda: command.main(arguments, prog_name="shardwright", standalone_mode=False), as_json="--json" in arguments
    )


def _open_streams() -> None:
    """Replace a closed stdout or stderr by the null device; otherwise a file opened later would take its number."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, Path(os.devnull).open("w", encoding="utf-8"))  # noqa: SIM115 – as long as the process
