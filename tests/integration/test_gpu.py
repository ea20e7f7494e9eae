"""The same on a real GPU; skipped without one. Needs the measuring packages and pytest only."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import pytest
import torch

from shardwright.measure.checks import copy_times, environment, problems
from shardwright.measure.collect import collect
from shardwright.measure.fused import draw_batch_on
from shardwright.measure.kernel_checks import check_kernels, unwritten_is_nan
from shardwright.measure.samples import read_samples
from shardwright.measure.timing import CudaClock, Steady, TimingPolicy, time_parts
from shardwright.sharding.work import ShardWork
from shardwright.task.access import AccessProfile

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device"),
]


def test_the_machine_fits_together() -> None:
    pytest.importorskip("fbgemm_gpu", reason="FBGEMM is not installed")
    assert problems(environment("cuda", "fbgemm")) == []


@pytest.mark.parametrize("backend", ["fbgemm", "embedding_bag"])
def test_the_kernels_are_right(backend: str) -> None:
    if backend == "fbgemm":
        pytest.importorskip("fbgemm_gpu", reason="FBGEMM is not installed")
    assert [check.name for check in check_kernels("cuda", backend, seed=1) if not check.passed] == []


def test_unwritten_values_are_nan() -> None:
    with unwritten_is_nan():
        tensors = [
            torch.empty(size, dtype=dtype, device="cuda") for size in (3, 10**6) for dtype in (torch.float, torch.half)
        ]
    assert all(bool(tensor.isnan().all()) for tensor in tensors)


def test_the_clock_times_the_device_and_not_the_host() -> None:
    device = torch.device("cuda")
    clock = CudaClock(device)
    small = torch.zeros(1000, device=device)

    def sluggish(_: int) -> None:
        small.add_(1)
        time.sleep(0.002)  # the host is late with the second kernel, the head start makes up for it
        small.add_(1)

    timing = time_parts([sluggish], clock, TimingPolicy("median", warm_up=3, passes=5, runs=5), Steady())
    assert timing.parts_ms[0] < 1.0


def test_large_copies_are_slower_in_proportion() -> None:
    small, large = copy_times("cuda", (2**28, 2**30))
    assert 3 < large.ms / small.ms < 5


def test_batches_follow_their_profiles() -> None:
    works = [ShardWork(10**6, 8, 1024, 200_000.0, True, AccessProfile.zipf(10**6, s)) for s in (0.0, 0.9, 1.4)]
    batch = draw_batch_on(works, [1, 2, 3], torch.device("cuda"))
    for work, ids in zip(works, batch.indices.split(200_000), strict=True):
        expected = work.access.distinct_rows(200_000)
        assert abs(ids.unique().numel() - expected) < 5 * np.sqrt(expected)
    assert int(batch.offsets[-1]) == 600_000


def test_a_small_collection(tmp_path: Path) -> None:
    pytest.importorskip("fbgemm_gpu", reason="FBGEMM is not installed")
    summary = collect(tmp_path, samples=12, device="cuda", batch_sizes=(4096,), arena_bytes=2 * 10**9)
    assert (summary.samples, summary.failed) == (12, 0), summary.failure
    table = read_samples(tmp_path)
    assert set(table["device_kind"].to_pylist()) == {"cuda"}
    assert min(table["forward_ms"].to_pylist()) > 0
