"""The sample store: its content survives killed processes, and a file that is no store is reported."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardwright.errors import InvalidInput, ShardwrightError
from shardwright.measure import store as module
from shardwright.measure.device_work import Job
from shardwright.measure.samples import export_parquet, read_samples
from shardwright.measure.store import NAME, SampleStore, reading, work_id
from shardwright.modelling.dataset import samples_of
from shardwright.sharding.work import COLUMNS, columns_of
from tests.unit.measure.rows import HERE, THERE, job, visit, work
from tests.unit.measure.test_samples import read_or_refused

ROOT = Path(__file__).parents[3]


def filled(folder: Path, count: int = 3) -> Path:
    with SampleStore(folder, HERE) as store:
        for number in range(count):
            store.add(job(number, f"a:{number}"), visit(1.0 + number))
    return folder


def changed(folder: Path, *statements: str) -> None:
    """The store after someone's own SQL."""
    db = sqlite3.connect(folder / NAME)
    for statement in statements:
        db.execute(statement)
    db.commit()
    db.close()


def test_visits_come_back_in_order_whatever_the_clock_says(tmp_path: Path) -> None:
    made = [replace(visit(1.0 + place), measured_at=-100.0 * place) for place in range(4)]
    with SampleStore(tmp_path, HERE) as store:
        for one in made:
            store.add(job(1), one)
        assert store.visits(work(1)) == made
        assert store.visits(work(2)) == []
    with SampleStore(tmp_path, THERE) as other:
        assert other.visits(work(1)) == []
        other.add(job(1), visit(9.0))
    with SampleStore(tmp_path, HERE | {"python": "4"}) as again:  # not decisive
        assert again.visits(work(1)) == made


def test_a_work_may_be_several_sets(tmp_path: Path) -> None:
    with SampleStore(tmp_path, HERE) as store:
        store.add(job(1, "p1", "pair"), visit())
        store.add(job(1, "p2", "pair"), visit())
        store.add(job(1, "q", "policy"), visit())
        assert {label: len(visits) for label, visits in store.labelled("pair").items()} == {"p1": 3, "p2": 3}
        assert list(store.labelled("pair", "p2")) == ["p2"]
    table = read_samples(tmp_path)
    assert table["kind"].to_pylist() == ["pair", "pair", "policy"]
    assert table["label"].to_pylist() == ["p1", "p2", "q"]
    assert len(set(table["sample"].to_pylist())) == 1


def test_sets_that_cannot_be_measured_are_noted(tmp_path: Path) -> None:
    with SampleStore(tmp_path, HERE) as store:
        store.fail(job(1, "a:1"), "too large")
        store.fail(job(1, "a:1"), "still too large")
    with SampleStore(tmp_path, HERE) as store:
        assert store.failures() == {"a:1": "still too large"}
    with SampleStore(tmp_path, THERE) as store:
        assert store.failures() == {}


@given(st.integers(0, 50), st.integers(0, 50))
def test_a_work_is_known_by_its_content(one: int, other: int) -> None:
    assert (work_id(work(one)) == work_id(work(other))) == (one == other)
    assert 0 <= work_id(work(one)) < 2**52
    assert work_id(work(one, "adagrad")) != work_id(work(one))


def test_shards_are_kept_with_their_reuse() -> None:
    kept = columns_of(work(2).works)
    assert kept.shape == (3, COLUMNS)
    assert kept[0, :6].tolist() == [102, 8, 16, 32.5, 1, 4]
    rows, lookups = work(2).works[0].access.reuse(32.5)
    np.testing.assert_allclose(kept[1, 6:], [*rows, *lookups])


KILLED = """
import sys
import threading
from tests.unit.measure.rows import HERE, job, visit
from shardwright.measure.store import SampleStore
store = SampleStore(sys.argv[1], HERE)
for number in range(int(sys.argv[2]), 10**6):
    store.add(job(number, str(number)), visit())
    print(number, flush=True)
"""


def writer(folder: Path, first: int) -> subprocess.Popen[str]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)])}
    command = [sys.executable, "-c", KILLED, str(folder), str(first)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)


def test_two_processes_that_are_killed_lose_nothing(tmp_path: Path) -> None:
    writers = [writer(tmp_path, first) for first in (0, 500_000)]
    said: list[str] = []
    for process in writers:
        said += [process.stdout.readline().strip() for _ in range(5)]
    assert read_samples(tmp_path).num_rows >= 10  # while others write
    for process in writers:
        process.send_signal(signal.SIGKILL)
        said += process.stdout.read().split()
        process.stdout.close()
        process.wait()
    labels = read_samples(tmp_path)["label"].to_pylist()
    assert set(said) <= set(labels)
    assert len(labels) == len(set(labels)) <= len(said) + 2
    with SampleStore(tmp_path, HERE) as store:
        store.add(job(7), visit())


def test_foreign_and_damaged_files_are_reported(tmp_path: Path) -> None:
    whole = filled(tmp_path / "whole", 40) / NAME
    for length in (3000, 20_000):
        (tmp_path / NAME).write_bytes(whole.read_bytes()[:length])
        with pytest.raises(InvalidInput, match="is damaged, or no sample store"):
            read_samples(tmp_path)
    (tmp_path / NAME).write_bytes(b"")
    filled(tmp_path)  # a kill may leave an empty file
    other = tmp_path / "other"
    other.mkdir()
    changed(other, "CREATE TABLE t(x)")
    for use in (read_samples, lambda folder: SampleStore(folder, HERE)):
        with pytest.raises(InvalidInput, match="is no sample store"):
            use(other)


def test_a_store_of_the_first_format_is_read_and_goes_on(tmp_path: Path) -> None:
    changed(
        filled(tmp_path),
        "ALTER TABLE visits DROP COLUMN forward_elasticity",
        "ALTER TABLE visits DROP COLUMN backward_elasticity",
        "ALTER TABLE works DROP COLUMN features",
        "PRAGMA user_version = 1",
    )
    before = read_samples(tmp_path)
    with SampleStore(tmp_path, HERE) as store:
        store.add(job(9), replace(visit(), elasticity=(0.9, 0.35)))
        assert store.visits(work(9))[0].elasticity == (0.9, 0.35)
        assert store.visits(work(1))[0].elasticity == (0.7, 0.7)
    after = read_samples(tmp_path)
    assert after.slice(0, before.num_rows).equals(before)
    assert after.num_rows == before.num_rows + 1


def test_numbers_of_features_are_kept(tmp_path: Path) -> None:
    shared = work(2)
    shared = replace(shared, works=(replace(shared.works[0], feature_shares=(0.25, 0.75)), *shared.works[1:]))
    assert work_id(shared) != work_id(work(2))
    with SampleStore(tmp_path / "new", HERE) as store:
        store.add(job(1), visit())
        store.add(Job(shared), visit())
    read = samples_of(read_samples(tmp_path / "new")).works
    assert read.features.tolist() == [1, 1, 2, 1, 1]
    assert read.bags.tolist() == [16, 16, 32, 16, 16]
    export_parquet([tmp_path / "new"], tmp_path / "file.parquet")
    assert read_samples(tmp_path / "file.parquet")["shards"].to_pylist()[1][0]["features"] == 2


@pytest.mark.parametrize("byte", [0, 0xFF])
def test_no_damage_does_more_than_be_told(tmp_path: Path, byte: int) -> None:
    whole = (filled(tmp_path, 5) / NAME).read_bytes()
    rng = np.random.default_rng(byte)
    for place in rng.integers(0, len(whole), 60).tolist():
        (tmp_path / NAME).write_bytes(whole[:place] + bytes([byte] * 8) + whole[place + 8 :])
        assert read_or_refused(tmp_path) <= 5


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_that_may_not_be_written_to_can_be_read(tmp_path: Path) -> None:
    filled(tmp_path)
    tmp_path.chmod(0o500)
    try:
        assert read_samples(tmp_path).num_rows == 3
        with pytest.raises(InvalidInput, match="name a folder you may write to"):
            SampleStore(tmp_path, HERE).add(job(9), visit())
    finally:
        tmp_path.chmod(0o700)


def test_a_store_on_a_medium_that_cannot_be_written_to_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    filled(tmp_path)
    monkeypatch.setattr(module.os, "access", lambda *_: False)
    with reading(tmp_path) as db:
        assert db.execute("SELECT count(*) FROM visits").fetchone() == (3,)
    assert not list(tmp_path.glob("*-shm"))


def test_reading_leaves_nothing_behind(tmp_path: Path) -> None:
    before = (filled(tmp_path) / NAME).read_bytes()
    read_samples(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [NAME]
    assert (tmp_path / NAME).read_bytes() == before


def test_an_impossible_folder_raises(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InvalidInput, match="cannot be made"):
        SampleStore(tmp_path / "file" / "store", HERE)
    (tmp_path / NAME).mkdir()
    with pytest.raises(InvalidInput, match="is no file"):
        SampleStore(tmp_path, HERE)


def test_a_full_disk_raises_and_stored_samples_are_kept(tmp_path: Path) -> None:
    filled(tmp_path)
    with SampleStore(tmp_path, HERE) as store:
        pages = store._db.execute("PRAGMA page_count").fetchone()[0]
        store._db.execute(f"PRAGMA max_page_count = {pages}")
        for number in range(10, 500):
            with suppress(ShardwrightError):
                store.add(job(number), visit())
        with pytest.raises(ShardwrightError, match="make room on the disk"):
            store.add(job(500), visit())
        store._db.execute("PRAGMA max_page_count = 100000")
        store.add(job(4), visit())
    assert read_samples(tmp_path).num_rows >= 4


def test_a_store_locked_by_another_process_raises(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_PATIENCE_S", 0.1)
    filled(tmp_path)
    with SampleStore(tmp_path, HERE) as store, SampleStore(tmp_path, HERE) as other:
        other._db.execute("BEGIN IMMEDIATE")
        with pytest.raises(InvalidInput, match="another process has kept the store locked"):
            store.add(job(5), visit())
        other._db.execute("ROLLBACK")
        store.add(job(5), visit())


def test_several_make_one_store_at_once(tmp_path: Path) -> None:
    for folder in (tmp_path / str(number) for number in range(20)):
        together = threading.Barrier(4)

        def opened(folder: Path = folder, together: threading.Barrier = together) -> None:
            together.wait()
            SampleStore(folder, HERE).close()

        with ThreadPoolExecutor(4) as pool:
            for one in [pool.submit(opened) for _ in range(4)]:
                one.result()
