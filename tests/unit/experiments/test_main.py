"""The command line of the experiments: its list, and its messages about odd arguments."""

import json

import pytest
from experiments.__main__ import main
from experiments.registry import experiments


def test_without_a_name_they_are_listed(capsys):
    assert main(["--json"]) == 0
    listed = json.loads(capsys.readouterr().out)["experiments"]
    assert [one["name"] for one in listed] == [experiment.name for experiment in experiments()]


@pytest.mark.parametrize("quick", [True, False])
@pytest.mark.parametrize("experiment", experiments(), ids=lambda experiment: experiment.name)
def test_pieces_are_unique(experiment, quick):
    keys = [tuple(piece.key.items()) for piece in experiment.pieces(quick)]
    assert len(set(keys)) == len(keys) > 0


@pytest.mark.parametrize("experiment", experiments(), ids=lambda experiment: experiment.name)
def test_a_page_of_no_rows(experiment):
    pytest.importorskip("matplotlib", reason="pages have pictures")
    page = experiment.page([], quick=False)
    assert page.text
    assert not any("nan" in str(cell) for table in page.tables for row in table.rows for cell in row)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["no-such"], "unknown experiment 'no-such'; known are neuroshard-table"),
        (["ablations", "--seconds", "0"], "--seconds is 0.0, must be greater than 0"),
        (["ablations", "--seconds", "nan"], "--seconds is nan, must be greater than 0"),
        (["ablations", "--jobs", "0"], "--jobs"),
        (["ablations", "--jobs", "many"], "--jobs"),
        (["ablations", "-o", "/dev/null"], "/dev/null is no folder"),
        (["ablations", "--no-such"], "No such option"),
    ],
)
def test_odd_arguments_are_bad_input_in_one_line(arguments, says, capsys):
    pytest.importorskip("matplotlib", reason="it is asked for before the folder is looked at")
    assert main(arguments) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert says in line
