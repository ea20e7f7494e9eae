"""Rows of results made up for the tests of pages."""

HARDWARE = "CPU X (cpu family 1, model 2), 2 cores, Python 3.11, torch 2.13, FBGEMM 1.8"


def outcome(strategy, ms, *, bound=None, seconds=0.5, cut=0, oversize=0, failure=None, **others):
    """A row as of a plan whose embedding cost is `ms` and whose step is 1.1 times that, or as of a failure."""
    placed = failure is None
    return {
        "strategy": strategy,
        "tables": 10,
        "oversize": oversize,
        "cut": cut if placed else None,
        "step_ms": 1.1 * ms if placed else None,
        "embedding_cost_ms": ms if placed else None,
        "compute_ms": 0.8 * ms if placed else None,
        "balance": 0.5 if placed else None,
        "bound_ms": bound,
        "search_s": seconds,
        "failure": failure,
        "why": None if placed else "because",
        "measured_ms": None,
        "controls": None,
        "jobs": 1,
        "hardware": HARDWARE,
    } | others


def table_with(page, text):
    """The one table of a page whose caption has this text, its rows as dictionaries."""
    (table,) = [table for table in page.tables if text in table.caption]
    return [dict(zip(table.heads, map(str, row), strict=True)) for row in table.rows]
