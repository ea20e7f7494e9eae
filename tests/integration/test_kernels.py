"""What kernels do to the memory around them, and what they refuse; `check_kernels` holds their results."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from shardwright.errors import MeasurementFailed
from shardwright.measure.backend import Arena, fill_randomly, kernel_groups
from shardwright.measure.backends import load_backend
from shardwright.measure.fused import DeviceCalls, fused_inputs
from shardwright.sharding.work import ShardWork
from shardwright.task.access import AccessProfile

CPU = torch.device("cpu")
RATE = 0.1
SAMPLES = 24


def work(rows: int, dim: int, pooling: float, *, pooled: bool = True) -> ShardWork:
    return ShardWork(rows, dim, SAMPLES, pooling * SAMPLES, pooled, AccessProfile.zipf(rows, 1.1))


def poisoned_arena() -> Arena:
    """An arena full of NaN, and an allocator whose next blocks are full of NaN."""
    arena = Arena(2**20, CPU)
    arena.take(2**18, torch.float32).fill_(float("nan"))
    arena.reset()
    for size in (64, 1_000, 4_000, 16_000):
        torch.full((size,), float("nan"))
    return arena


def test_kernels_write_nothing_outside_their_tables() -> None:
    arena = poisoned_arena()
    works = [work(50, 8, 3.4), work(300, 64, 0.5)]
    call = load_backend("fbgemm").build(kernel_groups(works)[0], "adagrad", arena, RATE)
    for tensor in (*call.weights(), *call.state()[0]):
        tensor.uniform_()
    taken = 2 * (50 * 8 + 300 * 64)
    (batch,) = fused_inputs(kernel_groups(works)[0], [0, 1], CPU, 1)
    outputs = call.forward(batch)
    call.backward(outputs, [torch.ones_like(outputs[0])])
    arena.reset()
    assert int((~arena.take(2**18, torch.float32).isnan()).sum()) == taken


def test_a_device_with_several_groups_runs_them_all() -> None:
    works = [
        work(50, 8, 3),
        work(60, 12, 2, pooled=False),
        work(60, 16, 2, pooled=False),
        ShardWork(40, 4, 6, 12.0, True, AccessProfile.uniform(40)),
    ]
    groups = kernel_groups(works)
    assert [group.members for group in groups] == [(0,), (1,), (2,), (3,)]
    calls = DeviceCalls(works, [1, 2, 3, 4], "sgd", load_backend("fbgemm"), Arena(2**20, CPU))
    calls.forward(0)
    assert [tuple(output.shape) for outputs in calls._outputs for output in outputs] == [
        (24, 8),
        (48, 12),
        (48, 16),
        (6, 4),
    ]
    calls.backward(0)


def test_repeated_runs_keep_the_arena_finite() -> None:
    arena = Arena(2**20, CPU)
    works = [work(50, 8, 30), work(300, 64, 5)]
    for optimizer in ("rowwise_adagrad", "sgd", "adagrad", "rowwise_adagrad"):
        arena.reset()
        calls = DeviceCalls(works, [1, 2], optimizer, load_backend("fbgemm"), arena)
        for run in range(30):
            calls.forward(run % calls.batches)
            calls.backward(run % calls.batches)
    arena.reset()
    values = arena.take(2**18, torch.float32)
    assert bool(values.isfinite().all())
    assert float(values.max()) < 1


def test_tables_that_fbgemm_cannot_run_raise_with_a_remedy() -> None:
    group = kernel_groups([work(50, 8, 3)])[0]
    with pytest.raises(MeasurementFailed, match="'adam' has no fused FBGEMM kernel on a CPU; use sgd"):
        load_backend("fbgemm").build(group, "adam", Arena(2**20, CPU))
    narrow = kernel_groups([replace(work(50, 8, 3), dtype="int8")])[0]
    with pytest.raises(MeasurementFailed, match="int8 weights have no backward kernel in FBGEMM"):
        load_backend("fbgemm").build(narrow, "sgd", Arena(2**20, CPU))
    with pytest.raises(MeasurementFailed, match="torch trains no int8 weights"):
        load_backend("embedding_bag").build(narrow, "sgd", Arena(2**20, CPU))
    odd = kernel_groups([work(50, 6, 3)])[0]
    with pytest.raises(MeasurementFailed, match="dim 6 is no multiple of 4"):
        load_backend("fbgemm").build(odd, "sgd", Arena(2**20, CPU))


def test_too_small_an_arena_raises_with_sizes() -> None:
    group = kernel_groups([work(5000, 128, 3)])[0]
    with pytest.raises(MeasurementFailed, match=r"need 2\.6 MB, the arena has 1\.0 MB; use a larger arena"):
        load_backend("fbgemm").build(group, "sgd", Arena(2**20, CPU))


def test_an_arena_larger_than_memory_is_refused() -> None:
    with pytest.raises(MeasurementFailed, match="are free on cpu; scale the tables down"):
        Arena(2**60, CPU)


def test_random_fills_are_good_weights_and_states() -> None:
    buffer = torch.zeros(100_003)
    fill_randomly(buffer)
    halves = buffer.view(torch.float16).float()
    assert 0.007 < float(halves.min()) < float(halves.max()) <= 0.25
    assert float(halves.std()) > 0.01
    assert bool((buffer > torch.finfo(torch.float32).tiny).all())
    assert float(buffer.max()) < 1e-6
