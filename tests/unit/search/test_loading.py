"""No search pays for loading compiled code, and none needs a folder to keep it in."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

import shardwright as sw
from shardwright.search import loading, solve
from shardwright.search.certified import Certified
from shardwright.search.greedy import FusedGreedy
from shardwright.testing.model import SimpleCostModel
from shardwright.testing.tasks import task_of

COUNTED = """
from numba.core.dispatcher import Dispatcher
import shardwright as sw
from shardwright.cost.choice import cost_model_for
from shardwright.search import solve
from shardwright.workload import random_task

calls = {}
plain, load = Dispatcher.compile, solve.load_search

def counted(self, signature):
    calls[self.py_func.__name__] = signature
    return plain(self, signature)

def loaded(*arguments, **options):
    found = load(*arguments, **options)
    print("loaded", bool(calls))
    calls.clear()
    return found

Dispatcher.compile, solve.load_search = counted, loaded
for devices in (2, 8):
    task = random_task(0, tables=20, devices=devices, device="cpu", batch_size=1024)
    for strategy in ("certified", "auto"):
        for runs_on in ("torchrec", "shardwright"):
            options = {"strategy": strategy, "cost_model": cost_model_for("cpu"), "runs_on": runs_on}
            plan = sw.plan(task, time_limit=3.0, **options)
    sw.plan(task, time_limit=3.0, start=plan, move_cost=0.01, **options)
print("in searches", sorted(calls))
"""


@pytest.mark.slow
def test_searches_find_all_of_their_code_loaded():
    run = subprocess.run([sys.executable, "-c", COUNTED], capture_output=True, text=True, timeout=900, check=True)
    lines = run.stdout.splitlines()
    assert lines[0] == "loaded True"  # the first plan of the process
    assert lines[-1] == "in searches []"


def test_what_compiles_nothing_loads_nothing(monkeypatch):
    monkeypatch.setattr(loading, "_loaded", set())
    monkeypatch.setattr(Certified, "search", lambda *_, **__: pytest.fail("the toy was planned"))
    loading.load_search(FusedGreedy(), SimpleCostModel())


def test_a_cost_model_is_loaded_once_and_ctrl_c_ends_it(monkeypatch):
    searches = []

    def search(self, task, cost_model, *, seed, deadline):
        """As the real one: Ctrl-C ends it with the best plan so far."""
        searches.append(deadline)
        if len(searches) == 1:
            with suppress(KeyboardInterrupt):
                signal.raise_signal(signal.SIGINT)
        return sw.Plan(task, [sw.Shard.whole(table, 0) for table in task.tables])

    monkeypatch.setattr(loading, "_loaded", set())
    monkeypatch.setattr(Certified, "search", search)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        assert not loading.load_search(Certified(), SimpleCostModel())
        for _ in range(3):
            assert loading.load_search(Certified(), SimpleCostModel())
    finally:
        signal.signal(signal.SIGINT, before)
    assert searches == [None, None]


@pytest.mark.parametrize("strategy", ["auto", "certified"])
def test_ctrl_c_while_code_is_loaded_leaves_a_plan(monkeypatch, strategy):
    monkeypatch.setattr(solve, "load_search", lambda *_, **__: False)
    monkeypatch.setattr(Certified, "_searched", lambda *_, **__: pytest.fail("there was no time to search"))
    sw.plan(task_of(12, 4), strategy=strategy, cost_model=SimpleCostModel(), time_limit=60.0).check()


UNCACHED = """
import numpy as np
import shardwright.search.engine.session, shardwright.search.neuroshard.inner
from shardwright.search.engine.shortest import cheapest_widths

print(shardwright.__file__, *cheapest_widths(np.array([0, 3]), np.array([2.0, 3.0, 9.0]))[0])
"""


def test_code_compiles_where_no_folder_is_writable(tmp_path):
    """Files where numba would make its folders: that stops root as well."""
    package = tmp_path / "shardwright"
    shutil.copytree(Path(sw.__file__).parent, package, ignore=shutil.ignore_patterns("__pycache__"))
    for folder in {file.parent for file in package.rglob("*.py")}:
        (folder / "__pycache__").touch()
    hidden = ("NUMBA_CACHE_DIR", "XDG_CACHE_HOME", "PYTHONPATH")
    env = {name: value for name, value in os.environ.items() if name not in hidden}
    env |= {"HOME": os.devnull, "PYTHONPATH": str(tmp_path)}
    run = subprocess.run(
        [sys.executable, "-c", UNCACHED],
        env=env,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert run.stdout.split() == [str(package / "__init__.py"), "5.0"], run.stderr
    assert run.stderr.count("set NUMBA_CACHE_DIR") == run.stderr.count("Warning") == 1
