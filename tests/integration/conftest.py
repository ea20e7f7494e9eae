"""Programs of benchmarks/, gloo processes, a Ray cluster, and a headless Chromium; its pages must neither fail nor ask a network.

The browser needs the package playwright and a Chromium or Chrome on the path (or named by SHARDWRIGHT_CHROMIUM); tests skip without.
"""

from __future__ import annotations

import importlib
import os
import shutil
from pathlib import Path

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
LOCAL = ("file:", "data:", "blob:")


@pytest.fixture(scope="module")
def browser():
    api = pytest.importorskip("playwright.sync_api", reason="the browser is driven by the package playwright")
    program = os.environ.get("SHARDWRIGHT_CHROMIUM") or next(filter(None, map(shutil.which, NAMES)), None)
    if program is None:
        pytest.skip("no Chromium found; install one, or name it by SHARDWRIGHT_CHROMIUM")
    with api.sync_playwright() as driver:
        sandbox = [] if os.geteuid() else ["--no-sandbox"]
        started = driver.chromium.launch(executable_path=program, args=sandbox)
        yield started
        started.close()


@pytest.fixture
def visit(browser):
    """Opens a page; by the end of the test, it must have raised no error and made no network request."""
    contexts, faults, requests = [], [], []

    def open_page(path: Path, **options):
        context = browser.new_context(**{"viewport": {"width": 1280, "height": 900}, **options})
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda message: faults.append(message.text))
        page.on("pageerror", lambda error: faults.append(str(error)))
        page.on("request", lambda request: requests.append(request.url))
        page.goto(path.as_uri())
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert faults == []
    assert requests
    assert all(url.startswith(LOCAL) for url in requests)


@pytest.fixture
def program(tmp_path, monkeypatch):
    """Imports a module of benchmarks/ whose results go to a folder of the test."""
    pytest.importorskip("matplotlib", reason="the figures need matplotlib")
    monkeypatch.setattr("benchmarks.results_table.RESULTS", tmp_path)
    return lambda name: importlib.import_module(f"benchmarks.{name}")


@pytest.fixture(scope="module")
def ranks():
    """Four running gloo processes."""
    from tests.runtime_ranks import started

    with started(4) as group:
        yield group


@pytest.fixture(scope="module")
def cluster():
    """A Ray cluster of two workers."""
    from tests.ray_cluster import local_cluster

    yield from local_cluster()
