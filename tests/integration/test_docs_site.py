"""The site of the documentation: built without warnings, complete, and usable without a network."""

import importlib.util
import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest
import typer.main

from shardwright.cli.main import application

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = sorted(DOCS.rglob("*.md"))


def build(config: Path, site: Path) -> subprocess.CompletedProcess[str]:
    """Builds strictly. Not with --quiet, which would silence the warnings before they are counted."""
    pytest.importorskip("mkdocs", reason="building the documentation needs: pip install 'shardwright[docs]'")
    command = [sys.executable, "-m", "mkdocs", "build", "--config-file", str(config), "--site-dir", str(site)]
    settings = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}  # the theme's notice about its successor
    return subprocess.run(command, cwd=ROOT, env=settings, capture_output=True, text=True, timeout=900, check=False)


@pytest.fixture(scope="session")
def site(tmp_path_factory):
    """The built site; any warning fails."""
    folder = tmp_path_factory.mktemp("site")
    done = build(ROOT / "mkdocs.yml", folder)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "WARNING" not in done.stderr
    return folder


class _Loads(HTMLParser):
    """Files that a page makes a browser load, and its links."""

    def __init__(self) -> None:
        super().__init__()
        self.loads: list[str] = []
        self.links: list[str] = []
        self.ids: set[str] = set()

    def handle_starttag(self, tag, attrs):
        given = {name: value or "" for name, value in attrs}
        self.loads += [given[name] for name in ("src", "data", "poster", "srcset", "action") if given.get(name)]
        if tag == "link" and given.get("rel") not in ("canonical", "prev", "next"):
            self.loads.append(given["href"])
        if tag == "a" and given.get("href"):
            self.links.append(given["href"])
        if given.get("id"):
            self.ids.add(given["id"])


@pytest.fixture(scope="session")
def pages(site) -> dict[Path, _Loads]:
    """What the pages of the site load and link, by file."""
    read = {file: _Loads() for file in sorted(site.rglob("*.html"))}
    for file, page in read.items():
        page.feed(file.read_text(encoding="utf-8"))
    return read


@pytest.mark.slow
def test_the_site_loads_nothing_from_a_network(site, pages):
    assert len(pages) > len(PAGES)
    outside = {str(url) for page in pages.values() for url in page.loads if re.match(r"(?:[a-z]+:)?//", url)}
    assert outside == set()
    for sheet in site.rglob("*.css"):
        named = re.findall(r"(?:url\(|@import)\s*['\"]?([^'\")]+)", sheet.read_text(encoding="utf-8"))
        assert [url for url in named if re.match(r"(?:https?:)?//", url)] == [], sheet


@pytest.mark.slow
def test_every_link_and_anchor_of_the_site_leads_somewhere(site, pages):
    broken = []
    for file, page in pages.items():
        if file.name == "404.html":  # is served from anywhere, so its links are absolute
            continue
        for link in [*page.links, *page.loads]:
            if re.match(r"[a-z]+:", link):
                continue
            path, _, anchor = link.partition("#")
            target = (file.parent / path.split("?")[0]).resolve() if path else file
            target = target / "index.html" if target.is_dir() else target
            if not target.is_file() or (anchor and target in pages and anchor not in pages[target].ids):
                broken.append(f"{file.relative_to(site)}: {link}")
    assert broken == []


@pytest.mark.slow
def test_every_page_is_in_the_navigation(site, pages):
    index = pages[site / "index.html"]
    for page in PAGES:
        assert page.relative_to(DOCS).with_suffix(".html").as_posix() in {link.split("#")[0] for link in index.links}


@pytest.mark.slow
def test_comments_of_the_test_do_not_reach_the_reader(site):
    for file in site.rglob("*.html"):
        assert not re.search(r"<!--\s*(?:run|file|not run|needs|exits):", file.read_text(encoding="utf-8")), file


def section(html: str, name: str) -> str:
    """The part of the page of the command line that is about one command."""
    return html.split(f'<h2 id="shardwright-{name}">')[1].split("<h2 ", maxsplit=1)[0]


@pytest.mark.slow
def test_every_command_and_option_is_in_the_reference(site):
    html = (site / "reference/cli.html").read_text(encoding="utf-8")
    commands = typer.main.get_command(application()).commands
    assert {"plan", "verify", "demo"} <= commands.keys()
    assert html.count('<h2 id="shardwright-') == len(commands)
    for name, command in commands.items():
        part = section(html, name)
        for parameter in command.params:
            if parameter.param_type_name == "option" and "--help" not in parameter.opts:
                for option in (*parameter.opts, *parameter.secondary_opts):
                    assert re.search(rf"<code>[^<]*(?<![\w-]){option}(?![\w-])", part), f"{name} {option}"


@pytest.mark.slow
def test_defaults_and_help_are_in_the_reference(site):
    part = section((site / "reference/cli.html").read_text(encoding="utf-8"), "plan")
    (row,) = re.findall(r"<tr>\s*<td><code>--strategy NAME.*?</tr>", part, re.DOTALL)
    assert "<code>auto</code>" in row
    assert "Strategy" in row
    (row,) = re.findall(r"<tr>\s*<td><code>TASK.*?</tr>", part, re.DOTALL)
    assert "required" in row


PUBLIC = (
    "shardwright", "shardwright.task", "shardwright.sharding", "shardwright.cost", "shardwright.search", "shardwright.testing",
    "shardwright.workload", "shardwright.runtime", "shardwright.report", "shardwright.report.figures",
    "shardwright.integrations.torchrec",
)  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("module", PUBLIC)
def test_every_public_name_is_in_the_reference(pages, module):
    if module.endswith("runtime"):
        pytest.importorskip("torch")
    if module.endswith("figures"):
        pytest.importorskip("matplotlib")
    reference = [page for file, page in pages.items() if file.parent.name == "reference"]
    anchors = {anchor for page in reference for anchor in page.ids if anchor.startswith("shardwright.")}
    documented = {anchor.rsplit(".", 1)[1] for anchor in anchors}
    assert set(importlib.import_module(module).__all__) <= documented


def test_a_measured_page_marks_parts_older_than_the_release():
    pytest.importorskip("mkdocs", reason="the site is built by mkdocs")
    spec = importlib.util.spec_from_file_location("repository", DOCS / "hooks/repository.py")
    hook = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(hook)
    release = ("9.0.0", "2030-02-01", {"cpu": "cpu/convex-00000001", "h100": "h100/convex-00000002"})
    page = "# Title\n\n2030-0{}-01 10:00 UTC · commit 1234567 · a machine\n\n    command\n\nCost model {}.\n"
    assert hook.age(page.format(2, "cpu/convex-00000001"), *release) == ""
    old = hook.age(page.format(1, "cpu/convex-0000000f"), *release)
    assert "before release 9.0.0 (2030-02-01)" in old
    assert "cpu/convex-0000000f is not the one bundled now, cpu/convex-00000001" in old
    assert "h100" not in old


@pytest.mark.slow
@pytest.mark.parametrize(("scheme", "width"), [("light", 1280), ("dark", 390)])
def test_pages_open_from_disk_and_fit(visit, site, scheme, width):
    page = visit(site / "index.html", color_scheme=scheme, viewport={"width": width, "height": 900})
    for source in PAGES:
        page.goto((site / source.relative_to(DOCS).with_suffix(".html")).as_uri())
        assert page.locator("h1").count() == 1, source
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), source
        assert page.evaluate("[...document.images].every((image) => image.complete && image.naturalWidth > 0)"), source
    dark = page.evaluate("getComputedStyle(document.body).getPropertyValue('color-scheme')") == "dark"
    assert dark == (scheme == "dark")


@pytest.mark.slow
def test_the_search_works_from_disk(visit, site):
    page = visit(site / "concepts/cost.html", viewport={"width": 1280, "height": 900})
    page.get_by_role("textbox", name="Search").click()
    page.keyboard.type("Jensen")
    result = page.locator(".md-search-result__link").first
    result.wait_for()
    assert "concepts/bound.html" in result.get_attribute("href")
