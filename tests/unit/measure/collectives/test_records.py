from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from shardwright.errors import InvalidInput
from shardwright.measure.collectives.records import COLLECTIVES, keys_of, read_collectives, row_of, schema, step_ms
from shardwright.measure.collectives.sampling import ALL_GATHER, ALL_TO_ALL, CollectiveSample
from shardwright.measure.collectives.summary import summarise
from shardwright.measure.collectives.timing import DeviceTimes
from shardwright.measure.store import RecordStore, SampleStore, read_samples
from tests.unit.measure.rows import row as kernel_row

GLOO = {"device_kind": "cpu", "processor": "abacus", "cores": "2", "backend": "gloo", "torch": "2", "fbgemm": "1"}
FBGEMM = {**GLOO, "backend": "fbgemm"}
THERE = {**GLOO, "processor": "slide rule"}
REQUEST = {"seed": 0, "world": 2}
TIMES = DeviceTimes((1.0, 2.0), (3.0, 0.5))


def row(sample: int, repeat: int = 0, times: DeviceTimes | None = TIMES) -> dict[str, Any]:
    return row_of(CollectiveSample(sample, ALL_TO_ALL, 8, (4, 12), (0.0, 1.5)), repeat, 1, "gloo", times, 10)


def open_store(folder: Path, hardware: dict[str, str] = GLOO, **options: Any) -> RecordStore:
    return RecordStore(folder, hardware, options.pop("request", REQUEST), COLLECTIVES, **options)


def fill(folder: Path, *rows: dict[str, Any]) -> None:
    with open_store(folder) as store:
        for one in rows:
            store.append(one)
            store.flush()


def test_what_is_written_is_read(tmp_path: Path) -> None:
    fill(tmp_path, row(4), row(2), row(2, repeat=1))
    table = read_collectives(tmp_path)
    assert table.schema.equals(schema())
    assert keys_of(table) == [(2, 0), (2, 1), (4, 0)]
    found = table.to_pylist()[0]
    assert found.pop("measured_at").tzinfo is not None
    assert found == {
        "sample": 2,
        "repeat": 0,
        "kind": "all_to_all",
        "world": 2,
        "hosts": 1,
        "batch_size": 8,
        "dims": [4, 12],
        "bytes": [128, 384],
        "sent_intra": [64, 192],
        "sent_inter": [0, 0],
        "received_intra": [192, 64],
        "received_inter": [0, 0],
        "delays_ms": [0.0, 1.5],
        "forward_ms": [1.0, 2.0],
        "backward_ms": [3.0, 0.5],
        "runs": 10,
        "backend": "gloo",
    }
    assert step_ms(table).tolist() == [5.0, 5.0, 5.0]


def test_other_kinds_have_one_pass(tmp_path: Path) -> None:
    sample = CollectiveSample(1, ALL_GATHER, 0, (), (0.0, 0.0), 100)
    fill(tmp_path, row_of(sample, 0, 2, "gloo", DeviceTimes((1.0, 2.0), ()), 10))
    table = read_collectives(tmp_path)
    found = table.to_pylist()[0]
    assert (found["bytes"], found["sent_intra"], found["sent_inter"]) == ([200, 200], [0, 0], [200, 200])
    assert (found["dims"], found["backward_ms"]) == ([], [])
    assert step_ms(table).tolist() == [2.0]


def test_skipped_samples_are_settled_and_counted_but_not_read(tmp_path: Path) -> None:
    fill(tmp_path, row(1), row(2, times=None), row(1, repeat=1), row(2, repeat=1, times=None))
    assert keys_of(read_collectives(tmp_path)) == [(1, 0), (1, 1)]
    with open_store(tmp_path) as store:
        assert {key for table in store.found for key in keys_of(table)} == {(1, 0), (1, 1), (2, 0), (2, 1)}
    summary = summarise(tmp_path, 3, 1.0)
    assert (summary.samples, summary.skipped, summary.measured, summary.repeat_mean) == (1, 1, 3, 0.0)


def test_a_store_of_skipped_samples_only_is_said(tmp_path: Path) -> None:
    fill(tmp_path, row(1, times=None))
    with pytest.raises(InvalidInput, match="all 1 collectives were skipped"):
        read_collectives(tmp_path)
    assert summarise(tmp_path, 0, 1.0).skipped == 1


def test_kernels_and_collectives_share_a_folder(tmp_path: Path) -> None:
    with SampleStore(tmp_path, FBGEMM, {"seed": 7}) as kernels:
        kernels.append(kernel_row(1))
    fill(tmp_path, row(1), row(2))
    with SampleStore(tmp_path, FBGEMM, {"seed": 7}) as kernels:
        assert kernels.visits.settled((1, 0))
        assert not kernels.visits.seen((2, 0))
        kernels.append(kernel_row(3))
    assert keys_of(read_collectives(tmp_path)) == [(1, 0), (2, 0)]
    assert read_samples(tmp_path)["sample"].to_pylist() == [1, 3]
    assert sorted(path.name for path in tmp_path.glob("*.parquet")) == [
        "collectives-00000.parquet",
        "collectives-00001.parquet",
        "part-00000.parquet",
        "part-00001.parquet",
    ]


def test_a_folder_with_the_other_kind_only_is_said(tmp_path: Path) -> None:
    with SampleStore(tmp_path / "kernels", FBGEMM, {}) as kernels:
        kernels.append(kernel_row(1))
    with pytest.raises(
        InvalidInput, match=r"collectives-identity\.json is missing.*shardwright collect --collectives -o"
    ):
        read_collectives(tmp_path / "kernels")
    fill(tmp_path / "collectives", row(1))
    with pytest.raises(InvalidInput, match=r"\(identity\.json is missing"):
        read_samples(tmp_path / "collectives")


def test_only_one_process_may_write_whatever_it_measures(tmp_path: Path) -> None:
    with open_store(tmp_path), pytest.raises(InvalidInput, match="another process is collecting"):
        SampleStore(tmp_path, FBGEMM, {})


def test_the_kinds_of_one_folder_are_of_one_machine(tmp_path: Path) -> None:
    with SampleStore(tmp_path, FBGEMM, {}) as kernels:
        kernels.append(kernel_row(1))
    with pytest.raises(InvalidInput, match=r"identity\.json: measured on other hardware.*abacus / slide rule"):
        open_store(tmp_path, THERE)
    open_store(tmp_path, THERE, allow_other_hardware=True).close()


def test_other_hardware_and_other_requests_are_refused(tmp_path: Path) -> None:
    fill(tmp_path, row(1))
    with pytest.raises(InvalidInput, match="processor: abacus / slide rule"):
        open_store(tmp_path, THERE)
    with pytest.raises(InvalidInput, match="collected with world 2, now 4 is asked for"):
        open_store(tmp_path, request={**REQUEST, "world": 4})
    with pytest.raises(InvalidInput, match="processor: abacus / slide rule"):
        read_collectives(tmp_path, hardware=THERE)
    assert read_collectives(tmp_path, hardware=FBGEMM).num_rows == 1  # the kernel backend does not matter
    assert read_collectives(tmp_path, hardware=THERE, allow_other_hardware=True).num_rows == 1


def test_unflushed_rows_survive_a_kill_and_are_read_once(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    store.append(row(1))
    store.append(row(2, times=None))
    store._lock.close()  # the process is gone; nothing else is done
    journal = (tmp_path / COLLECTIVES.journal).read_bytes()
    assert keys_of(read_collectives(tmp_path)) == [(1, 0)]
    (tmp_path / COLLECTIVES.journal).write_bytes(journal[:-30])  # the last line is torn
    assert keys_of(read_collectives(tmp_path)) == [(1, 0)]
    (tmp_path / COLLECTIVES.journal).write_bytes(journal)
    with open_store(tmp_path) as again:
        assert sorted(key for table in again.found for key in keys_of(table)) == [(1, 0), (2, 0)]
    (tmp_path / COLLECTIVES.journal).write_bytes(journal)  # killed before it was emptied
    assert keys_of(read_collectives(tmp_path)) == [(1, 0)]
    with open_store(tmp_path) as again:
        assert sum(table.num_rows for table in again.found) == 2


def test_a_part_of_kernels_under_the_name_of_collectives_is_skipped(tmp_path: Path) -> None:
    with SampleStore(tmp_path, FBGEMM, {}) as kernels:
        kernels.append(kernel_row(1))
    fill(tmp_path, row(1))
    (tmp_path / "collectives-00007.parquet").write_bytes((tmp_path / "part-00000.parquet").read_bytes())
    with pytest.warns(UserWarning, match=r"collectives-00007\.parquet: skipped"):
        assert read_collectives(tmp_path).num_rows == 1


def test_the_schema_is_what_readers_rely_on() -> None:
    lists = {name: schema().field(name).type for name in schema().names if pa.types.is_list(schema().field(name).type)}
    assert {name for name, kind in lists.items() if kind == pa.list_(pa.int64())} == {
        "bytes",
        "sent_intra",
        "sent_inter",
        "received_intra",
        "received_inter",
    }
    assert {name for name, kind in lists.items() if kind == pa.list_(pa.float64())} == {
        "delays_ms",
        "forward_ms",
        "backward_ms",
    }
    assert lists["dims"] == pa.list_(pa.int32())
