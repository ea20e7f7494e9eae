from __future__ import annotations

import json
import os
import re
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardwright.errors import InvalidInput
from shardwright.measure import store as store_module
from shardwright.measure.failures import read_failures
from shardwright.measure.identity import IDENTITY
from shardwright.measure.journal import JOURNAL, Journal
from shardwright.measure.parts import DamagedPart, read_part, rows_to_table, schema, write_part
from shardwright.measure.store import SampleStore, read_identity, read_samples
from tests.unit.measure.rows import row

HERE = {
    "device_kind": "cpu",
    "processor": "abacus",
    "cores": "2",
    "backend": "fbgemm",
    "torch": "2",
    "fbgemm": "1",
    "python": "3",
}
THERE = {**HERE, "processor": "slide rule"}
REQUEST = {"seed": 0, "batch_sizes": [1024]}
IDENTITY_HERE = {"format": 1, "hardware": HERE, "request": REQUEST}


def fill(folder: Path, *samples: int) -> None:
    """A store with one part per sample."""
    with SampleStore(folder, HERE, REQUEST) as store:
        for sample in samples:
            store.append(row(sample))
            store.flush()


def keys(table: pa.Table) -> list[tuple[int, int]]:
    return list(zip(table["sample"].to_pylist(), table["repeat"].to_pylist(), strict=True))


def test_what_is_written_is_read(tmp_path: Path) -> None:
    with SampleStore(tmp_path / "new" / "store", HERE, REQUEST) as store:
        store.append(row(7, forward_ms=0.1))
        store.append(row(3))
        store.flush()
        store.append(row(3, repeat=1))
    table = read_samples(tmp_path / "new" / "store")
    assert keys(table) == [(3, 0), (3, 1), (7, 0)]
    assert table.schema.equals(schema())
    assert table["forward_ms"].to_pylist() == [1.5, 1.5, 0.1]
    assert table["shards"][2].as_py() == row(7)["shards"]
    assert read_identity(tmp_path / "new" / "store") == IDENTITY_HERE


def test_unflushed_samples_are_read_and_survive(tmp_path: Path) -> None:
    store = SampleStore(tmp_path, HERE, REQUEST)
    store.append(row(1))
    store.append(row(2))
    assert keys(read_samples(tmp_path)) == [(1, 0), (2, 0)]
    store._lock.close()  # the process is gone; nothing else is done
    with SampleStore(tmp_path, HERE, REQUEST) as again:
        assert again.visits.settled((1, 0))
        assert again.visits.settled((2, 0))
        assert (tmp_path / JOURNAL).read_bytes() == b""
        again.append(row(5))
    assert keys(read_samples(tmp_path)) == [(1, 0), (2, 0), (5, 0)]


def test_a_torn_last_line_is_left_out(tmp_path: Path) -> None:
    store = SampleStore(tmp_path, HERE, REQUEST)
    store.append(row(1))
    store.append(row(2))
    store._lock.close()
    journal = (tmp_path / JOURNAL).read_bytes()
    for cut in (len(journal) - 1, len(journal) - 2, len(journal) - 100):
        (tmp_path / JOURNAL).write_bytes(journal[:cut])
        expected = [(1, 0), (2, 0)] if cut == len(journal) - 1 else [(1, 0)]  # only the line end is missing
        assert keys(read_samples(tmp_path)) == expected


def test_killed_between_the_part_and_emptying_the_journal(tmp_path: Path) -> None:
    store = SampleStore(tmp_path, HERE, REQUEST)
    store.append(row(1))
    journal = (tmp_path / JOURNAL).read_bytes()
    store.close()
    (tmp_path / JOURNAL).write_bytes(journal)
    assert keys(read_samples(tmp_path)) == [(1, 0)]
    with SampleStore(tmp_path, HERE, REQUEST) as again:
        again.append(row(2))
    assert keys(read_samples(tmp_path)) == [(1, 0), (2, 0)]
    assert sum(pq.read_metadata(path).num_rows for path in tmp_path.glob("part-*")) == 2


def test_visits_to_a_sample_are_all_kept_and_read_as_one(tmp_path: Path) -> None:
    with SampleStore(tmp_path, HERE, REQUEST) as store:
        store.append(row(1, sentinel=1.5, forward_ms=3.0, measured_at=1))
        store.flush()
        assert not store.visits.settled((1, 0))
    with SampleStore(tmp_path, HERE, REQUEST) as store:
        assert store.visits.seen((1, 0))
        assert not store.visits.settled((1, 0))
        store.append(row(1, sentinel=1.0, forward_ms=2.0, measured_at=2))
        assert store.visits.settled((1, 0))
    table = read_samples(tmp_path)
    assert keys(table) == [(1, 0)]
    assert table["forward_ms"].to_pylist() == [2.0]


class Killed(BaseException):
    """The process is gone."""


@pytest.mark.parametrize("moment", ["before", "after"])
@pytest.mark.parametrize("step", ["write_part", "Journal.clear"])
def test_killed_at_any_step_of_a_flush(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str, moment: str) -> None:
    store = SampleStore(tmp_path, HERE, REQUEST)
    store.append(row(1))
    store.append(row(2))
    owner, name = (Journal, "clear") if step == "Journal.clear" else (store_module, "write_part")
    original = getattr(owner, name)

    def killed(*arguments: Any) -> None:
        if moment == "after":
            original(*arguments)
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(owner, name, killed)
        with pytest.raises(Killed):
            store.flush()
    store._lock.close()
    assert keys(read_samples(tmp_path)) == [(1, 0), (2, 0)]
    with SampleStore(tmp_path, HERE, REQUEST) as again:
        again.append(row(3))
    assert keys(read_samples(tmp_path)) == [(1, 0), (2, 0), (3, 0)]
    assert sum(pq.read_metadata(path).num_rows for path in tmp_path.glob("part-*")) == 3


def test_leftovers_of_a_killed_write_are_ignored_and_removed(tmp_path: Path) -> None:
    fill(tmp_path, 1)
    (tmp_path / ".shardwright-0123456789abcdef.tmp").write_bytes(b"PAR1 half a part")
    assert keys(read_samples(tmp_path)) == [(1, 0)]
    fill(tmp_path, 2)
    assert not list(tmp_path.glob(".shardwright-*"))


def test_parts_are_never_overwritten(tmp_path: Path) -> None:
    fill(tmp_path, 1, 2, 3)
    (tmp_path / "part-00001.parquet").unlink()
    fill(tmp_path, 4)
    assert keys(read_samples(tmp_path)) == [(1, 0), (3, 0), (4, 0)]


def test_two_processes_may_not_write(tmp_path: Path) -> None:
    with SampleStore(tmp_path, HERE, REQUEST), pytest.raises(InvalidInput, match="another process is collecting"):
        SampleStore(tmp_path, HERE, REQUEST)
    SampleStore(tmp_path, HERE, REQUEST).close()


def test_other_hardware_is_refused_unless_asked_for(tmp_path: Path) -> None:
    fill(tmp_path, 1)
    with pytest.raises(InvalidInput, match="processor: abacus / slide rule.*allow-other-hardware"):
        SampleStore(tmp_path, THERE, REQUEST)
    with pytest.raises(InvalidInput, match="processor: abacus / slide rule"):
        read_samples(tmp_path, hardware=THERE)
    assert read_samples(tmp_path, hardware=THERE, allow_other_hardware=True).num_rows == 1
    assert read_samples(tmp_path, hardware={**HERE, "python": "4"}).num_rows == 1
    with SampleStore(tmp_path, THERE, REQUEST, allow_other_hardware=True) as store:
        store.append(row(2))
    with pytest.raises(InvalidInput, match=r"part-00001\.parquet: measured on other hardware"):
        read_samples(tmp_path)
    assert read_samples(tmp_path, allow_other_hardware=True).num_rows == 2


def test_a_journal_keeps_its_hardware_when_another_machine_goes_on(tmp_path: Path) -> None:
    store = SampleStore(tmp_path, HERE, REQUEST)
    store.append(row(1))
    store._lock.close()
    SampleStore(tmp_path, THERE, REQUEST, allow_other_hardware=True).close()
    assert read_part(tmp_path / "part-00000.parquet")[0]["hardware"] == HERE


def test_another_request_is_refused(tmp_path: Path) -> None:
    fill(tmp_path, 1)
    with pytest.raises(
        InvalidInput, match="collected with seed 0, now 1 is asked for; use the same value, or another folder"
    ):
        SampleStore(tmp_path, HERE, {**REQUEST, "seed": 1})


def test_an_empty_store_is_free_for_another_request(tmp_path: Path) -> None:
    SampleStore(tmp_path, THERE, REQUEST).close()
    SampleStore(tmp_path, HERE, {**REQUEST, "seed": 1}).close()
    assert read_identity(tmp_path)["request"]["seed"] == 1


def test_a_lost_identity_is_found_in_the_parts(tmp_path: Path) -> None:
    fill(tmp_path, 1)
    (tmp_path / IDENTITY).unlink()
    with pytest.raises(InvalidInput, match="is no sample store"):
        read_samples(tmp_path)
    with pytest.raises(InvalidInput, match="measured on other hardware"):
        SampleStore(tmp_path, THERE, REQUEST)
    fill(tmp_path, 2)
    assert keys(read_samples(tmp_path)) == [(1, 0), (2, 0)]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "identity"),
        ("[]", "must hold format, hardware and request"),
        ('{"format": 2, "hardware": {}, "request": {}}', "format version 2, this release reads version 1"),
        ('{"format": 1, "hardware": 3, "request": {}}', "must be objects"),
        ("[" * 10_000, "nested too deeply"),
    ],
)
def test_a_broken_identity_is_said(tmp_path: Path, content: str, message: str) -> None:
    fill(tmp_path, 1)
    (tmp_path / IDENTITY).write_text(content)
    with pytest.raises(InvalidInput, match=message):
        read_samples(tmp_path)


def test_an_empty_store_is_said(tmp_path: Path) -> None:
    SampleStore(tmp_path, HERE, REQUEST).close()
    with pytest.raises(InvalidInput, match="holds no readable samples; measure some with"):
        read_samples(tmp_path)


def test_a_journal_line_that_is_no_sample_is_said(tmp_path: Path) -> None:
    store = SampleStore(tmp_path, HERE, REQUEST)
    store.append(row(1))
    store.append({**row(2), "forward_ms": "long"})
    store._lock.close()
    with pytest.raises(InvalidInput, match="a line is no sample"):
        read_samples(tmp_path)


def damaged(part: bytes, how: str) -> bytes:
    """A part damaged in some way."""
    middle = len(part) // 2
    return {
        "empty": b"",
        "cut short": part[:middle],
        "no end": part[:-1],
        "no start": part[100:],
        "text": b"hello",
        "changed page": part[:60] + bytes([part[60] ^ 255]) + part[61:],
        "changed middle": part[:middle]
        + bytes(byte ^ 170 for byte in part[middle : middle + 50])
        + part[middle + 50 :],
        "footer too long": part[:-8] + (10_000_000_000 % 2**32).to_bytes(4, "little") + part[-4:],
    }[how]


@pytest.mark.parametrize(
    "how", ["empty", "cut short", "no end", "no start", "text", "changed page", "changed middle", "footer too long"]
)
def test_damaged_parts_are_skipped_with_a_warning_and_others_kept(tmp_path: Path, how: str) -> None:
    fill(tmp_path, 1, 2, 3)
    broken = tmp_path / "part-00001.parquet"
    broken.write_bytes(damaged(broken.read_bytes(), how))
    with pytest.warns(UserWarning, match=r"part-00001\.parquet: skipped, the part is damaged"):
        assert keys(read_samples(tmp_path)) == [(1, 0), (3, 0)]
    with pytest.warns(UserWarning, match="skipped"), SampleStore(tmp_path, HERE, REQUEST) as store:
        assert [store.visits.seen((sample, 0)) for sample in (1, 2, 3)] == [True, False, True]


@given(st.data())
def test_no_change_of_bytes_does_harm(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    path = tmp_path_factory.mktemp("part") / "part-00000.parquet"
    write_part(path, rows_to_table([row(1), row(2)]), IDENTITY_HERE)
    content = bytearray(path.read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    path.write_bytes(bytes(content))
    try:
        _, table = read_part(path)
    except DamagedPart:
        return
    assert table.schema.equals(schema())


def test_a_part_of_other_columns_or_without_identity_is_damaged(tmp_path: Path) -> None:
    path = tmp_path / "part-00000.parquet"
    pq.write_table(pa.table({"sample": [1]}), path)
    with pytest.raises(DamagedPart):
        read_part(path)
    write_part(path, pa.table({"sample": [1]}), IDENTITY_HERE)
    with pytest.raises(DamagedPart, match="its columns are not those of a sample part"):
        read_part(path)
    write_part(path, rows_to_table([row(1)]), {**IDENTITY_HERE, "format": 99})
    with pytest.raises(DamagedPart, match="format version 99, this release reads version 1"):
        read_part(path)
    write_part(path, rows_to_table([row(1)]), {"format": 1, "hardware": 1, "request": 2})
    with pytest.raises(DamagedPart, match="no hardware and request"):
        read_part(path)


def test_a_small_part_that_claims_gigabytes_is_refused_unread(tmp_path: Path) -> None:
    path = tmp_path / "part-00000.parquet"
    write_part(path, rows_to_table([row(1)] * 200_000), IDENTITY_HERE)
    assert path.stat().st_size < 200_000
    before = pa.total_allocated_bytes()
    with pytest.raises(DamagedPart, match="it claims 200000 samples in"):
        read_part(path)
    assert pa.total_allocated_bytes() - before < 1_000_000


def test_a_part_that_claims_to_unpack_to_gigabytes_is_refused_unread(tmp_path: Path) -> None:
    path = tmp_path / "part-00000.parquet"
    write_part(path, rows_to_table([{**row(1), "optimizer": "s" * 50_000_000}]), IDENTITY_HERE)
    assert path.stat().st_size < 1_000_000
    with pytest.raises(DamagedPart, match="it claims to unpack to"):
        read_part(path)


def test_the_journal_is_json_a_line(tmp_path: Path) -> None:
    store = SampleStore(tmp_path, HERE, REQUEST)
    store.append(row(1))
    first, second = map(json.loads, (tmp_path / JOURNAL).read_text().splitlines())
    store.close()
    assert first == {"identity": IDENTITY_HERE}
    assert second == row(1)


def test_a_whole_store_reads_without_warnings(tmp_path: Path) -> None:
    fill(tmp_path, *range(5))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert read_samples(tmp_path).num_rows == 5


def with_null(table: pa.Table, path: Sequence[str]) -> pa.Table:
    """The table with its last value in a column, or in the field of its shards or their lists, gone."""
    rows = table.to_pylist()
    place: Any = rows[-1]
    for step in path[:-1]:
        place = place[-1 if step == "element" else step]
    place[-1 if path[-1] == "element" else path[-1]] = None
    return pa.Table.from_pylist(rows, schema=schema())


SHARD = [["shards", "element", field.name] for field in schema().field("shards").type.value_type]
LISTS = [[*field, "element"] for field in SHARD if field[-1].startswith("reuse")]


@pytest.mark.parametrize(
    "path", [*([name] for name in schema().names), ["shards", "element"], *SHARD, *LISTS], ids=".".join
)
def test_a_part_with_a_value_missing_is_refused(tmp_path: Path, path: Sequence[str]) -> None:
    fill(tmp_path, 1, 2)
    part = tmp_path / "part-00000.parquet"
    identity, table = read_part(part)
    write_part(part, with_null(table, path), identity)
    with pytest.raises(
        InvalidInput, match=rf"{part}: column {re.escape('.'.join(path))} has no value in (row|entry) \d+ of \d+, must"
    ):
        read_samples(tmp_path)


def test_a_journal_with_a_value_missing_is_refused(tmp_path: Path) -> None:
    with SampleStore(tmp_path, HERE, REQUEST):
        pass
    journal = Journal(tmp_path, read_identity(tmp_path))
    journal.append(row(1) | {"forward_ms": None})
    journal.close()
    with pytest.raises(InvalidInput, match=rf"{JOURNAL}: column forward_ms has no value in row 0 of 1"):
        read_samples(tmp_path)


@pytest.mark.parametrize("name", [JOURNAL, IDENTITY, "failures.jsonl", "part-00001.parquet"])
def test_pipes_in_a_store_are_not_waited_for(tmp_path: Path, name: str) -> None:
    fill(tmp_path, 1)
    (tmp_path / name).unlink(missing_ok=True)
    os.mkfifo(tmp_path / name)
    if name.endswith(".parquet"):
        with pytest.warns(UserWarning, match="is a pipe or device"):
            read_samples(tmp_path)
        return
    with pytest.raises(InvalidInput, match=f"{name}: is a pipe or device"):
        read_failures(tmp_path) if name == "failures.jsonl" else read_samples(tmp_path)
