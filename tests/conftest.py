"""Fixtures and settings shared by all tests."""

from __future__ import annotations

import logging
import os
import random
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis.internal.conjecture import providers

from shardwright.task import AccessProfile, Table, Task, Topology

# The same examples every time; scripts/explore.py draws new ones, by a seed.
settings.register_profile(
    "shardwright",
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    print_blob=True,
    derandomize=True,
    database=None,
)
settings.register_profile("explore", settings.get_profile("shardwright"), derandomize=False, database=None)
settings.load_profile("shardwright")

# Hypothesis also draws numbers and texts of the package's modules that are loaded: tests that ran before would change the examples.
assert callable(providers._get_local_constants)
providers._get_local_constants = providers.Constants

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # a shell's background; some tests press Ctrl-C
    signal.signal(signal.SIGINT, signal.default_int_handler)

REPOSITORY = Path(__file__).parents[1]
UNTIL = float(os.environ.get("SHARDWRIGHT_TESTS_UNTIL", "inf"))


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    if time.time() > UNTIL:
        pytest.skip("the time is up")
    logging.disable(logging.NOTSET)  # programs that tests run silence it for good
    _seed()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_call() -> None:
    _seed()


def _seed() -> None:
    """Seed all global generators, so that code without a seed of its own draws the same numbers in any order of tests."""
    random.seed(0)
    np.random.seed(0)
    if "torch" in sys.modules:
        sys.modules["torch"].manual_seed(0)


@pytest.fixture(scope="module", autouse=True)
def _own_cache_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """No test sees or changes the models and links that the user, or a test of another file, measured."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SHARDWRIGHT_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture
def cache_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache folder of the test's own; it does not exist yet."""
    monkeypatch.setenv("SHARDWRIGHT_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def shared_data() -> Path:
    """The folder of reference data beside the repository; tests that need it are skipped if it is missing."""
    shared = Path(os.environ.get("SHARDWRIGHT_SHARED", REPOSITORY.parent / "shared"))
    if not (shared / "data").is_dir():
        pytest.skip(f"no reference data in {shared}; set SHARDWRIGHT_SHARED to the folder that has data/")
    return shared / "data"


@pytest.fixture
def small_tables() -> tuple[Table, ...]:
    """Four tables: skewed, uniform, a sequence, and a tiny one in half precision."""
    return (
        Table("user", 1000, 16, 1.0, access=AccessProfile.zipf(1000, 1.05)),
        Table("item", 400, 32, 5.0),
        Table("history", 200, 8, 20.0, pooled=False, access=AccessProfile.zipf(200, 1.2)),
        Table("country", 3, 4, 1.0, dtype="fp16"),
    )


@pytest.fixture
def small_task(small_tables: tuple[Table, ...]) -> Task:
    """The four tables on two hosts of two devices, with memory for all of them on any one device."""
    return Task(small_tables, Topology(hosts=2, devices_per_host=2, memory="64 MB"), batch_size=64)
