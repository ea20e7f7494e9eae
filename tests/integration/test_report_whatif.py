"""What if? in a real browser: whatever is moved, cut, joined and undone, the page's figures are those of `cost.score` to 1e-9.

Needs the package playwright and a Chromium or Chrome on the path (or named by SHARDWRIGHT_CHROMIUM); skipped without.
"""

import random

import pytest
from tests.unit.report.plans import mixed_plan

import shardwright as sw
from shardwright.cost import cost_model_for, score
from shardwright.report import entry_of, write_report
from shardwright.sharding import Plan, Shard
from shardwright.sharding.costs import PHASES
from shardwright.sharding.groups import in_group
from shardwright.task import Exchange, ShardingGroups, Table

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


CASES = {"every pattern": mixed_plan, "proxies": plan_with_proxies, "a group": plan_of_a_group}


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
            float(one) for one in self.page.eval_on_selector_all("#whatif data", "all => all.map(one => one.value)")
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
    """What the page should show of a plan."""
    cost = score(plan.task, plan.shards, model)
    limits = plan.task.topology.memory_bytes
    maxima = [max(getattr(one, phase) for one in cost.devices) for phase in PHASES]
    return [cost.step_ms, *maxima, max(one.memory_bytes / most for one, most in zip(cost.devices, limits, strict=True))]


def check_figures(page, model):
    """The page's figures, and the costs in the file it saves, against Python's of that plan."""
    plan = page.saved()
    assert page.figures() == pytest.approx(figures_of(plan, model), rel=CLOSE)
    cost = score(plan.task, plan.shards, model)
    for found, right in zip(plan.cost.devices, cost.devices, strict=True):
        assert [getattr(found, phase) for phase in PHASES] == pytest.approx(
            [getattr(right, phase) for phase in PHASES], rel=CLOSE
        )
        assert found.memory_bytes == right.memory_bytes
    return plan


@pytest.mark.parametrize("name", CASES)
def test_figures_are_those_of_python_whatever_is_changed(visit, tmp_path, name):
    plan = CASES[name]()
    model = cost_model_for(plan.task.topology.device, plan.task.optimizer)
    write_report([entry_of(plan, "plan")], tmp_path / "report.html")
    page = Page(visit(tmp_path / "report.html"), tmp_path)
    found = check_figures(page, model)
    assert set(found.shards) == set(plan.shards)
    rng, names = random.Random(name), [table.name for table in plan.task.tables]
    done = dict.fromkeys((": from", "cut in two", "joined", "a copy on every"), 0)
    for _ in range(50):
        before, shard = page.figures(), rng.choice(found.shards)
        table, device = names.index(shard.table), rng.choice(shard.devices)
        what = rng.choice(["move", "move", "c", "r", "j", "j", "a", "Control+z", "Control+y"])
        if what == "move":
            page.carry(table, device, rng.randrange(plan.task.topology.devices))
        else:
            page.go(table, device)
            page.press("Enter", "Escape", *["n"] * rng.randrange(2), what)
        for words in done:
            done[words] += words in page.said() and page.figures() != before
        if not page.broken():
            found = check_figures(page, model)
    assert min(done.values()) > 0, done
    while page.page.get_by_role("button", name="Undo").is_enabled():
        page.press("Control+z")
    assert set(page.saved().shards) == set(plan.shards)
    assert page.figures() == pytest.approx(figures_of(plan, model), rel=CLOSE)
