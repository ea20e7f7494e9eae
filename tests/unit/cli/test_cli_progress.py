import io

import pytest

from shardwright.cli.progress import progress


class Terminal(io.StringIO):
    def __init__(self, is_terminal):
        super().__init__()
        self._is_terminal = is_terminal

    def isatty(self):
        return self._is_terminal


@pytest.mark.parametrize("is_terminal", [True, False])
def test_progress_is_shown_on_terminals_only(monkeypatch, is_terminal):
    stream = Terminal(is_terminal)
    monkeypatch.setattr("sys.stderr", stream)
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")
    with progress("measuring [x]", total=4) as report:
        report(1)
        report(3, 5, "sample [y]")
    shown = stream.getvalue()
    if not is_terminal:
        assert shown == ""
        return
    assert "measuring [x]" in shown
    assert "3/5" in shown
    assert "sample [y]" in shown
