"""Writes the reference of the command line from the commands themselves."""

import html
import inspect
import re
from typing import Any

from mkdocs.structure.pages import Page

_SEVERAL = re.compile(r"\{(\w+\.\.\.)\}\.\.\.")  # {LOGS...}... is LOGS...
_TYPE = re.compile(r"\s+<(?:list\[)?(?:Path|[a-z|]+)\]?>$")  # of an argument that has a name
_VALUES = {"<int range>": "N", "<int>": "N", "<float range>": "X", "<float>": "X", "<str>": "TEXT", "<bool>": ""}
_CHOICE = re.compile(r"<([\w|]+)>")
_LEAST = re.compile(r"^x>=(?P<least>\S+)$")
_EXTRAS = re.compile(r"\s*\[(?P<extras>[^\]]*)\]$")  # [default: 0], [required], at the end of an option's help


def on_page_markdown(markdown: str, *, page: Page, **_: object) -> str:
    """The page of the command line with all commands, other pages as they are."""
    return f"{markdown}\n{reference()}" if page.file.src_uri == "reference/cli.md" else markdown


def reference() -> str:
    """Every command with its arguments and options, as Markdown."""
    import typer.main

    from shardwright.cli.main import application

    program = typer.main.get_command(application())
    commands = program.commands.items()  # type: ignore[attr-defined]
    return "\n".join(_command(name, command) for name, command in commands)


def _command(name: str, command: Any) -> str:
    context = command.make_context(name, [], resilient_parsing=True)
    usage = _SEVERAL.sub(r"\1", " ".join(["shardwright", name, *command.collect_usage_pieces(context)]))
    records = [(parameter, parameter.get_help_record(context)) for parameter in command.params]
    arguments = [
        _row(_TYPE.sub("", record[0]), record[1])
        for parameter, record in records
        if record and parameter.param_type_name == "argument"
    ]
    options = [_row(*record) for parameter, record in records if record and parameter.param_type_name == "option"]
    parts = [f"## shardwright {name}", f"```text\n{usage}\n```", _text(command.help or "")]
    for title, rows in (("Argument", arguments), ("Option", options)):
        if rows:
            parts.append("\n".join([f"| {title} | Meaning | Default |", "|---|---|---|", *rows]))
    return "\n\n".join(parts) + "\n"


def _row(names: str, text: str) -> str:
    """A row of the table of options: names and value, help, default."""
    extras = _EXTRAS.search(text)
    told, default = text[: extras.start()] if extras else text, ""
    for part in extras["extras"].split("; ") if extras else []:
        least = _LEAST.match(part)
        if least:
            told += f" (at least {least['least']})"
        elif part == "required":
            default = part
        else:
            default = _code(part.removeprefix("default: "))
    for kind, value in _VALUES.items():
        names = names.replace(kind, value)
    names = _CHOICE.sub(r"\1", names)
    return f"| {_code(names)} | {_cell(told)} | {default} |"


def _code(text: str) -> str:
    return f"<code>{_cell(text)}</code>"


def _cell(text: str) -> str:
    return (
        html.escape(" ".join(text.split()), quote=False)
        .replace("|", "&#124;")
        .replace("*", "&#42;")
        .replace("_", "&#95;")
    )


def _text(told: str) -> str:
    """A docstring's text; its indented examples as a block."""
    text, _, example = inspect.cleandoc(told.replace("\b", "")).partition("Example:")
    paragraphs = html.escape(text, quote=False).replace("*", "\\*").strip()
    return f"{paragraphs}\n\n```text\n{inspect.cleandoc(example)}\n```" if example.strip() else paragraphs
