import io
import json
from pathlib import Path

import pytest

from shardwright.cli.output import emit, note, print_json, progress, saved, show, table
from shardwright.errors import printable
from shardwright.task.link_files import LinkErrors


def test_json_has_null_for_what_is_no_finite_number(capsys):
    error = LinkErrors(float("nan"), None)
    print_json({"a": float("nan"), "b": [float("inf"), 1.5, error], "c": {"d": (1, float("-inf"))}, "e": "–"})
    shown = {"a": None, "b": [None, 1.5, {"held_out": None, "repeats": None}], "c": {"d": [1, None]}, "e": "–"}
    assert json.loads(capsys.readouterr().out) == shown


def test_text_is_printed_as_it_is(capsys):
    emit({}, table("[bold]t[/bold]", ["a", "b"], [["[red]x", ":smile: 1"]]), "[b]line[/b]", as_json=False)
    out = capsys.readouterr().out
    assert "[bold]t[/bold]" in out
    assert "[red]x" in out
    assert ":smile: 1" in out
    assert "[b]line[/b]" in out


def test_a_long_path_is_not_broken_into_lines(capsys):
    path = "/" + "x" * 300
    emit({}, f"saved {path}", as_json=False)
    assert capsys.readouterr().out == f"saved {path}\n"


@pytest.mark.parametrize("width", [80, 30, 5])
def test_text_wraps_in_short_columns_but_numbers_never_do(monkeypatch, capsys, width):
    monkeypatch.setattr("shardwright.cli.output._PIPE_WIDTH", width)
    name = "user_purchased_categories_30d"
    rows = [["backward and optimizer", "123,456,789", "0.125", f"{name} 0.211, {name}_again 0.176"]]
    show(table("t", ["phase", "rows", "ms", "tables"], rows, texts=(0, 3)))
    lines = capsys.readouterr().out.splitlines()
    assert max(len(line.rstrip()) for line in lines) <= max(width, 12 + 11 + 5 + 12 + 8)
    assert any("123,456,789" in line and "0.125" in line and line.startswith(" backward") for line in lines)
    start = next(line for line in lines if "123,456,789" in line).index("0.125") + 5
    assert "".join(line[start:].strip() for line in lines[-5:]).replace(" ", "").endswith("again0.176")


def test_heads_break_before_a_table_is_wider_than_a_usual_terminal(capsys):
    heads = ["strategy", *["a head of five words"] * 4]
    show(table("t", heads, [["certified", *["123,456.789"] * 4]]))
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    assert any(line.split() == ["certified", *["123,456.789"] * 4] for line in lines)


HOSTILE = "plan\x1b]0;title\x07\x1b[31m\u202e\x9b2J\r\x00.json"


def test_nothing_that_is_printed_steers_a_terminal(capsys):
    view = table(HOSTILE, [HOSTILE, "b"], [[HOSTILE, HOSTILE + "\n"]], f"one\n{HOSTILE}")
    emit({}, view, f"first\nsecond {HOSTILE}", saved(Path(HOSTILE + "\nspoofed")), as_json=False)
    note(HOSTILE)
    printed = capsys.readouterr()
    assert not {*printed.out, *printed.err} & {*HOSTILE} - {*printable(HOSTILE)}
    assert "first\nsecond plan ]0;title  [31m" in printed.out
    assert "\nspoofed" not in printed.out


def test_endless_names_are_cut_in_the_middle(capsys):
    name = "begin" + "x" * 100_000 + "end"
    emit({}, table(name, ["table", "ms"], [[name, "1.0"], [" ".join(["x"] * 50_000), "2.0"]]), name, as_json=False)
    note(name)
    printed = capsys.readouterr()
    assert printed.out.count("begin") == 3
    assert len(printed.out) < 6000
    assert len(printed.err) < 500


class Terminal(io.StringIO):
    def __init__(self, is_terminal):
        super().__init__()
        self._is_terminal = is_terminal

    def isatty(self):
        return self._is_terminal


def stderr_as(monkeypatch, *, is_terminal):
    """A stream in the place of stderr; in the test itself, as pytest has streams of its own for fixtures."""
    stream = Terminal(is_terminal)
    monkeypatch.setattr("sys.stderr", stream)
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")
    return stream


@pytest.mark.parametrize("is_terminal", [True, False])
def test_progress_is_shown_on_terminals_only(monkeypatch, is_terminal):
    stream = stderr_as(monkeypatch, is_terminal=is_terminal)
    with progress("measuring [x]", total=4, detail="starting [z]") as report:
        report(1)
        report(3, 5, "sample [y]")
    shown = stream.getvalue()
    if not is_terminal:
        assert shown == ""
        return
    assert "measuring [x]" in shown
    assert "starting [z]" in shown
    assert "3/5" in shown
    assert "sample [y]" in shown


def test_without_a_total_the_line_counts_seconds_and_nothing_else(monkeypatch):
    terminal = stderr_as(monkeypatch, is_terminal=True)
    with progress("searching"):
        pass
    shown = terminal.getvalue()
    assert "searching" in shown
    assert "0:00:00" in shown
    assert "/?" not in shown
    assert "-:--" not in shown
