from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from shardwright.errors import InvalidInput, MeasurementFailed
from shardwright.measure.collectives.collect import Collection, collect_collectives, measure_all, new_collection
from shardwright.measure.collectives.records import keys_of, read_collectives
from shardwright.measure.collectives.sampling import CollectiveSample
from shardwright.measure.collectives.timing import DeviceTimes, RunPolicy
from shardwright.measure.store import SampleStore
from shardwright.task import AccessProfile, Table

POOL = (Table("t", 1000, 16, 2.0, access=AccessProfile.uniform(1000)),)


def collection(folder: Path, samples: int, **changes: Any) -> Collection:
    return new_collection(folder, samples=samples, **{"world": 2, "batch_sizes": (64,), "pool": POOL, **changes})


class Script:
    """Measures samples by name: None for those that are given up, an exception for those that end it."""

    def __init__(self, events: dict[int, Any] | None = None) -> None:
        self.events, self.seen = events or {}, list[int]()

    def __call__(self, sample: CollectiveSample) -> DeviceTimes | None:
        self.seen.append(sample.sample)
        found = self.events.get(sample.sample, DeviceTimes((1.0, 1.0), (1.0, 1.0) if sample.dims else ()))
        if isinstance(found, BaseException):
            raise found
        return found  # type: ignore[no-any-return]


def run(folder: Path, samples: int, script: Script) -> int:
    wanted = collection(folder, samples)
    with wanted.open_store() as store:
        return measure_all(wanted, store, script, None)


def in_store(folder: Path) -> list[tuple[int, int]]:
    return keys_of(read_collectives(folder, skipped=True))


def test_every_20th_sample_is_repeated_and_nothing_is_measured_twice(tmp_path: Path) -> None:
    script = Script()
    assert run(tmp_path, 25, script) == 27
    assert script.seen.index(0, 1) == 11  # ten samples after the first time
    assert in_store(tmp_path) == sorted([(i, 0) for i in range(25)] + [(0, 1), (20, 1)])
    assert run(tmp_path, 25, script) == 0
    more = Script()
    assert run(tmp_path, 30, more) == 5
    assert more.seen == [25, 26, 27, 28, 29]


def test_samples_that_were_given_up_are_kept_and_not_tried_again(tmp_path: Path) -> None:
    assert run(tmp_path, 6, Script({2: None, 5: None})) == 5
    assert len(in_store(tmp_path)) == 7
    assert 2 not in read_collectives(tmp_path)["sample"].to_pylist()
    again = Script()
    assert run(tmp_path, 6, again) == 0
    assert again.seen == []


def test_a_machine_on_which_all_fails_does_not_use_up_samples(tmp_path: Path) -> None:
    script = Script({2: None, 3: None, 4: MeasurementFailed("five in a row")})
    with pytest.raises(MeasurementFailed, match="five in a row"):
        run(tmp_path, 6, script)
    assert in_store(tmp_path) == [(0, 0), (1, 0)]
    again = Script()
    assert run(tmp_path, 6, again) == 5
    assert again.seen == [2, 3, 4, 5, 0]


def test_ctrl_c_keeps_what_is_known(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, 6, Script({1: None, 2: KeyboardInterrupt()}))
    assert in_store(tmp_path) == [(0, 0), (1, 0)]


def test_a_row_is_on_disk_before_the_next_sample(tmp_path: Path) -> None:
    wanted = collection(tmp_path, 3)
    known: list[int] = []

    def measure(sample: CollectiveSample) -> DeviceTimes:
        if sample.sample:
            known.append(len(in_store(tmp_path)))
        return DeviceTimes((1.0, 1.0), ())

    with wanted.open_store() as store:
        measure_all(wanted, store, measure, lambda done, all_, _: known.append(-done))
    assert known == [-1, 1, -2, 2, -3, -4]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"samples": 0}, "samples is 0, must be at least 1"),
        ({"hosts": 3}, "hosts is 3, must be a divisor of the 2 ranks"),
        ({"hosts": 0}, "hosts is 0"),
        ({"device": "tpu"}, "device is 'tpu', must be 'cpu' or 'cuda'"),
    ],
)
def test_impossible_collections_are_refused_before_anything_is_made(
    tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(InvalidInput, match=message):
        collection(tmp_path / "store", **{"samples": 5, **changes})
    assert not (tmp_path / "store").exists()


@pytest.mark.parametrize("timeout", [0.0, -1.0, float("nan"), float("inf")])
def test_impossible_timeouts_are_refused(tmp_path: Path, timeout: float) -> None:
    with pytest.raises(InvalidInput, match="timeout is"):
        collect_collectives(collection(tmp_path / "store", 5), timeout_s=timeout)
    assert not (tmp_path / "store").exists()


@pytest.mark.parametrize("changes", [{"runs": 0}, {"warm_up": -1}, {"runs": 2**15}])
def test_impossible_numbers_of_runs_are_refused(changes: dict[str, int]) -> None:
    with pytest.raises(InvalidInput, match="runs"):
        RunPolicy(**changes)


def test_the_request_tells_collections_apart(tmp_path: Path) -> None:
    requests = [
        collection(tmp_path, 5, **changes).request() for changes in ({}, {"seed": 1}, {"world": 4}, {"hosts": 2})
    ]
    assert len({str(request) for request in requests}) == 4
    assert isinstance(collection(tmp_path, 5).open_store(), SampleStore)
