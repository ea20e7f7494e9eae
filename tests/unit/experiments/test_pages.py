from experiments.pages import made_of

from tests.unit.experiments.rows import HARDWARE


def row(date, commit, *, jobs=1, hardware=HARDWARE):
    return {"date": date, "commit": commit, "jobs": jobs, "hardware": hardware}


def test_a_page_names_what_its_rows_were_made_with():
    rows = [row("2026-01-03 10:00", "b"), row("2026-01-02 09:00", "a")]
    assert made_of(rows) == f"2026-01-02 09:00 to 2026-01-03 10:00 UTC · commit a, b · {HARDWARE}"
    assert made_of(rows[:1]) == f"2026-01-03 10:00 UTC · commit b · {HARDWARE}"
