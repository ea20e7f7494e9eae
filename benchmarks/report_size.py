"""Size of a plan's report, and a browser's times to open it, to scroll it and to answer the pointer.

    python -m benchmarks.report_size                                  # results/report_size.md
    python -m benchmarks.report_size --picture docs/report.png        # the README's picture instead
    python -m benchmarks.report_size --what-if docs/what-if.png       # the picture of What if? instead

Needs the package playwright and a Chromium or Chrome on the path (or named by SHARDWRIGHT_CHROMIUM).
"""

from __future__ import annotations

import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import shardwright as sw
from benchmarks.cluster_tasks import cluster_task
from benchmarks.program import Options, options_of, size_of
from benchmarks.results_table import command_of, write_results
from shardwright.report import entry_of, write_report

PROGRAMS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
SIZES = ((40, 8), (200, 16), (1000, 128))
HEADS = (
    "tables × devices", "strategy", "cells", "page KB", "load plan ms", "analyse ms", "write ms", "open ms",
    "scroll, median ms a frame", "95% of frames below", "a pointer move ms", "a piece carried ms", "a change ms",
)  # fmt: skip

LEFT_OUT = "#compare, #change, #whatif, #bottlenecks, #devices figure + figure, details"  # sections that do not fit in the picture

# Two frames after the page has run: everything is laid out and painted by then.
OPENED = """async () => {
  await new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)));
  return performance.now();
}"""
SCROLLED = """async () => {
  const node = document.querySelector(".matrix");
  node.scrollIntoView({ block: "center", behavior: "instant" });
  const times = [];
  let before = await new Promise(requestAnimationFrame);
  for (let frame = 0; frame < 120; frame++) {
    node.scrollTop += node.scrollTop + node.clientHeight >= node.scrollHeight ? -node.scrollTop : 40;
    const now = await new Promise(requestAnimationFrame);
    times.push(now - before);
    before = now;
  }
  times.sort((a, b) => a - b);
  return [times[60], times[114]];
}"""
POINTED = """() => {
  const node = document.querySelector(".matrix");
  const box = node.getBoundingClientRect();
  const start = performance.now();
  for (let move = 0; move < 100; move++) {
    const [x, y] = [box.left + box.width * (0.3 + 0.006 * move), box.top + 40 + (move % 20) * 18];
    node.dispatchEvent(new PointerEvent("pointermove", { clientX: x, clientY: y, bubbles: true }));
  }
  return (performance.now() - start) / 100;
}"""
# Median ms to carry a chosen piece of a table on one device over a cell, and to drop it: priced, drawn and undone again.
CHANGED = """() => {
  const board = document.querySelector("#whatif .matrix");
  const press = (key, more = {}) => {
    const start = performance.now();
    board.dispatchEvent(new KeyboardEvent("keydown", { key, bubbles: true, ...more }));
    return performance.now() - start;
  };
  const median = (values) => values.sort((a, b) => a - b)[values.length >> 1];
  press("Home", { ctrlKey: true });
  const device = () => Number((document.querySelector("#whatif").innerText.match(/It lies on device (\\d+)/) || [])[1]);
  const carried = [], changed = [];
  for (let row = 0; row < 400 && changed.length < 10; row++) {
    press("End");
    press("Enter");
    press("Escape");
    if (device() >= 0) {
      press("Enter");
      carried.push(press("ArrowLeft"));
      changed.push(press("Enter"));
      press("z", { ctrlKey: true });
      press("ArrowRight");
    }
    press("ArrowDown");
  }
  return [median(carried), median(changed)];
}"""


def main(arguments: Sequence[str] | None = None) -> None:
    options = options_of(
        __doc__, arguments, sizes=(SIZES, "tables and devices", {"metavar": "TxD", "type": size_of}), strategies=["greedy", "certified"],
        time_limit=(20.0, "seconds a search"), runs=(5, "how often each page is opened"),
        picture=(Path, "only take a picture of a report, as PNG"), what_if=(Path, "only take a picture of its section What if?, as PNG"),
    )  # fmt: skip
    if options.picture:
        take_picture(options.picture, options.time_limit)
        return
    if options.what_if:
        take_what_if(options.what_if, options.time_limit)
        return
    rows = [row(*size, strategy, options) for size in options.sizes for strategy in options.strategies]
    command = command_of("report_size", arguments)
    caption = (
        "Tasks of `benchmarks/cluster_tasks.py` (heavy tail, H100). A cell is a table on a device. Open: from the start of the "
        f"navigation until the second frame after the page has run, median of {options.runs} fresh tabs in headless Chromium. A frame "
        "takes 16.7 ms at 60 Hz. A pointer move finds the cell and fills its note. In What if? (medians of ten), a piece is carried over a "
        "cell, and a change prices the plan, prices the step with the piece on every device, and draws the section."
    )
    write_results("report_size", "Size of the report", [(caption, HEADS, rows)], command)


def row(tables: int, devices: int, strategy: str, options: Options) -> list[str]:
    task = cluster_task(0, tables=tables, devices=devices, device="h100", batch_size=65_536, heavy_tail=True)
    made = sw.plan(task, strategy=strategy, time_limit=options.time_limit)
    with tempfile.TemporaryDirectory() as folder:
        file, page = Path(folder) / "plan.json", Path(folder) / "report.html"
        made.save(file)
        times = [time.perf_counter()]
        plan = sw.Plan.load(file)
        times.append(time.perf_counter())
        entry = entry_of(plan, strategy)
        times.append(time.perf_counter())
        content = write_report([entry], page)
        times.append(time.perf_counter())
        steps = [f"{1e3 * (after - before):.0f}" for before, after in pairwise(times)]
        opened, (median, most), moved, changed = measured(page, options.runs)
    cells = sum(len(shard.devices) for shard in plan.shards)
    return [
        f"{tables:,} × {devices}", strategy, f"{cells:,}", f"{content / 1e3:,.0f}", *steps, f"{opened:.0f}", f"{median:.1f}",
        f"{most:.1f}", f"{moved:.2f}", *changed,
    ]  # fmt: skip


def measured(page: Path, runs: int) -> tuple[float, tuple[float, float], float, list[str]]:
    """Return median ms to open the page, ms of a frame while scrolling (median, 95%), ms of a pointer move, and ms in What if?."""
    with chromium() as browser:
        opened = []
        for _ in range(runs):
            tab = browser.new_page(viewport={"width": 1280, "height": 900})
            tab.goto(page.as_uri())
            opened.append(tab.evaluate(OPENED))
            frames, moved = tab.evaluate(SCROLLED), tab.evaluate(POINTED)
            changed = [f"{value:.1f}" for value in tab.evaluate(CHANGED)]
            tab.close()
    return statistics.median(opened), tuple(frames), moved, changed


def take_picture(target: Path, time_limit: float) -> None:
    """Save a picture of the report of 60 tables on two hosts, with greedy before and certified after, as PNG."""
    task = cluster_task(4, tables=60, devices=16, device="h100", batch_size=65_536, heavy_tail=True)
    plans = {name: sw.plan(task, strategy=name, time_limit=time_limit) for name in ("greedy", "certified")}
    with tempfile.TemporaryDirectory() as folder, chromium() as browser:
        page = Path(folder) / "report.html"
        write_report([entry_of(plan, name) for name, plan in plans.items()], page)
        tab = browser.new_page(viewport={"width": 1040, "height": 1180}, reduced_motion="reduce")
        tab.goto(page.as_uri())
        hide = "(left_out) => { for (const node of document.querySelectorAll(left_out)) node.hidden = true; }"
        tab.evaluate(hide, LEFT_OUT)
        tab.evaluate(OPENED)
        tab.screenshot(path=target, full_page=True, clip={"x": 0, "y": 0, "width": 1040, "height": 1980})
    print(f"saved {target} ({target.stat().st_size / 1e3:.0f} KB)")


def take_what_if(target: Path, time_limit: float) -> None:
    """Save a picture of What if? for 60 tables on two hosts, with one piece moved to the next device, as PNG."""
    task = cluster_task(4, tables=60, devices=16, device="h100", batch_size=65_536, heavy_tail=True)
    with tempfile.TemporaryDirectory() as folder, chromium() as browser:
        page = Path(folder) / "report.html"
        write_report([entry_of(sw.plan(task, strategy="certified", time_limit=time_limit), "plan")], page)
        tab = browser.new_page(viewport={"width": 1040, "height": 2200}, reduced_motion="reduce")
        tab.goto(page.as_uri())
        section = tab.locator("#whatif")
        section.get_by_label("Order", exact=True).select_option("bytes")
        section.locator(".matrix").focus()
        tab.keyboard.press("Home")
        for key in ("Enter", "Escape", "ArrowRight") * 16:
            if section.get_by_text("It lies on device").count():
                break
            tab.keyboard.press(key)
        for key in ("ArrowRight", "Enter"):
            tab.keyboard.press(key)
        tab.evaluate(OPENED)
        section.screenshot(path=target)
    print(f"saved {target} ({target.stat().st_size / 1e3:.0f} KB)")


@contextmanager
def chromium() -> Iterator[Any]:
    """Yield a headless browser."""
    from playwright.sync_api import sync_playwright

    program = os.environ.get("SHARDWRIGHT_CHROMIUM") or next(filter(None, map(shutil.which, PROGRAMS)), None)
    if program is None:
        raise SystemExit("no Chromium found; install one, or name it by SHARDWRIGHT_CHROMIUM")
    with sync_playwright() as driver:
        sandbox = [] if os.geteuid() else ["--no-sandbox"]
        browser = driver.chromium.launch(executable_path=program, args=sandbox)
        yield browser
        browser.close()


if __name__ == "__main__":
    main()
