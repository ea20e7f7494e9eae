"""Parts of a log counted by workers give the profile that this process gives, bit by bit, and the same complaints."""

from __future__ import annotations

import os
from dataclasses import fields
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.pools import UnrulyPool

from shardwright.errors import InvalidInput
from shardwright.sharding.rank_map import RankMap
from shardwright.workload.profile import ProfileResult, profile_logs
from shardwright.workload.profile.counting import (
    ColumnCounter,
    ColumnProfile,
    CountingJob,
    count_part,
    counts_by,
    merge_all,
)
from shardwright.workload.profile.formats import ColumnKind
from shardwright.workload.profile.readers import LogFile, Span, parts_of
from shardwright.workload.profile.sketch import AccessSketch, scramble

SMALL_SKETCHES = 28 * 64 * 3  # 64 ids of each of three columns: most are not counted exactly


@pytest.fixture(autouse=True)
def small_parts(monkeypatch):
    monkeypatch.setattr("shardwright.workload.profile.readers.LEAST_BYTES", 1500)


@pytest.fixture
def logs(tmp_path) -> list[Path]:
    """Parquet with many row groups, CSV, and a second Parquet file: ids of two kinds, and lists of them."""
    rng = np.random.default_rng(3)
    paths = []
    for number, rows in enumerate((1200, 300, 500)):
        users = rng.zipf(1.3, rows) % 700
        tags = [rng.integers(0, 90, rng.integers(0, 5)).tolist() for _ in range(rows)]
        names = [f"n{value}" for value in rng.zipf(1.2, rows) % 400]
        if number == 1:
            lines = [f"{u},{' '.join(map(str, t))},{n}" for u, t, n in zip(users, tags, names, strict=True)]
            path = tmp_path / "b.csv"
            path.write_text("user,tags,label\n" + "\n".join(lines) + "\n")
        else:
            path = tmp_path / f"{number}.parquet"
            pq.write_table(pa.table({"user": users, "tags": tags, "label": names}), path, row_group_size=100)
        paths.append(path)
    return paths


def plain(result: ProfileResult) -> dict[str, object]:
    """All figures of a profile, as comparable values."""
    columns = {
        name: {
            **{field.name: getattr(column, field.name) for field in fields(column) if field.name != "sketch"},
            "sketch": sketch_plain(column.sketch),
        }
        for name, column in result.columns.items()
    }
    tables = [
        (table.name, table.rows, table.pooling, table.pooled, table.access.rows.tolist(), table.access.share.tolist())
        for table in result.tables(rows="numbered")
    ]
    maps = {name: rank_map_plain(ranks) for name, ranks in result.rank_maps().items()}
    return {
        "columns": columns,
        "tables": tables,
        "maps": maps,
        "samples": result.samples,
        "notes": result.notes(),
        "files": result.files,
    }


def sketch_plain(sketch: AccessSketch) -> dict[str, object]:
    values = {field.name: getattr(sketch, field.name) for field in fields(sketch)}
    return {name: value.tolist() if isinstance(value, np.ndarray) else value for name, value in values.items()}


def rank_map_plain(one: RankMap) -> tuple[int, list[int]]:
    return one.rows, one.hottest.tolist()


@pytest.mark.parametrize("sketch_bytes", [SMALL_SKETCHES, 28 * 4096 * 3])
@pytest.mark.parametrize(("size", "seed"), [(1, 0), (2, 1), (3, 2), (7, 3)])
def test_workers_in_any_order_find_the_same_bits(logs, size, seed, sketch_bytes):
    alone = profile_logs(logs, sketch_bytes=sketch_bytes)
    pool = UnrulyPool(size, seed, deaths=0.3)
    together = profile_logs(logs, sketch_bytes=sketch_bytes, pool=pool)
    assert plain(together) == plain(alone)
    assert len(pool.finished) > 10
    assert pool.redone
    assert size == 1 or pool.finished != sorted(pool.finished)
    exact = [column.sketch.exact for column in alone.columns.values()]
    assert any(exact) is all(exact) is (sketch_bytes > SMALL_SKETCHES)


def test_merging_out_of_order_differs_if_ids_are_forgotten(logs):
    """Why counts are merged in the order of the log."""
    jobs = jobs_of(logs, limit=64)
    counts = [count_part(job) for job in jobs]
    ordered, turned = (merge_all(jobs[0].columns, parts) for parts in (counts, reversed(counts)))
    heavy = [sketch_plain(merged.columns["user"].sketch)["heavy_counts"] for merged in (ordered, turned)]
    assert heavy[0] != heavy[1]


def test_users_whose_events_lie_in_several_files_are_one_user(text, tmp_path):
    rng = np.random.default_rng(0)
    events = [(int(user), int(item)) for user, item in rng.integers(0, (50, 300), (2400, 2))]
    whole = text("whole.txt", "".join(f"{user} {item}\n" for user, item in events))
    parts = [
        text(f"part{number}.txt", "".join(f"{user} {item}\n" for user, item in events[number * 600 :][:600]))
        for number in range(4)
    ]
    one, alone, together = (profile_logs(whole), profile_logs(parts), profile_logs(parts, pool=UnrulyPool(3, 1)))
    assert plain(together) == plain(alone)
    assert one.samples == together.samples == 50
    assert [t.access.share.tolist() for t in one.tables()] == [t.access.share.tolist() for t in together.tables()]


def jobs_of(paths: list[Path], limit: int) -> list[CountingJob]:
    from shardwright.workload.profile.readers import open_log

    kinds = {"user": ColumnKind("integers", False), "tags": ColumnKind("integers", True)}
    empty = {name: ColumnProfile(name, kind, AccessSketch(limit)) for name, kind in kinds.items()}
    return [CountingJob(part, empty, 500, None) for part in parts_of([LogFile.of(open_log(path)) for path in paths])]


def test_parts_cover_every_piece_once_in_order():
    files = [
        LogFile(Path(name), size, pieces)
        for name, size, pieces in [("a", 900, 1), ("b", 9000, 7), ("c", 100, 1), ("d", 0, 0), ("e", 5, 1)]
    ]
    parts = parts_of(files)
    covered = [
        (span.file.path.name, piece) for part in parts for span in part for piece in range(span.first, span.stop)
    ]
    assert covered == [("a", 0), *(("b", piece) for piece in range(7)), ("c", 0), ("e", 0)]
    assert len(parts) == 5
    assert parts_of([]) == []
    assert parts_of([LogFile(Path("d"), 0, 0)]) == []


@given(st.lists(st.tuples(st.integers(1, 10**12), st.integers(1, 300)), max_size=40))
def test_parts_are_few_and_not_small(files):
    parts = parts_of([LogFile(Path(str(number)), size, pieces) for number, (size, pieces) in enumerate(files)])
    assert len(parts) <= 257
    total = sum(size for size, _ in files)
    least = max(1500, -(-total // 256))
    for part in parts[:-1]:
        held = sum((span.stop - span.first) * span.file.bytes / span.file.pieces for span in part)
        assert held >= least * (1 - 1e-9)


def test_few_sketches_wait_for_a_slow_part(logs):
    class Remembering(UnrulyPool):
        def map(self, method, jobs):
            results = list(super().map(method, jobs))
            waiting.append(len(results))
            return iter(results)

    jobs, waiting = jobs_of(logs, 64), []
    assert len(jobs) > 12
    assert len(list(counts_by(Remembering(2), jobs, lambda lookups: None))) == len(jobs)
    assert max(waiting) == 4 * 2
    assert sum(waiting) == len(jobs)


def test_the_first_complaint_in_the_log_is_made_whoever_fails_first(logs, parquet, monkeypatch):
    bad = parquet("bad.parquet", user=[5, -1], tags=[[1], [2]], label=["a", "b"])
    worse = parquet("worse.parquet", user=[5, -7], tags=[[1], [2]], label=["a", "b"])
    monkeypatch.setattr("shardwright.workload.profile.readers.LEAST_BYTES", 1)
    paths = [logs[0], bad, logs[2], worse]
    with pytest.raises(InvalidInput) as alone:
        profile_logs(paths, columns=["user"])
    for seed in range(5):
        pool = UnrulyPool(30, seed)
        with pytest.raises(InvalidInput) as error:
            profile_logs(paths, columns=["user"], pool=pool)
        assert str(error.value) == str(alone.value)
        assert "id -1 is negative" in str(error.value)


def test_messages_name_files_as_the_user_did(logs, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    damaged = tmp_path / "damaged.parquet"
    content = bytearray(logs[0].read_bytes())
    content[200:1500] = bytes(1300)
    damaged.write_bytes(content)
    with pytest.raises(InvalidInput, match=r"^damaged\.parquet: ") as alone:
        profile_logs("damaged.parquet")

    class ElsewherePool(UnrulyPool):
        def _do(self, worker, sent):
            os.chdir("/")
            try:
                return super()._do(worker, sent)
            finally:
                os.chdir(tmp_path)

    with pytest.raises(InvalidInput) as error:
        profile_logs("damaged.parquet", pool=ElsewherePool(2))
    assert str(error.value) == str(alone.value)
    assert plain(profile_logs("0.parquet", pool=ElsewherePool(2))) == plain(profile_logs("0.parquet"))


def test_a_worker_reports_an_unreadable_file_as_this_process_would(logs, tmp_path):
    class WithoutFile(UnrulyPool):
        """As on a machine that does not share the folder."""

        def _do(self, worker, sent):
            logs[2].rename(tmp_path / "hidden")
            try:
                return super()._do(worker, sent)
            finally:
                (tmp_path / "hidden").rename(logs[2])

    with pytest.raises(InvalidInput, match=r"2\.parquet: there is no such file; check the path$"):
        profile_logs(logs, pool=WithoutFile(2))


def test_a_file_that_changed_meanwhile_is_refused(logs):
    part = parts_of([LogFile(logs[1], logs[1].stat().st_size - 1, 1)])[0]
    job = CountingJob(part, jobs_of(logs, 64)[0].columns, 500, None)
    with pytest.raises(
        InvalidInput,
        match=r"b\.csv: changed while it was profiled \(had [0-9,]+ bytes in 1 pieces, now .* need a shared folder",
    ):
        count_part(job)
    other = (Span(LogFile(logs[0], logs[0].stat().st_size, 3), 0, 3),)
    with pytest.raises(InvalidInput, match=r"in 3 pieces, now [0-9,]+ in 12\)"):
        count_part(CountingJob(other, job.columns, 500, None))


ids = st.lists(st.one_of(st.integers(0, 5), st.integers(0, 60), st.integers(0, 2**40)), max_size=60)


@given(ids, ids, st.integers(2, 40))
def test_merging_is_commutative(first, second, limit):
    one, other = (AccessSketch.of(scramble(np.array(part, dtype=np.uint64)), limit) for part in (first, second))
    assert sketch_plain(one.merged(other)) == sketch_plain(other.merged(one))


def counter(ids="integers", is_list=False, pending=10):
    return ColumnCounter(ColumnProfile("x", ColumnKind(ids, is_list), AccessSketch(1000)), pending)


@pytest.mark.parametrize("pending", [1, 7, 10, 1000])
def test_nothing_is_lost_however_few_keys_may_wait(pending):
    ids = np.random.default_rng(0).integers(0, 50, 300)
    counting = counter(pending=pending)
    done = [counting.add(pa.array(part), "log") for part in np.split(ids, [3, 40, 41, 250])]
    column = counting.finish()
    assert done == [3, 37, 1, 209, 50]
    assert column.max_id == ids.max()
    assert sorted(column.sketch.sample_counts) == sorted(np.unique(ids, return_counts=True)[1])


def test_a_dictionary_counts_like_its_values():
    texts = ["a", "b", "c", "d", "e", "f"]
    values = pa.array(["f", "f", None, "b", *texts])
    coded = pa.DictionaryArray.from_arrays(pa.array([5, 5, None, 1, *range(6)]), pa.array(texts))
    with_null = pa.DictionaryArray.from_arrays(pa.array([6, 6, 0, 2, *range(1, 7)]), pa.array([None, *texts]))
    sketches = []
    for column in (values, coded, with_null, coded.cast(pa.dictionary(pa.int8(), pa.string()))):
        for pending in (3, 100):
            counting = counter("text", pending=pending)
            assert counting.add(column, "log") == 9
            sketches.append(counting.finish().sketch)
    assert all(np.array_equal(sketch.sample_keys, sketches[0].sample_keys) for sketch in sketches)
    assert all(np.array_equal(sketch.sample_counts, sketches[0].sample_counts) for sketch in sketches)


def test_the_longest_list_counts_ids():
    counting = counter(is_list=True)
    counting.add(pa.array([[1], None, []], type=pa.list_(pa.int64())), "log")
    assert counting.finish().longest == 1
    counting.add(pa.array([[1, 2, 3]]), "log")
    assert counting.finish().longest == 3


def test_progress_of_text_has_no_total(text):
    seen = []
    profile_logs(text("a.csv", "user,item\n1,2\n3,4\n"), progress=lambda done, total: seen.append((done, total)))
    profile_logs(text("a.txt", "1 2\n3 4\n"), progress=lambda done, total: seen.append((done, total)))
    assert seen == [(4, None), (4, None)]
