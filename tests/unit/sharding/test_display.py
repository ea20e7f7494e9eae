from dataclasses import replace
from html.parser import HTMLParser

import pytest

from shardwright.sharding import Plan, RankMap, Shard
from shardwright.sharding.display import ranks_text
from shardwright.task import Table, Task, Topology
from tests.unit.report.plans import HOSTILE, hostile_plan, mixed_plan


@pytest.mark.parametrize(
    ("ranks", "devices", "text"),
    [
        ([0], 1, "0"),
        ([3], 4, "3"),
        (range(4), 4, "all"),
        ([8, 0, 1, 2, 3], 16, "0-3,8"),
        ([0, 2, 4], 8, "0,2,4"),
        ([1, 2, 5, 6, 7], 8, "1-2,5-7"),
        ([], 8, ""),
    ],
)
def test_ranks_are_shown_as_ranges(ranks, devices, text):
    assert ranks_text(ranks, devices) == text


def test_a_plan_prints_as_one_line():
    plan = mixed_plan()
    assert repr(plan) == f"<Plan: by hand, 6 tables, 4 × cpu, step {plan.cost.step_ms:.3f} ms>"
    assert repr(replace(plan, bound_ms=plan.cost.step_ms / 1.25)).endswith("ms, gap 25.0%>")
    assert repr(Plan(plan.task, plan.shards)) == "<Plan: no strategy, 6 tables, 4 × cpu>"
    assert (
        repr(replace(plan, cost=None, strategy="\x1b[31m" + "x" * 500)) == f"<Plan: [31m{'x' * 36}, 6 tables, 4 × cpu>"
    )


def test_parts_of_a_plan_print_as_one_line_too():
    tables = tuple(Table(f"t{index}", 1000, 8) for index in range(500))
    task = Task(tables, Topology(64, 8, "cpu", "64 MB"), 64)
    plan = Plan(task, tuple(Shard.whole(table, index % 512) for index, table in enumerate(tables)))
    for part in (plan, task, task.topology, tables[0], mixed_plan().cost, RankMap(10**6, list(range(10**5)))):
        assert len(repr(part)) < 200
        assert "\n" not in repr(part)


class Cells(HTMLParser):
    """The elements of a fragment, and the text of its cells."""

    def __init__(self, text):
        super().__init__()
        self.elements, self.cells = [], []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        assert not attributes
        self.elements.append(tag)

    def handle_data(self, data):
        if self.elements[-1] == "td":
            self.cells.append(data)


def test_a_notebook_shows_a_small_table():
    plan = mixed_plan()
    page = Cells(plan._repr_html_())
    rows = [page.cells[start : start + 6] for start in range(0, len(page.cells), 6)]
    assert {row[0]: (row[1], row[4]) for row in rows} == {
        "whole": ("table_wise", "1"),
        "columns": ("column_wise", "0,2"),
        "rows": ("row_wise", "0,3"),
        "everywhere": ("data_parallel", "all"),
        "some": ("data_parallel", "0,3"),
        "history": ("tiered", "all"),
    }
    assert rows[0][0] == "history"  # with its copies the largest


def test_names_in_a_notebook_are_text():
    page = Cells(hostile_plan()._repr_html_())
    assert set(page.elements) == {"p", "table", "tr", "th", "td"}
    assert set(HOSTILE) <= set(page.cells)


def test_of_many_tables_a_notebook_shows_the_largest():
    tables = tuple(Table(f"t{index}", 1000 + index, 8) for index in range(25))
    task = Task(tables, Topology(devices_per_host=2), 64)
    text = Plan(task, tuple(Shard.whole(table, 0) for table in tables))._repr_html_()
    assert "<p>and 5 smaller tables</p>" in text
    assert Cells(text).cells[::6] == [f"t{index}" for index in range(24, 4, -1)]
