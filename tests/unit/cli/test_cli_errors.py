import warnings
from pathlib import Path

import pytest

from shardwright.cli.errors import Interrupted, about, exit_code_of
from shardwright.errors import InfeasibleTask, InvalidInput, MeasurementFailed, shortened, some_of


def raiser(error):
    def command():
        raise error

    return command


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (InvalidInput("rows is 0, must be at least 1"), 2),
        (InfeasibleTask("no plan"), 1),
        (MeasurementFailed("no kernel"), 1),
        (Interrupted("stopped; 7 samples are kept"), 130),
    ],
)
def test_each_error_is_one_line_and_its_own_exit_code(error, code, capsys):
    assert exit_code_of(raiser(error), as_json=False) == code
    captured = capsys.readouterr()
    assert captured.err == f"error: {error}\n"
    assert captured.out == ""


def test_an_error_message_with_line_breaks_and_escapes_stays_one_harmless_line(capsys):
    assert exit_code_of(raiser(InvalidInput("name 'a\nb\x1b[31m\u202e'")), as_json=False) == 2
    assert capsys.readouterr().err == "error: name 'a b [31m '\n"


def test_a_fault_of_ours_keeps_its_traceback():
    with pytest.raises(ZeroDivisionError):
        exit_code_of(raiser(ZeroDivisionError()), as_json=True)


def test_the_return_value_of_a_command_is_its_exit_code():
    assert exit_code_of(lambda: None, as_json=False) == 0
    assert exit_code_of(lambda: 1, as_json=False) == 1


def test_our_warnings_are_notes_and_those_of_libraries_are_dropped(capsys):
    def command():
        warnings.warn_explicit("a part is damaged", UserWarning, "store.py", 1, module="shardwright.measure.store")
        warnings.warn_explicit("old interface", UserWarning, "lib.py", 1, module="shardwrightish.lib")
        warnings.warn_explicit("old interface", DeprecationWarning, "lib.py", 1, module="numpy.core")

    before = warnings.showwarning
    assert exit_code_of(command, as_json=False) == 0
    assert capsys.readouterr().err == "warning: a part is damaged\n"
    assert warnings.showwarning is before


def test_a_closed_pipe_is_quiet(monkeypatch, capsys, tmp_path):
    stream = (tmp_path / "out").open("w")
    monkeypatch.setattr("sys.stdout", stream)
    assert exit_code_of(raiser(BrokenPipeError()), as_json=True) == 1
    assert capsys.readouterr().err == ""
    stream.close()


@pytest.mark.parametrize("length", [10, 100_000])  # within stdout's buffer, and beyond it
def test_a_full_disk_behind_stdout_is_one_line(monkeypatch, capsys, length):
    with Path("/dev/full").open("w") as stream:
        monkeypatch.setattr("sys.stdout", stream)
        assert exit_code_of(lambda: print("x" * length), as_json=False) == 1
    assert capsys.readouterr().err.startswith("error: stdout cannot be written (No space left on device); ")


def test_another_os_error_is_a_fault_of_ours():
    with pytest.raises(OSError, match="disk"):
        exit_code_of(raiser(OSError(5, "disk")), as_json=False)


def test_a_system_error_of_a_file_is_one_line(capsys, tmp_path):
    assert exit_code_of(raiser(PermissionError(13, "Permission denied", str(tmp_path))), as_json=False) == 1
    assert (
        capsys.readouterr().err
        == f"error: {tmp_path}: Permission denied; name another path, or check that it exists and may be used\n"
    )


@pytest.mark.parametrize("text", ["x" * 100_000, "a name " * 20_000, f"'{'x' * 9999}' and '{'y' * 9999}'"])
def test_a_message_is_a_few_lines_long_and_keeps_its_place_and_its_remedy(text):
    said = str(InvalidInput(f"task.yaml: tables[3].name: {text} is too long; choose a shorter one"))
    assert said.startswith("task.yaml: tables[3].name: ")
    assert said.endswith(" is too long; choose a shorter one")
    assert " characters)…" in said
    assert len(said) < 2100
    assert shortened(said, 3000) == said


def test_of_many_names_the_first_are_listed():
    assert some_of(["a", "b"], 2) == "a, b"
    assert some_of([f"t{number}" for number in range(817)]) == "t0, t1, t2, t3, t4 and 812 more"


def test_an_error_about_a_task_names_its_file():
    with pytest.raises(InfeasibleTask, match=r"^task\.yaml: no plan$"), about(Path("task.yaml")):
        raise InfeasibleTask("no plan")
