from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from shardwright.errors import InvalidInput, MeasurementFailed
from shardwright.hardware import MACHINE
from shardwright.measure.collectives.collect import (
    CollectiveCollection,
    _collected,
    collect_collectives,
    keys_of,
    new_collection,
    read_collectives,
    row_of,
    schema,
    step_ms,
    summarise,
)
from shardwright.measure.collectives.sampling import CollectiveSample
from shardwright.measure.samples import read_samples
from shardwright.measure.store import SampleStore
from shardwright.task import AccessProfile, Table
from tests.unit.measure.rows import job, visit

POOL = (Table("t", 1000, 16, 2.0, access=AccessProfile.uniform(1000)),)


def collection(folder: Path, samples: int, **changes: Any) -> CollectiveCollection:
    return new_collection(folder, samples=samples, **{"world": 2, "batch_sizes": (64,), "pool": POOL, **changes})


class Script:
    """Answers requests for samples, or raises the errors of a script."""

    def __init__(self, events: dict[int, BaseException] | None = None) -> None:
        self.events, self.seen = events or {}, list[int]()

    def __call__(self, request: dict[str, Any], what: str) -> dict[str, Any]:
        self.seen.append(request["sample"])
        if request["sample"] in self.events:
            raise self.events[request["sample"]]
        return {"forward_ms": [1.0, 1.0], "backward_ms": [1.0, 1.0]}


def run(folder: Path, samples: int, script: Script) -> int:
    return _collected(collection(folder, samples), script, None).measured


def in_store(folder: Path) -> list[tuple[int, int]]:
    return keys_of(read_collectives(folder))


def test_every_20th_sample_is_repeated_and_nothing_is_measured_twice(tmp_path: Path) -> None:
    script = Script()
    assert run(tmp_path, 25, script) == 27
    assert script.seen.index(0, 1) == 11  # ten samples after the first time
    assert in_store(tmp_path) == sorted([(i, 0) for i in range(25)] + [(0, 1), (20, 1)])
    assert run(tmp_path, 25, script) == 0
    more = Script()
    assert run(tmp_path, 30, more) == 5
    assert more.seen == [25, 26, 27, 28, 29]


@pytest.mark.parametrize("end", [KeyboardInterrupt(), MeasurementFailed("rank 1 was ended by SIGKILL")])
def test_a_collection_that_ends_keeps_its_samples(tmp_path: Path, end: BaseException) -> None:
    with pytest.raises(type(end)):
        run(tmp_path, 6, Script({2: end}))
    assert in_store(tmp_path) == [(0, 0), (1, 0)]
    again = Script()
    assert run(tmp_path, 6, again) == 5
    assert again.seen == [2, 3, 4, 5, 0]


@pytest.mark.parametrize("timeout", [0.0, -1.0, float("nan"), float("inf")])
def test_impossible_timeouts_are_refused(tmp_path: Path, timeout: float) -> None:
    with pytest.raises(InvalidInput, match="timeout is"):
        collect_collectives(collection(tmp_path / "store", 5), timeout_s=timeout)
    assert not (tmp_path / "store").exists()


def test_different_collections_have_different_digests(tmp_path: Path) -> None:
    changes: list[dict[str, Any]] = [{}, {"seed": 1}, {"world": 4}]
    assert len({collection(tmp_path, 5, **changed).digest for changed in changes}) == 3


GLOO = {"device_kind": "cpu", "processor": "abacus", "cores": "2", "backend": "gloo", "torch": "2", "fbgemm": "1"}
FBGEMM = {**GLOO, "backend": "fbgemm"}
THERE = {**GLOO, "processor": "slide rule"}
TIMES = {"forward_ms": [1.0, 2.0], "backward_ms": [3.0, 0.5]}


Row = tuple[int, int, dict[str, Any]]


def row(sample: int, repeat: int = 0, times: dict[str, Any] = TIMES) -> Row:
    made = row_of(CollectiveSample(sample, 8, (4, 12), (0.0, 1.5)), "gloo", times, 10)
    return sample, repeat, made


def fill(folder: Path, *rows: Row, hardware: dict[str, str] = GLOO, collection: str = "c") -> None:
    with SampleStore(folder, hardware, MACHINE) as store:
        for sample, repeat, record in rows:
            store.add_collective(collection, sample, repeat, record)


def test_written_rows_are_read(tmp_path: Path) -> None:
    fill(tmp_path, row(4), row(2), row(2, repeat=1))
    table = read_collectives(tmp_path)
    assert table.schema.equals(schema())
    assert keys_of(table) == [(2, 0), (2, 1), (4, 0)]
    first_row = table.to_pylist()[0]
    assert first_row.pop("measured_at").tzinfo is not None
    assert first_row == {
        "sample": 2,
        "repeat": 0,
        "kind": "all_to_all",
        "world": 2,
        "batch_size": 8,
        "dims": [4, 12],
        "delays_ms": [0.0, 1.5],
        **TIMES,
        "runs": 10,
        "backend": "gloo",
    }
    assert step_ms(table).tolist() == [5.0, 5.0, 5.0]


def test_other_kinds_and_skipped_samples_of_older_stores_are_left_out(tmp_path: Path) -> None:
    (_, _, other), (_, _, skipped) = row(2), row(3)
    fill(tmp_path, row(1), row(1, repeat=1), (2, 0, other | {"kind": "all_gather", "sent_intra": [1, 2]}))
    fill(tmp_path, (3, 0, skipped | {"runs": 0, "forward_ms": [], "backward_ms": []}))
    assert keys_of(read_collectives(tmp_path)) == [(1, 0), (1, 1)]
    summary = summarise(tmp_path, 3, 1.0)
    assert (summary.samples, summary.measured, summary.repeat_mean) == (1, 3, 0.0)


def test_kernels_and_collectives_share_a_store(tmp_path: Path) -> None:
    with SampleStore(tmp_path, FBGEMM) as kernels:
        kernels.add(job(1, "k"), visit())
    with pytest.raises(InvalidInput, match="holds no all-to-alls"):
        read_collectives(tmp_path)
    fill(tmp_path, row(1), row(2))
    assert keys_of(read_collectives(tmp_path)) == [(1, 0), (2, 0)]
    assert read_samples(tmp_path)["label"].to_pylist() == ["k"]


def test_a_store_of_collectives_has_no_samples(tmp_path: Path) -> None:
    fill(tmp_path, row(1))
    with pytest.raises(InvalidInput, match="holds no readable samples"):
        read_samples(tmp_path)


def test_collections_and_machines_are_distinguished(tmp_path: Path) -> None:
    fill(tmp_path, row(0), row(3))
    fill(tmp_path, row(0), row(0), row(1), collection="d")  # each once
    assert keys_of(read_collectives(tmp_path)) == [(0, 0), (3, 0), (4, 0), (5, 0)]
    fill(tmp_path, row(7), hardware=THERE)
    with pytest.raises(InvalidInput, match="several kinds of hardware.*abacus.*slide rule"):
        read_collectives(tmp_path)
    assert read_collectives(tmp_path, hardware=FBGEMM).num_rows == 4  # the kernel backend does not matter
    assert keys_of(read_collectives(tmp_path, hardware=THERE)) == [(7, 0)]
    assert read_collectives(tmp_path, allow_other_hardware=True).num_rows == 5


@pytest.mark.parametrize("text", ["[]", "{", '{"dims": "many"}', "1"])
def test_impossible_rows_are_reported(tmp_path: Path, text: str) -> None:
    fill(tmp_path, row(1))
    with SampleStore(tmp_path, GLOO, MACHINE) as store:
        store._db.execute("UPDATE collectives SET document = ?", (text,))
    with pytest.raises(InvalidInput, match="is damaged"):
        read_collectives(tmp_path)
