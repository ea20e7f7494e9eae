"""Every error that Shardwright raises on purpose. Each message states the rule, the value and the remedy."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Sequence
from functools import wraps
from importlib.util import find_spec

_MOST, _MOST_WORD = 2000, 400  # characters: a few lines of a terminal


def shortened(text: str, most: int = _MOST, most_word: int = _MOST_WORD) -> str:
    """Cut a text to a readable length: the middle of an overlong word is left out, then the middle of an overlong text.

    Args:
        text: any text, also quotes from files.
        most: most characters of the result, not counting the note on the number of those left out.
        most_word: the same for a word, which is any run without spaces.
    """
    if len(text) <= min(most, most_word):
        return text
    return _cut(re.sub(rf"\S{{{most_word + 1},}}", lambda word: _cut(word[0], most_word), text), most)


def _cut(text: str, most: int) -> str:
    if len(text) <= most:
        return text
    end = most // 3  # a message begins with the place and ends with the remedy; the place gets more room
    return f"{text[: most - end]}…({len(text) - most} characters)…{text[-end:]}"


def printable(text: str, keep: str = "", most: int = _MOST, most_word: int = _MOST_WORD) -> str:
    """Make a text safe for a terminal: unprintable characters become spaces, overlong words and texts are cut.

    Args:
        text: the text; names in it may hold control characters.
        keep: unprintable characters to keep, such as newlines.
        most: most characters; the middle of a longer text is left out.
        most_word: the same for a word.
    """
    kept = "".join(character if character.isprintable() or character in keep else " " for character in text)
    return shortened(kept, most, most_word)


def counted(number: int, what: str) -> str:
    """A number of things: "1 table", "2,000 tables"."""
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def some_of(names: Sequence[object], most: int = 5, separator: str = ", ") -> str:
    """Join the first of some names: "a, b and 812 more"."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return separator.join(map(str, names[:most])) + more


def said(error: BaseException) -> str:
    """The type of an error and the first line of its message."""
    return f"{type(error).__name__}: {(str(error).splitlines() or ['no message'])[0]}"


class ShardwrightError(Exception):
    """Base of all deliberate errors; `exit_code` is the exit code of the command line.

    Args:
        message: the fault; shortened if it is too long to read.
    """

    exit_code = 1

    def __init__(self, message: str = "") -> None:
        super().__init__(shortened(message))


class InvalidInput(ShardwrightError, ValueError):
    """A value, file or option breaks a rule; the message names the field, the value and the rule."""

    exit_code = 2


class InvalidPlan(InvalidInput):
    """A plan does not fit its task: a table is not tiled exactly, or a memory limit or a constraint is broken."""


class InfeasibleTask(ShardwrightError):
    """No plan exists (or the strategy found none); the message names the binding rule and a remedy."""


class MissingDependency(ShardwrightError, ImportError):
    """An optional package is needed; the message has the install command."""


class MeasurementFailed(ShardwrightError):
    """A kernel could not be measured on this machine."""


class ClusterFailed(ShardwrightError):
    """A Ray cluster does not answer, has no room, or loses the same work again and again."""


_EXTRAS = {
    "profile": ("pyarrow",),
    "measure": ("torch", "pyarrow", "scipy"),
    "learn": ("torch", "pyarrow", "scipy"),
}


def require(extra: str, purpose: str) -> None:
    """Check that an optional part of this package is installed, without importing it.

    Args:
        extra: name of the extra in pyproject.toml.
        purpose: the activity that needs it, such as "measuring".

    Raises:
        MissingDependency: a package of the extra is not installed.
    """
    missing = [name for name in _EXTRAS[extra] if find_spec(name) is None]
    if missing:
        names = " and ".join(missing)
        verb = "is" if len(missing) == 1 else "are"
        raise MissingDependency(
            f"{purpose} needs {names}, which {verb} not installed; install with: pip install 'shardwright[{extra}]'"
        )


def telling_errors(main: Callable[..., int]) -> Callable[..., int]:
    """Wrap a module's command line: it then reports errors and Ctrl-C on standard error and returns their exit codes."""

    @wraps(main)
    def run(arguments: Sequence[str] | None = None) -> int:
        try:
            return main(arguments)
        except ShardwrightError as error:
            print(f"error: {printable(str(error))}", file=sys.stderr)
            return error.exit_code
        except KeyboardInterrupt:
            print("\ninterrupted; samples in a store are kept: run the same command again to go on", file=sys.stderr)
            return 130

    return run
