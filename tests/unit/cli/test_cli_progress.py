import io

import pytest

from shardwright.cli.progress import progress


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
