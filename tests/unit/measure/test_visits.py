from __future__ import annotations

import pytest

from shardwright.measure.parts import rows_to_table
from shardwright.measure.session import QUIET
from shardwright.measure.visits import MOST_VISITS, Visits, distinct_visits, merge_visits
from tests.unit.measure.rows import row


def test_a_quiet_visit_settles_a_sample() -> None:
    visits = Visits()
    assert not visits.seen((1, 0))
    visits.add(row(1, sentinel=1.2))
    assert visits.seen((1, 0))
    assert not visits.settled((1, 0))
    visits.add(row(1, sentinel=QUIET))
    assert visits.settled((1, 0))
    assert not visits.settled((1, 1))


def test_enough_visits_settle_a_sample_too() -> None:
    visits = Visits([rows_to_table([row(1, sentinel=1.2)] * (MOST_VISITS - 1))])
    assert not visits.settled((1, 0))
    visits.add(row(1, sentinel=1.5))
    assert visits.settled((1, 0))


def test_cpu_visits_merge_to_the_shortest_times() -> None:
    table = rows_to_table(
        [
            row(2, forward_ms=3.0, backward_ms=9.0, sentinel=1.3, runs=10, measured_at=1),
            row(1, forward_ms=1.0, backward_ms=2.0, sentinel=1.0, runs=12),
            row(2, forward_ms=4.0, backward_ms=5.0, sentinel=1.1, runs=11, measured_at=2),
            row(2, 1, forward_ms=7.0, sentinel=1.0),
        ]
    )
    first, second, repeat = merge_visits(table).to_pylist()
    assert (first["sample"], first["forward_ms"], first["backward_ms"], first["runs"]) == (1, 1.0, 2.0, 12)
    assert (second["sample"], second["forward_ms"], second["backward_ms"], second["runs"]) == (2, 3.0, 5.0, 21)
    assert second["sentinel"] == pytest.approx(1.1)
    assert (repeat["sample"], repeat["repeat"], repeat["forward_ms"]) == (2, 1, 7.0)
    assert merge_visits(table).schema.equals(table.schema)


def test_cuda_visits_merge_to_the_quietest() -> None:
    visits = [row(2, forward_ms=3.0, sentinel=1.3), row(2, forward_ms=4.0, sentinel=1.1)]
    table = rows_to_table([visit | {"device_kind": "cuda"} for visit in visits])
    (merged,) = merge_visits(table).to_pylist()
    assert (merged["forward_ms"], merged["runs"]) == (4.0, 24)


def test_runs_do_not_overflow() -> None:
    table = rows_to_table([row(2, runs=30_000)] * 3)
    assert merge_visits(table)["runs"].to_pylist() == [2**15 - 1]


def test_a_visit_found_twice_counts_once() -> None:
    rows = [
        row(2, measured_at=5),
        row(1, measured_at=9),
        row(2, measured_at=7),
        row(2, measured_at=5),
        row(2, 1, measured_at=5),
    ]
    found = distinct_visits(rows_to_table(rows))
    keys = ("sample", "repeat")
    assert [tuple(found[key][i].as_py() for key in keys) for i in range(found.num_rows)] == [
        (1, 0),
        (2, 0),
        (2, 0),
        (2, 1),
    ]


def test_nothing_merges_to_nothing() -> None:
    assert merge_visits(distinct_visits(rows_to_table([row(1)]))).num_rows == 1


def test_a_part_without_rows_has_no_visits():
    empty = rows_to_table([row(1)]).slice(0, 0)
    assert merge_visits(distinct_visits(empty)).equals(empty)
