import json
import os
from dataclasses import dataclass, field, replace

import polars as pl
import pytest
from experiments.experiment import Page, Piece, ResultTable
from experiments.pages import hardware
from experiments.run import run_experiment, write_stored

from shardwright.errors import InvalidInput


@dataclass(frozen=True)
class Squares:
    """Squares of numbers, to have an experiment that takes no time."""

    count: int = 4
    version: str = "1"
    name: str = "squares"
    about: str = "squares"
    ran: list = field(default_factory=list)
    stop_at: int | None = None

    def pieces(self, quick):
        return [Piece({"number": number}, self.version) for number in range(2 if quick else self.count)]

    def run(self, piece):
        number = piece.key["number"]
        if number == self.stop_at:
            raise KeyboardInterrupt
        self.ran.append(number)
        return [{"square": number**2, "half": None if number % 2 else number / 2}]

    def page(self, rows, quick):
        return Page(
            "Squares",
            ["All of them."],
            [ResultTable("Numbers.", ["n", "n²"], [(r["number"], r["square"]) for r in rows])],
        )


def go(experiment, folder, **options):
    return run_experiment(experiment, folder, command="python -m experiments squares", **options)


def test_rows_and_page_are_written(tmp_path):
    outcome = go(Squares(), tmp_path)
    assert (outcome.pieces, outcome.wanted, outcome.made) == (4, 4, 4)
    frame = pl.read_parquet(tmp_path / "squares.parquet")
    assert frame["square"].to_list() == [0, 1, 4, 9]
    assert frame["half"].to_list() == [0.0, None, 1.0, None]
    assert frame["hardware"].to_list() == [hardware()] * 4
    text = (tmp_path / "squares.md").read_text()
    assert "| 3 | 9 |" in text
    assert "    python -m experiments squares" in text
    assert "not finished" not in text
    assert not (tmp_path / "squares.journal.jsonl").exists()


def test_a_killed_run_goes_on(tmp_path):
    with pytest.raises(KeyboardInterrupt):
        go(Squares(stop_at=2), tmp_path)
    with (tmp_path / "squares.journal.jsonl").open("a") as file:
        file.write('[{"number": 2, "squ')  # as a kill in the middle of a line leaves it
    with pytest.raises(KeyboardInterrupt):
        go(Squares(stop_at=3), tmp_path)
    second = Squares()
    assert go(second, tmp_path).made == 1
    assert second.ran == [3]
    assert pl.read_parquet(tmp_path / "squares.parquet")["number"].to_list() == [0, 1, 2, 3]


def test_a_page_of_stored_rows_shows_their_share_of_all_pieces(tmp_path):
    with pytest.raises(KeyboardInterrupt):
        go(Squares(stop_at=2), tmp_path)
    outcome = write_stored(Squares(), tmp_path, command="python -m experiments squares --stored")
    assert (outcome.pieces, outcome.wanted, outcome.made) == (2, 4, 0)
    assert "not finished" in (tmp_path / "squares.md").read_text()


def test_a_finished_run_only_writes_its_page(tmp_path):
    go(Squares(), tmp_path)
    again = Squares()
    assert go(again, tmp_path).made == 0
    assert again.ran == []


def test_rows_of_another_version_are_made_anew(tmp_path):
    go(Squares(), tmp_path)
    other = Squares(version="2")
    assert go(other, tmp_path).made == 4
    assert pl.read_parquet(tmp_path / "squares.parquet")["version"].to_list() == ["2"] * 4


def test_without_time_the_page_is_marked_unfinished(tmp_path):
    outcome = go(Squares(), tmp_path, seconds=1e-9)
    assert outcome.made == 0
    assert "**0 of 4 pieces of work: the run was not finished.**" in (tmp_path / "squares.md").read_text()


def test_quick_runs_have_files_of_their_own(tmp_path):
    assert go(Squares(), tmp_path, quick=True).wanted == 2
    assert (tmp_path / "squares-quick.parquet").exists()
    assert not (tmp_path / "squares.parquet").exists()


def test_several_processes_find_the_same(tmp_path):
    go(Squares(), tmp_path, jobs=2)
    frame = pl.read_parquet(tmp_path / "squares.parquet").sort("number")
    assert frame["square"].to_list() == [0, 1, 4, 9]
    assert frame["jobs"].to_list() == [2] * 4
    assert "2 processes" in (tmp_path / "squares.md").read_text()
    page = [line for line in (tmp_path / "squares.md").read_text().splitlines() if line.startswith("| ")]
    assert page[2:] == ["| 0 | 0 |", "| 1 | 1 |", "| 2 | 4 |", "| 3 | 9 |"], "rows are in the order of the pieces"


@dataclass(frozen=True)
class Measured(Squares):
    """Squares of which the odd ones must be found alone; says which process found each."""

    def pieces(self, quick):
        return [replace(piece, alone=piece.key["number"] % 2 == 1) for piece in super().pieces(quick)]

    def run(self, piece):
        return [row | {"process": os.getpid()} for row in super().run(piece)]


def test_pieces_that_must_run_alone_run_last_and_in_this_process(tmp_path):
    go(Measured(), tmp_path, jobs=2)
    rows = pl.read_parquet(tmp_path / "squares.parquet").to_dicts()
    assert sorted(row["number"] for row in rows[:2]) == [0, 2]
    assert [row["number"] for row in rows[2:]] == [1, 3]
    here = os.getpid()
    assert {row["number"]: (row["process"] == here, row["jobs"]) for row in rows} == {
        0: (False, 2),
        2: (False, 2),
        1: (True, 1),
        3: (True, 1),
    }


@pytest.mark.parametrize("content", ["nonsense\n", '[{"number": 1}]\n', "[1]\n"])
def test_a_foreign_journal_is_refused(tmp_path, content):
    (tmp_path / "squares.journal.jsonl").write_text(content)
    with pytest.raises(InvalidInput, match=r"squares\.journal\.jsonl"):
        go(Squares(), tmp_path)


def test_a_foreign_parquet_file_is_refused(tmp_path):
    (tmp_path / "squares.parquet").write_text(json.dumps([1]))
    with pytest.raises(InvalidInput, match=r"squares\.parquet"):
        go(Squares(), tmp_path)
