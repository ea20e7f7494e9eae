"""Exit codes and messages of exceptions: 1 if the task cannot be done, 2 for bad usage or input. Each error prints one line on stderr."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import typer

from shardwright.cli.output import note, print_json
from shardwright.errors import InfeasibleTask, ShardwrightError
from shardwright.interrupts import CODE


class Interrupted(ShardwrightError):
    """The user pressed Ctrl-C; the message names the results that the command kept."""

    exit_code = CODE


@contextmanager
def about(task: Path) -> Iterator[None]:
    """Put the name of the task file before the message of an `InfeasibleTask` raised inside."""
    try:
        yield
    except InfeasibleTask as error:
        raise InfeasibleTask(f"{task}: {error}") from error


def exit_code_of(command: Callable[[], object], as_json: bool) -> int:
    """Run a command, and turn its errors into a message and an exit code.

    This covers errors that are raised on purpose, errors of the operating system about a file, and a stdout that fails. Any other
    exception is a fault of this program and keeps its traceback.

    Args:
        command: returns an exit code or None; typer turns Ctrl-C into `interrupts.CODE`.
        as_json: whether to print the error on stdout as a JSON document too.
    """
    try:
        code = _reported(command, as_json)
        sys.stdout.flush()
    except BrokenPipeError:
        _drop_stdout()
        return 1
    except OSError as error:
        if not _stdout_fails():
            raise
        _drop_stdout()
        note(f"error: stdout cannot be written ({error.strerror}); make room, or send it elsewhere")
        return 1
    return code


def _stdout_fails() -> bool:
    """Whether stdout fails; only writing to it can tell."""
    try:
        print(flush=True)
    except OSError:
        return True
    return False


def _drop_stdout() -> None:
    """Send the rest of stdout's buffer to the null device, so that the flush at exit is quiet."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _reported(command: Callable[[], object], as_json: bool) -> int:
    try:
        with _warnings_as_notes():
            code = command() or 0
    except ShardwrightError as error:
        return _report(type(error).__name__, str(error), error.exit_code, as_json)
    except OSError as error:
        if error.filename is None or error.strerror is None:
            raise
        message = f"{error.filename}: {error.strerror}; name another path, or check that it exists and may be used"
        return _report(type(error).__name__, message, 1, as_json)
    except SystemError as error:  # Ctrl-C came while a compiled function returned
        if not isinstance(error.__cause__, KeyboardInterrupt):
            raise
        return _report("KeyboardInterrupt", "interrupted", CODE, as_json)
    except typer.TyperException as error:
        message = _usage_message(error)
        return _report("UsageError", message, 2, as_json) if message else 2  # without arguments, help was printed
    assert isinstance(code, int)
    return _report("KeyboardInterrupt", "interrupted", code, as_json) if code == CODE else code


_RULES = {
    "Input should be greater than or equal to": "must be at least",
    "Input should be a valid number, unable to parse string as a number": "must be a number, such as 2.5",
    "Input should be a valid integer, unable to parse string as an integer": "must be a whole number, such as 4",
}


def _usage_message(error: typer.TyperException) -> str:
    message, context = error.format_message().rstrip("."), getattr(error, "ctx", None)
    for parsed, rule in _RULES.items():
        message = message.replace(parsed, rule)
    return f"{message} (see: {context.command_path} --help)" if message and context else message


def _report(kind: str, message: str, code: int, as_json: bool) -> int:
    note(f"error: {message}")
    if as_json:
        print_json({"error": {"type": kind, "message": message}})
    return code


@contextmanager
def _warnings_as_notes() -> Iterator[None]:
    """Show our own warnings as one line on stderr, without file name and source; drop warnings of other libraries."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        warnings.filterwarnings("always", category=UserWarning, module=r"shardwright\b")
        warnings.showwarning = _show_warning
        yield


def _show_warning(message: Warning | str, category: type[Warning], *_: object, **__: object) -> None:
    note(f"warning: {message}")
