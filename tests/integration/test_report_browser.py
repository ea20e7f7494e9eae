"""The report in a real headless Chromium: layout, figures, controls, and protection against hostile names.

Needs the package playwright and a Chromium or Chrome on the path (or named by SHARDWRIGHT_CHROMIUM); skipped without.
"""

import re
from contextlib import nullcontext
from dataclasses import replace
from itertools import pairwise

import pytest
from tests.unit.report.plans import HOSTILE, hostile_plan, many_tiered_plan, mixed_plan, row_wise_plan

import shardwright as sw
from shardwright.report import MeasuredTimes, entry_of, verdict, write_report
from shardwright.testing.tasks import task_of
from shardwright.workload import random_task

DESKTOP, PHONE = {"width": 1280, "height": 900}, {"width": 360, "height": 740}
FRAMES = "new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))"


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Reports: of one plan, of two with measured times, and of one with hostile names."""
    folder = tmp_path_factory.mktemp("reports")
    plan = mixed_plan(bound_ms=0.9 * mixed_plan().cost.step_ms)
    times = MeasuredTimes(
        *([1.2 * getattr(device, phase) for device in plan.cost.devices] for phase in ("forward_ms", "backward_ms"))
    )
    paths = {name: folder / f"{name}.html" for name in ("one", "two", "hostile")}
    write_report([entry_of(plan, "mixed")], paths["one"])
    write_report([entry_of(row_wise_plan(), "before"), entry_of(plan, "after", measured=times)], paths["two"])
    write_report([entry_of(hostile_plan(), HOSTILE[1])], paths["hostile"])
    return paths


def test_a_phone_shows_both_plans_without_scrolling_aside(visit, files):
    page = visit(files["two"], color_scheme="dark", viewport=PHONE)
    fits = "(tables) => tables.map((one) => one.scrollWidth <= one.parentElement.clientWidth)"
    assert page.locator("#compare table, #change table").evaluate_all(fits) == [True, True]
    page.locator("details").evaluate_all("(found) => found.forEach((one) => { one.open = true; })")
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def headings(page):
    return page.locator("h2:not(.unseen)").all_inner_texts()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("viewport", [DESKTOP, PHONE], ids=["desktop", "phone"])
def test_it_opens_everywhere_and_fits(visit, files, scheme, viewport):
    page = visit(files["two"], color_scheme=scheme, viewport=viewport)
    assert headings(page) == [
        "Side by side", "From before to after", "Devices", "What a step waits for", "Tables and devices", "What if?", "Tiers",
        "Traffic by class of link", "Predicted and measured kernels",
    ]  # fmt: skip
    assert page.locator(".big").inner_text() == f"{mixed_plan().cost.step_ms:.3f} ms"
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    ground = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert ground == ("rgb(246, 246, 243)" if scheme == "light" else "rgb(18, 22, 29)")
    sizes = page.evaluate(
        "[...document.querySelectorAll('figure svg[width], .matrix canvas')].map((n) => n.getBoundingClientRect().width)"
    )
    assert len(sizes) == 11
    assert min(sizes) > 100


def test_times_of_two_devices_are_not_compared(visit, tmp_path):
    times = MeasuredTimes((100.0,) * 4, (200.0,) * 4, "h200")
    write_report([entry_of(mixed_plan(), "mixed", measured=times)], tmp_path / "report.html")
    page = visit(tmp_path / "report.html")
    text = page.locator("#measured").inner_text()
    assert "measured 300.0 ms (predicted for cpu, measured on h200: the times differ" in text
    assert "%" not in text
    page.get_by_role("group", name=re.compile("^Time of forward lookup")).focus()
    page.keyboard.press("Home")
    assert page.locator("#spoken").inner_text().endswith("difference: –")


def test_one_plan_needs_no_comparison(visit, files):
    page = visit(files["one"])
    assert not {"Side by side", "Predicted and measured kernels"} & set(headings(page))
    assert "at most 11.1% above the best possible" in page.locator(".hero").inner_text()
    assert "below 1% of its memory" in page.locator(".hero .facts").inner_text()
    plan = mixed_plan(bound_ms=0.9 * mixed_plan().cost.step_ms)
    assert page.locator(".verdict").inner_text() == verdict(entry_of(plan, "mixed"))
    assert page.locator("#contents a").count() == len(headings(page))


# The contrast of every piece of text with the nearest painted ground behind it, by WCAG; switched-off and unseen elements aside.
CONTRAST = """() => {
  const parse = (text) => (text.match(/[\\d.]+/g) || []).map(Number);
  const light = (rgb) => rgb.slice(0, 3).map((v) => v / 255).map((v) => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
    .reduce((total, v, i) => total + v * [0.2126, 0.7152, 0.0722][i], 0);
  const ground = (node) => {
    for (let at = node; at; at = at.parentElement) {
      const found = parse(getComputedStyle(at).backgroundColor);
      if (found.length === 3 || found[3] > 0) return found;
    }
    return [255, 255, 255];
  };
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  const found = [];
  while (walker.nextNode()) {
    const node = walker.currentNode.parentElement;
    if (!walker.currentNode.data.trim() || node.closest("script, noscript, .unseen, [hidden], option")) continue;
    const style = getComputedStyle(node);
    const [a, b] = [light(parse(node instanceof SVGElement ? style.fill : style.color)), light(ground(node))].sort((x, y) => y - x);
    found.push([(a + 0.05) / (b + 0.05), walker.currentNode.data.trim().slice(0, 40)]);
  }
  return found.sort((x, y) => x[0] - y[0]);
}"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_can_be_read(visit, files, scheme):
    page = visit(files["two"], color_scheme=scheme)
    for details in page.locator("summary").all():
        details.click()
    page.locator(".stage").first.focus()
    page.keyboard.press("Home")
    contrasts = page.evaluate(CONTRAST)
    assert len(contrasts) > 200
    assert contrasts[0][0] >= 4.5, contrasts[:5]


def test_a_figure_is_read_by_keyboard(visit, files):
    page = visit(files["one"])
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Skip to the figures"
    page.get_by_role("group", name=re.compile("^Predicted time of each device")).focus()
    page.keyboard.press("Home")
    page.keyboard.press("ArrowRight")
    device = mixed_plan().cost.devices[1]
    spoken = page.locator("#spoken").inner_text()
    assert spoken.startswith("device 1 (host 0). forward lookup: ")
    assert f"all four: {device.total_ms:.3f} ms" in spoken
    assert page.locator("#tip").is_visible()
    page.keyboard.press("End")
    assert page.locator("#tip strong").inner_text() == "device 3 (host 1)"
    page.keyboard.press("Escape")
    assert page.locator("#tip").is_hidden()


def test_the_matrix_is_read_by_keyboard(visit, files):
    page = visit(files["one"])
    page.locator("#tables").get_by_label("Order").select_option("task")
    matrix = page.locator("#tables .matrix")
    matrix.focus()
    title = page.locator("#tip strong")

    def press(*keys):
        for key in keys:
            page.keyboard.press(key)
            page.evaluate(FRAMES)
        return title.inner_text()

    assert press("Enter") == "whole on device 0 (host 0)"
    assert "lies on 1 device" in page.locator("#tip").inner_text().replace("\n", " ")
    assert press("ArrowDown", "ArrowRight", "ArrowRight") == "columns on device 2 (host 1)"
    assert "all 400 rows × columns 16 … 32" in page.locator("#tip").inner_text()
    assert press("Control+End") == "history on device 3 (host 1)"
    assert "hottest rows 40 … 400" in page.locator("#tip").inner_text()
    assert "history on device 3" in page.locator("#spoken").inner_text()


def test_the_matrix_is_read_by_pointer(visit, files):
    page = visit(files["one"])
    page.locator("#tables").get_by_label("Order").select_option("task")
    matrix = page.locator("#tables .matrix")
    matrix.scroll_into_view_if_needed()
    box = matrix.bounding_box()
    page.mouse.move(box["x"] + box["width"] - 8, box["y"] + 24 + 18 * 2.5)  # third row, beyond the last device or on it
    labels = page.evaluate("document.querySelector('.matrix').clientWidth * 0.22")
    width = min(150, (box["width"] - min(190, labels)) / 4)
    page.mouse.move(box["x"] + min(190, labels) + 3.5 * width, box["y"] + 24 + 18 * 2.5)
    text = page.locator("#tip").inner_text().replace("\n", " ")
    assert "rows on device 3 (host 1)" in text
    assert "rows 1,000 … 4,000 × all 8 columns" in text
    cell = page.evaluate("document.querySelector('.cell-cursor').getBoundingClientRect().toJSON()")
    assert cell["height"] == 18


def test_figures_are_read_by_finger(visit, files):
    page = visit(files["one"], viewport=PHONE, has_touch=True, is_mobile=True, reduced_motion="reduce")
    for figure in (
        page.get_by_role("group", name=re.compile(r"^Memory of each device\.")),
        page.locator("#tables .matrix"),
    ):
        figure.scroll_into_view_if_needed()
        page.evaluate(FRAMES)
        box = figure.bounding_box()
        page.touchscreen.tap(box["x"] + 0.6 * box["width"], box["y"] + min(60, box["height"] / 2))
        assert page.locator("#tip strong").inner_text()
        assert page.locator("#tip").is_visible()
        page.locator("h1").scroll_into_view_if_needed()


def test_tables_are_filtered_and_ordered(visit, files):
    page = visit(files["one"])
    count = page.locator("#tables .count")
    assert count.inner_text() == "6 tables"
    before = page.evaluate("document.querySelector('.matrix canvas').toDataURL()")
    page.locator("#tables").get_by_label("Filter").fill("HIST")
    assert count.inner_text() == "1 table"
    page.locator("#tables").get_by_label("Filter").fill("none of these")
    assert count.inner_text() == "0 tables"
    page.locator("#tables").get_by_label("Filter").fill("")
    for label, value in (("Colour", "kind"), ("Order", "name"), ("Colour", "bytes")):
        page.locator("#tables").get_by_label(label, exact=True).select_option(value)
        page.evaluate(FRAMES)
        after = page.evaluate("document.querySelector('.matrix canvas').toDataURL()")
        assert after != before
        before = after


def test_the_theme_is_switched_by_hand(visit, files):
    page = visit(files["one"], color_scheme="dark")
    picture = "document.querySelector('.matrix canvas').toDataURL()"
    ground = "getComputedStyle(document.body).backgroundColor"
    page.evaluate(FRAMES)
    dark = page.evaluate(ground), page.evaluate(picture)
    page.get_by_role("button", name="Light colours").click()
    light = page.evaluate(ground), page.evaluate(picture)
    assert light[0] == "rgb(246, 246, 243)"
    assert light[1] != dark[1]
    page.get_by_role("button", name="Dark colours").click()
    assert page.evaluate(ground) == dark[0]


def test_another_plan_is_chosen(visit, files):
    page = visit(files["two"])
    before, after = page.locator("#plans button").all()
    assert after.get_attribute("aria-pressed") == "true"
    before.click()
    assert before.get_attribute("aria-pressed") == "true"
    assert "From before to after" not in headings(page)
    assert page.locator(".big").inner_text() == f"{row_wise_plan().cost.step_ms:.3f} ms"


def test_lists_are_made_when_they_are_opened(visit, files):
    page = visit(files["one"])
    assert page.locator("#devices table").count() == 0
    page.get_by_text("Values as a table").click()
    rows = page.locator("#devices tbody tr")
    rows.first.wait_for()
    assert rows.count() == 4
    plan = mixed_plan()
    assert f"{plan.cost.devices[2].backward_ms:.3f}" in rows.nth(2).inner_text()


@pytest.mark.parametrize("viewport", [DESKTOP, PHONE], ids=["desktop", "phone"])
def test_hostile_names_are_text(visit, files, viewport):
    page = visit(files["hostile"], viewport=viewport)
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    page.get_by_text("The tables as a list").click()
    page.locator("#tables tbody th").first.wait_for()
    assert set(page.locator("#tables tbody th").all_inner_texts()) == set(HOSTILE)
    assert page.locator("h1").inner_text() == HOSTILE[1]
    assert page.evaluate("[window.broken, document.scripts.length, document.images.length]") == [None, 2, 0]
    assert page.title() == f"{HOSTILE[1]} – sharding plan"


INTRUDE = """() => {
  const script = document.createElement("script");
  script.textContent = "window.broken = 1";
  const holder = document.createElement("div");
  holder.innerHTML = "<img src='data:,' onerror='window.broken = 1'>";
  document.body.append(script, holder);
}"""


def test_the_policy_stops_what_was_not_written_here(browser, files):
    page = browser.new_page()
    page.goto(files["one"].as_uri())
    page.evaluate(INTRUDE)
    assert page.evaluate("window.broken") is None
    reached = "fetch('http://localhost:9/').then(() => 'reached', (error) => String(error))"
    with page.expect_console_message(lambda message: "Content Security Policy" in message.text):
        assert "reached" not in page.evaluate(reached)
    page.close()


def test_without_scripts_the_step_is_still_shown(visit, files):
    page = visit(files["two"], java_script_enabled=False)
    assert f"after: step {mixed_plan().cost.step_ms:.3f} ms, bound" in page.locator("noscript").inner_text()


def test_paper_is_light_and_holds_all_figures(visit, files):
    page = visit(files["two"], color_scheme="dark")
    page.emulate_media(media="print", color_scheme="dark")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert page.locator("#theme").is_hidden()
    assert page.locator("nav").is_hidden()
    assert len(page.pdf()) > 20_000


NAMELESS = """() => {
  const named = (node) => node.getAttribute("aria-label") || node.textContent.trim();
  const usable = [...document.querySelectorAll("button, select, input, a, summary, [tabindex='0']")];
  return usable.filter((node) => !node.closest("[hidden]") && !named(node)).map((node) => node.outerHTML);
}"""


def test_everything_that_can_be_used_has_a_name(visit, files):
    page = visit(files["two"])
    nameless = page.evaluate(NAMELESS)
    assert nameless == []
    ids = page.evaluate("[...document.querySelectorAll('[id]')].map((node) => node.id)")
    assert len(ids) == len(set(ids))
    assert page.evaluate("document.documentElement.lang") == "en"
    levels = [
        int(tag[1]) for tag in page.evaluate("[...document.querySelectorAll('h1, h2, h3')].map((node) => node.tagName)")
    ]
    assert all(later - earlier <= 1 for earlier, later in pairwise(levels))


def odd_reports():
    plan = mixed_plan()
    abacus = replace(plan, task=replace(plan.task, topology=replace(plan.task.topology, device="abacus")))
    one_device = replace(plan.task, topology=sw.Topology(1, 1, "cpu", ["640 MB"]))
    shards = tuple(replace(shard, devices=(0,)) for shard in row_wise_plan().shards)
    alone = sw.Plan(one_device, shards)
    other = hostile_plan()
    return {
        "no cost model": [entry_of(abacus, "abacus")],
        "one device": [entry_of(alone, "alone")],
        "other devices": [entry_of(alone, "small"), entry_of(plan, "larger"), entry_of(alone, "small")],
        "other tables": [entry_of(plan, "before"), entry_of(other, "after")],
        "nothing moves": [entry_of(plan, "before"), entry_of(plan, "before")],
    }


def test_of_many_tiered_tables_the_first_are_drawn(visit, tmp_path):
    write_report([entry_of(many_tiered_plan(), "tiers")], tmp_path / "tiers.html")
    page = visit(tmp_path / "tiers.html")
    assert page.locator("#tiers figure").count() == 6
    page.get_by_text("The other 2 tables").click()
    page.locator("#tiers details figure svg").nth(1).wait_for()
    assert page.locator("#tiers figure").count() == 8


def test_plans_on_clusters_of_several_sizes_show_their_throughput(visit, tmp_path):
    task = task_of(12, 2)
    clusters = [sw.Topology(hosts, 2, "cpu", "1 GB", "10 GB/s", "2 GB/s") for hosts in (2, 1)]
    scale = sw.scale(task, clusters, time_limit=0.2)
    write_report([entry_of(size.plan, f"{size.topology.hosts} hosts") for size in scale.sizes], tmp_path / "scale.html")
    page = visit(tmp_path / "scale.html")
    assert page.locator("#scale .grid text").all_text_contents()[-2:] == ["2", "4"]  # devices, fewest first
    figure = page.get_by_role("group", name=re.compile("samples a second over devices"))
    figure.focus()
    page.keyboard.press("End")
    spoken = page.locator("#spoken").inner_text()
    assert spoken.startswith("2 hosts: 4 devices")
    assert f"samples a second: {scale.sizes[0].throughput:,.0f}" in spoken
    assert f"at most: {scale.sizes[0].most_throughput:,.0f}" in spoken


def test_odd_reports_open_too(visit, tmp_path):
    for name, entries in odd_reports().items():
        write_report(entries, tmp_path / "odd.html")
        page = visit(tmp_path / "odd.html")
        for button in page.locator("#plans button").all():
            button.click()
            assert "Devices" in headings(page), name
        text = page.locator("body").inner_text()
        assert not re.search(r"undefined|NaN|Infinity|\[object", text), name


@pytest.mark.slow
def test_a_thousand_tables_on_many_devices_stay_few_elements(visit, tmp_path):
    """Invisible parts are not painted, and a figure is a handful of paths: 1,000 tables × 128 devices are as light as a small plan."""
    small = random_task(0, tables=1000, devices=8, device="h100", memory="60 GB", batch_size=65_536)
    task = replace(small, topology=sw.Topology.preset("h100-8", hosts=16))
    write_report([entry_of(sw.plan(task, strategy="greedy"), "large")], tmp_path / "large.html")
    page = visit(tmp_path / "large.html")
    assert page.locator("#tables .count").inner_text() == "1,000 tables"
    assert page.evaluate("document.querySelectorAll('*').length") < 2000
    picture = "document.querySelector('.matrix canvas').toDataURL()"
    page.evaluate(FRAMES)
    top = page.evaluate(picture)
    assert page.evaluate("document.querySelector('.space').clientHeight") == 24 + 18 * 1000
    page.evaluate("document.querySelector('.matrix').scrollTop = 9000")
    page.evaluate(FRAMES)
    assert page.evaluate(picture) != top
    assert page.evaluate("document.querySelector('.matrix canvas').height <= 600 * devicePixelRatio")
    page.locator("#tables").get_by_label("Rows", exact=True).select_option("compact")
    assert page.evaluate("document.querySelector('.space').clientHeight") == 24 + 2 * 1000


@pytest.mark.slow
def test_the_benchmark_of_the_report(browser, tmp_path, monkeypatch):
    pytest.importorskip("torch", reason="its page names the version of torch")
    from benchmarks import report_size, results_table

    monkeypatch.setattr(results_table, "RESULTS", tmp_path)
    monkeypatch.setattr(report_size, "chromium", lambda: nullcontext(browser))
    report_size.main(["--sizes", "20x4", "--strategies", "greedy", "--runs", "1"])
    (row,) = [line for line in (tmp_path / "report_size.md").read_text().splitlines() if line.startswith("| 20 × 4")]
    assert min(float(cell) for cell in row.strip("| ").split(" | ")[2:]) >= 0
