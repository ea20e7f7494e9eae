from experiments.experiment import ResultTable
from experiments.pages import hardware, made_of, markdown

from tests.unit.experiments.rows import HARDWARE


def row(date, commit, *, jobs=1, hardware=HARDWARE):
    return {"date": date, "commit": commit, "jobs": jobs, "hardware": hardware}


def test_a_page_names_what_its_rows_were_made_with():
    rows = [row("2026-01-03 10:00", "b"), row("2026-01-02 09:00", "a")]
    assert made_of(rows) == f"2026-01-02 09:00 to 2026-01-03 10:00 UTC · commit a, b · {HARDWARE}"
    assert made_of(rows[:1]) == f"2026-01-03 10:00 UTC · commit b · {HARDWARE}"


def test_without_rows_it_is_this_machine():
    assert made_of([]).startswith("no rows UTC · commit ")
    assert made_of([]).endswith(hardware())
    lines = markdown("Title", ["Text."], [ResultTable("Caption.", ("a", "b"), [(1, "x")])], "make it").splitlines()
    assert lines[0] == "# Title"
    assert lines[2].endswith(hardware())
    assert [line for line in lines if line.startswith("|")] == ["| a | b |", "| --- | --- |", "| 1 | x |"]
