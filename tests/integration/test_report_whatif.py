"""What if? in a real browser: whatever is moved, cut, joined and undone, the page's figures are those of `cost.score` to 1e-9.

Needs the package playwright and a Chromium or Chrome on the path (or named by SHARDWRIGHT_CHROMIUM); skipped without.
"""

import json
import random
import re
from dataclasses import replace

import numpy as np
import pytest
from tests.strategies import faster_alone
from tests.unit.report.plans import mixed_plan

import shardwright as sw
from shardwright.cli.main import main
from shardwright.cost import cost_model_for, score
from shardwright.report import entry_of, write_report
from shardwright.sharding import Plan, Shard
from shardwright.sharding.costs import PHASES
from shardwright.sharding.groups import in_group
from shardwright.sharding.rank_map import RankMap
from shardwright.sharding.ways import Dealt
from shardwright.task import Constraints, DenseTime, Exchange, ShardingGroups, Table, TableConstraint

CLOSE = 1e-9


def plan_with_proxies():
    """Sequence tables whose rows travel once a host, through proxies, beside pooled ones; replicas whose touched rows are reduced."""
    tables = [
        Table("history", 2000, 16, 20.0, pooled=False, access=sw.AccessProfile.zipf(2000, 1.2)),
        Table("clicks", 900, 12, 7.0, pooled=False),
        Table("user", 5000, 32, 3.0, access=sw.AccessProfile.zipf(5000, 0.9)),
        Table("half", 800, 64, 2.0, dtype="fp16"),
        Table("everywhere", 60, 8, 2.0, pooled=False),
    ]
    task = sw.Task(
        tables, sw.Topology(3, 2, "h100", "1 GB"), 96, optimizer="adam", exchange=Exchange("host", "touched")
    )
    shards = [
        Shard("history", (0, 700), (0, 16), (0,)),
        Shard("history", (700, 2000), (0, 16), (3,)),
        Shard.whole(tables[1], 5),
        Shard("user", (0, 5000), (0, 16), (2,)),
        Shard("user", (0, 5000), (16, 32), (4,)),
        Shard.whole(tables[3], 1),
        Shard.whole(tables[4], *range(6)),
    ]
    return Plan(task, shards)


def plan_of_a_group():
    """One of four sharding groups, whose weights are averaged."""
    tables = [Table(f"t{at}", 300 * (at + 1), 16 * (1 + at % 3), 1.0 + at) for at in range(5)]
    task = sw.Task(tables, sw.Topology(4, 1, "cpu", "1 GB"), 64)
    task = in_group(task, ShardingGroups(4, 4, 4, sync_interval=3))
    return Plan(task, [Shard.whole(table, at % 3) for at, table in enumerate(tables)])


def plan_of_widths():
    """Tables of an H100 in one fused call, whose widest table sets the price of all its lookups."""
    tables = [Table(f"t{at}", 3000, dim, 20.0 + at) for at, dim in enumerate((16, 48, 96, 256, 32))]
    task = sw.Task(tables, sw.Topology(1, 4, "h100", "1 GB"), 65_536)
    return Plan(task, [Shard.whole(table, at % 4) for at, table in enumerate(tables)])


def plan_of_dealt_sequences():
    """Sequence tables of two dims whose rows are dealt to all devices, beside whole ones."""
    tables = [Table(f"t{at}", 400 + 7 * at, 16 + 16 * (at % 2), 3.0 + at, pooled=False) for at in range(4)]
    task = sw.Task(tables, sw.Topology(2, 2, "cpu", "1 GB"), 64)
    everywhere = Dealt(np.arange(4))
    whole = [Shard.whole(tables[2], 1), Shard.whole(tables[3], 2)]
    return Plan(task, [*everywhere.shards(tables[0]), *everywhere.shards(tables[1]), *whole])


def plan_beside_dense_layers():
    """Every pattern, with dense layers that hide the ids, and some of the values and of the gradients."""
    plan = mixed_plan()
    cost = score(plan.task, plan.shards, cost_model_for(plan.task.topology.device))
    half = [max(getattr(device, phase) for device in cost.devices) / 4 for phase in PHASES]
    exchange = replace(plan.task.exchange, pipeline="sparse_dist", dense_ms=DenseTime(half[1], half[1], half[2]))
    return replace(plan, task=replace(plan.task, exchange=exchange))


def plan_of_the_runtime():
    """Every pattern, in one exchange for all tables."""
    plan = mixed_plan()
    return replace(plan, task=replace(plan.task, exchange=replace(plan.task.exchange, collectives="shared")))


def plan_over_shared_links():
    """Every pattern, beside dense layers, over links that carry more for a device that sends alone."""
    plan = plan_beside_dense_layers()
    return replace(plan, task=replace(plan.task, topology=faster_alone(plan.task.topology, 4.0)))


CASES = {
    "every pattern": mixed_plan, "proxies": plan_with_proxies, "a group": plan_of_a_group, "widths": plan_of_widths,
    "dealt sequences": plan_of_dealt_sequences,
    "dense layers": plan_beside_dense_layers, "shared collectives": plan_of_the_runtime, "busy links": plan_over_shared_links,
}  # fmt: skip


class Page:
    """The section of a report's page, used as a person does."""

    def __init__(self, page, folder):
        self.page, self.folder = page, folder
        self.board = page.locator("#whatif .matrix")
        page.locator("#whatif").get_by_label("Order", exact=True).select_option("task")

    def press(self, *keys):
        for key in keys:
            self.page.keyboard.press(key)

    def go(self, table, device):
        self.board.focus()
        self.press("Escape", "Control+Home", *["ArrowDown"] * table, *["ArrowRight"] * device)

    def carry(self, table, device, target):
        self.go(table, device)
        step = "ArrowRight" if target > device else "ArrowLeft"
        self.press("Enter", *[step] * abs(target - device), "Enter")

    def click(self, name):
        self.page.locator("#whatif").get_by_role("button", name=name).click()

    def figures(self):
        """The step, the four phases and the fullest device, with all their digits."""
        return [
            float(text) for text in self.page.eval_on_selector_all("#whatif data", "all => all.map(one => one.value)")
        ]

    def saved(self, name="saved.json"):
        with self.page.expect_download() as download:
            self.click("Save as plan")
        download.value.save_as(self.folder / name)
        return Plan.load(self.folder / name)

    def said(self):
        return self.page.locator("#whatif .said").inner_text()

    def broken(self):
        return self.page.locator("#whatif .whatif-bar .note").all_inner_texts()


def figures_of(plan, model):
    """The figures that the page should show for a plan."""
    cost = score(plan.task, plan.shards, model)
    limits = plan.task.topology.memory_bytes
    maxima = [max(getattr(device, phase) for device in cost.devices) for phase in PHASES]
    return [
        cost.step_ms,
        *maxima,
        max(device.memory_bytes / most for device, most in zip(cost.devices, limits, strict=True)),
    ]


def check_figures(page, model):
    """Compare the page's figures, and the costs in the file that it saves, with Python's costs of the plan."""
    plan = page.saved()
    assert page.figures() == pytest.approx(figures_of(plan, model), rel=CLOSE)
    cost = score(plan.task, plan.shards, model)
    for saved, right in zip(plan.cost.devices, cost.devices, strict=True):
        assert [getattr(saved, phase) for phase in PHASES] == pytest.approx(
            [getattr(right, phase) for phase in PHASES], rel=CLOSE
        )
        assert saved.memory_bytes == right.memory_bytes
    return plan


@pytest.mark.parametrize("name", CASES)
def test_figures_are_those_of_python_whatever_is_changed(visit, tmp_path, name):
    plan = CASES[name]()
    model = cost_model_for(plan.task.topology.device, plan.task.optimizer)
    write_report([entry_of(plan, "plan")], tmp_path / "report.html")
    page = Page(visit(tmp_path / "report.html"), tmp_path)
    saved = check_figures(page, model)
    assert set(saved.shards) == set(plan.shards)
    rng, names = random.Random(name), [table.name for table in plan.task.tables]
    done = dict.fromkeys((": from", "cut in two", "joined", "a copy on every"), 0)
    for _ in range(32):
        before, shard = page.figures(), rng.choice(saved.shards)
        table, device = names.index(shard.table), rng.choice(shard.devices)
        what = rng.choice(["move", "move", "c", "r", "a", "Control+z", "Control+y"])
        if len(saved.by_table[shard.table]) > 1 and rng.random() < 0.4:
            what = "j"
        if what == "move":
            page.carry(table, device, rng.randrange(plan.task.topology.devices))
        else:
            page.go(table, device)
            page.press("Enter", "Escape", *["n"] * rng.randrange(2), what)
        for words in done:
            done[words] += words in page.said() and page.figures() != before
        if not page.broken():
            saved = check_figures(page, model)
    assert min(done.values()) > 0, done
    while page.page.get_by_role("button", name="Undo").is_enabled():
        page.press("Control+z")
    assert set(page.saved().shards) == set(plan.shards)
    assert page.figures() == pytest.approx(figures_of(plan, model), rel=CLOSE)


def plan_with_constraints():
    """Tables that are pinned, colocated, kept apart and cut in few ways, on four small devices."""
    tables = [Table(name, 4000, 32, 2.0) for name in ("pinned", "left", "right", "loner", "uncut", "wide", "even")]
    constraints = Constraints(
        {
            "pinned": TableConstraint(devices=(0, 1)),
            "uncut": TableConstraint(max_shards=1),
            "wide": TableConstraint(min_columns=32),
            "even": TableConstraint(equal_rows=True, sharding_types=("table_wise", "row_wise")),
        },
        colocate=(("left", "right"),),
        apart=(("loner", "pinned"),),
    )
    task = sw.Task(tables, sw.Topology(1, 4, "cpu", "1.9 MB"), 64, constraints=constraints)
    return Plan(task, [Shard.whole(table, at % 4) for at, table in zip((0, 1, 1, 2, 3, 2, 3), tables, strict=True)])


def moved(plan, table, *shards):
    """The plan with other shards of one table."""
    return Plan(plan.task, [shard for shard in plan.shards if shard.table != table] + list(shards))


def test_a_move_that_breaks_a_rule_is_reported_and_not_saved(visit, tmp_path):
    plan = plan_with_constraints()
    plan.check()
    write_report([entry_of(plan, "plan")], tmp_path / "report.html")
    page = Page(visit(tmp_path / "report.html"), tmp_path)
    save = page.page.get_by_role("button", name="Save as plan")
    pinned, left, _, loner, uncut, wide, even = plan.task.tables

    def halves(table, device, **along):
        (span,) = along.items()
        middle = span[1][1] // 2
        return [replace(Shard.whole(table, device), **{span[0]: part}) for part in ((0, middle), (middle, span[1][1]))]

    cases = [
        ((0, 0, 3), "pinned to devices 0, 1", moved(plan, "pinned", Shard.whole(pinned, 3))),
        ((1, 1, 0), "left, right must lie on the same devices", moved(plan, "left", Shard.whole(left, 0))),
        ((3, 2, 0), "loner must lie on different devices", moved(plan, "loner", Shard.whole(loner, 0))),
        ((4, 3, "r"), "2 pieces; at most 1", moved(plan, "uncut", *halves(uncut, 3, rows=(0, 4000)))),
        ((5, 2, "c"), "at least 32 columns", moved(plan, "wide", *halves(wide, 2, columns=(0, 32)))),
        ((6, 3, "c"), "allowed are table_wise, row_wise", moved(plan, "even", *halves(even, 3, columns=(0, 32)))),
        ((6, 3, "r"), "equal row blocks", moved(plan, "even", *halves(even, 3, rows=(0, 4000)))),
        ((4, 3, 1), "Device 1 needs", moved(moved(plan, "uncut", Shard.whole(uncut, 1)), "wide", Shard.whole(wide, 1))),
    ]
    for (table, device, how), says, other in cases:
        if isinstance(how, int):
            page.carry(table, device, how)
        else:
            page.go(table, device)
            page.press("Enter", "Escape", how)
        if "Device" in says:
            page.carry(5, 2, 1)
        with pytest.raises(sw.InvalidPlan):
            other.check()
        assert any(says in text for text in page.broken()), (says, page.broken())
        assert save.is_disabled()
        page.click("Back to the plan")
        assert page.broken() == []
        assert save.is_enabled()


def test_a_piece_is_dragged_and_the_plan_that_is_saved_passes_the_check(visit, tmp_path, capsys):
    plan = mixed_plan()
    write_report([entry_of(plan, "plan")], tmp_path / "report.html")
    page = Page(visit(tmp_path / "report.html"), tmp_path)
    page.board.scroll_into_view_if_needed()
    page.go(0, 1)
    start = page.page.locator("#whatif .cell-cursor").bounding_box()
    page.press("ArrowRight")
    target = page.page.locator("#whatif .cell-cursor").bounding_box()
    mouse = page.page.mouse
    mouse.move(start["x"] + 5, start["y"] + 5)
    mouse.down()
    mouse.move(target["x"] + 5, target["y"] + 5, steps=3)
    assert page.page.locator("#tip strong").inner_text() == "whole to device 2 (host 1)"
    promised = page.page.locator("#tip dd").first.inner_text()
    mouse.up()
    assert page.said().startswith("whole: from device 1 to device 2.")
    assert f"{page.figures()[0]:.3f} ms" == promised
    saved = page.saved()
    assert {shard.devices for shard in saved.by_table["whole"]} == {(2,)}
    assert main(["plan", "--check", str(tmp_path / "saved.json"), "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["same_cost"]
    assert said["step_ms"] == pytest.approx(page.figures()[0], rel=CLOSE)


def test_the_reason_for_the_place_of_a_piece_is_shown(visit, tmp_path):
    """The figure below the board: a step for each device, each as Python prices it, and a choice of it moves the piece."""
    plan = mixed_plan()
    write_report([entry_of(plan, "plan")], tmp_path / "report.html")
    page = Page(visit(tmp_path / "report.html"), tmp_path)
    model = cost_model_for("cpu")
    page.go(0, 1)
    page.press("Enter", "Escape")
    figure = page.page.locator("#whatif").get_by_role("group", name=re.compile("^whole: all 1,000 rows"))
    figure.focus()
    steps = []
    for device in range(4):
        page.press("Home", *["ArrowRight"] * device)
        other = moved(plan, "whole", Shard.whole(plan.task.tables[0], device))
        steps.append(score(plan.task, other.shards, model).step_ms)
        assert f"the step would be: {steps[-1]:.3f} ms" in page.page.locator("#spoken").inner_text()
    best = min(range(4), key=lambda device: steps[device])
    text = page.page.locator("#whatif").inner_text()
    assert "It lies on device 1." in text
    assert ("Anywhere else the step gets" in text) == (best == 1)
    page.press("Enter")
    assert page.said().startswith("whole: from device 1 to device 3.")
    page.press("Control+z")
    page.click("Redo")
    assert page.figures()[0] == pytest.approx(steps[3], rel=CLOSE)


def test_with_rank_maps_the_saved_plan_names_them(visit, tmp_path):
    rows = mixed_plan().task.table_by_name["history"].rows
    plan = mixed_plan().with_rank_maps({"history": RankMap(rows, np.arange(rows)[::-1])})
    plan.save(tmp_path / "mine.json")
    write_report([entry_of(plan, "mine")], tmp_path / "report.html")
    page = Page(visit(tmp_path / "report.html"), tmp_path)
    page.carry(0, 1, 3)
    saved = page.saved()
    assert saved.rank_maps.keys() == {"history"}
