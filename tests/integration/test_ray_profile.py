"""Logs profiled by the workers of a real Ray cluster on this machine, some of which are killed."""

from __future__ import annotations

import os
import signal
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.processes import named
from tests.ray_cluster import needs_ray

from shardwright.cluster import Cluster
from shardwright.errors import InvalidInput
from shardwright.workload.profile import ProfileResult, profile_logs
from shardwright.workload.profile.counting import no_state

pytestmark = [needs_ray, pytest.mark.slow]

ROWS = 1_200_000
SKETCH_BYTES = 28 * 3 * 20_000


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two columns of ids, some counted exactly and some not, and one of lists, in 24 row groups."""
    rng = np.random.default_rng(0)
    path = tmp_path_factory.mktemp("logs") / "log.parquet"
    lengths = rng.integers(0, 5, ROWS)
    offsets = pa.array(np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32))
    columns = {
        "user": rng.integers(0, 5_000, ROWS),
        "item": (rng.zipf(1.1, ROWS) % 3_000_000).astype(np.int64),
        "tags": pa.ListArray.from_arrays(offsets, pa.array(rng.integers(0, 80_000, int(lengths.sum())))),
    }
    pq.write_table(pa.table(columns), path, row_group_size=ROWS // 24)
    return path


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shardwright.workload.profile.readers.LEAST_BYTES", 1 << 20)


def plain(profile: ProfileResult) -> dict[str, Any]:
    """All counts, as comparable values."""
    sketches = {
        name: {field.name: np.asarray(getattr(column.sketch, field.name)).tolist() for field in fields(column.sketch)}
        for name, column in profile.columns.items()
    }
    maps = {name: rank_map.hottest.tolist() for name, rank_map in profile.rank_maps().items()}
    tables = [(table.name, table.rows, table.pooling, table.access.share.tolist()) for table in profile.tables()]
    return {"sketches": sketches, "maps": maps, "tables": tables, "notes": profile.notes()}


def test_the_profile_is_the_same_bits_though_workers_are_killed(cluster: Cluster, log: Path) -> None:
    alone = profile_logs(log, sketch_bytes=SKETCH_BYTES)
    killed: list[int] = []
    told: list[int] = []

    def kill_once(lookups: int, total: int | None) -> None:
        """Kill the workers when the first part is done, whether or not they have begun the next one."""
        told.append(lookups)
        if not killed:
            killed.extend(named(os.getpid(), "ray::StatefulWorker"))
            for pid in killed:
                os.kill(pid, signal.SIGKILL)

    with cluster.pool(no_state) as pool:
        together = profile_logs(log, sketch_bytes=SKETCH_BYTES, pool=pool, progress=kill_once)
        assert killed
        assert len(told) > 4
        assert told[-1] == together.lookups
        assert plain(together) == plain(alone)
        exact = {name: column.sketch.exact for name, column in together.columns.items()}
        assert exact == {"user": True, "item": False, "tags": False}


def test_a_worker_makes_the_complaint_that_this_process_makes(
    cluster: Cluster, log: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    bad = pa.table({"user": [1, 2, -3], "item": [1, 2, 3], "tags": pa.array([[1], [2], [3]], pa.list_(pa.int64()))})
    pq.write_table(bad, "bad.parquet")
    paths = [log, Path("bad.parquet")]
    with pytest.raises(InvalidInput) as alone:
        profile_logs(paths, columns=["user"])
    with cluster.pool(no_state) as pool:
        with pytest.raises(InvalidInput) as by_worker:
            profile_logs(paths, columns=["user"], pool=pool)
        assert "bad.parquet: column 'user': id -3" in profile_logs(paths, pool=pool).left_out["user"]
    assert str(by_worker.value) == str(alone.value)
    assert str(by_worker.value).startswith("bad.parquet: column 'user': id -3 is negative")
