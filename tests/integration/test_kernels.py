"""The backends' kernels against a float64 numpy reference, on poisoned memory."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from shardwright.errors import MeasurementFailed
from shardwright.measure.backend import EPSILON, Arena, FusedCall, FusedInput, KernelGroup, fill_randomly, kernel_groups
from shardwright.measure.backends import load_backend
from shardwright.measure.fused import DeviceCalls, fused_input
from shardwright.sharding.work import ShardWork
from shardwright.task.access import AccessProfile

CPU = torch.device("cpu")
RATE = 0.1
SAMPLES = 24
CASES = [
    *(("fbgemm", optimizer) for optimizer in ("sgd", "rowwise_adagrad", "adagrad")),
    *(("embedding_bag", optimizer) for optimizer in ("sgd", "rowwise_adagrad", "adagrad", "adam")),
]


def work(
    rows: int, dim: int, pooling: float, *, pooled: bool = True, dtype: str = "fp32", features: int = 1
) -> ShardWork:
    access, shares = AccessProfile.zipf(rows, 1.1), (1 / features,) * features
    return ShardWork(rows, dim, SAMPLES, pooling * SAMPLES, pooled, access, dtype, feature_shares=shares)  # type: ignore[arg-type]


def poisoned_arena() -> Arena:
    """An arena full of NaN, and an allocator whose next blocks are full of NaN."""
    arena = Arena(2**20, CPU)
    arena.take(2**18, torch.float32).fill_(float("nan"))
    arena.reset()
    for size in (64, 1_000, 4_000, 16_000):
        torch.full((size,), float("nan"))
    return arena


def randomise(call: FusedCall, random: torch.Generator) -> tuple[list[np.ndarray], list[list[np.ndarray]]]:
    """Random weights and (positive) state; returned in float64."""
    for weights in call.weights():
        weights.copy_(torch.randn(weights.shape, generator=random))
    for kind in call.state():
        for state in kind:
            state.copy_(torch.rand(state.shape, generator=random))
    return double(call.weights()), [double(kind) for kind in call.state()]


def double(tensors: list[torch.Tensor]) -> list[np.ndarray]:
    return [tensor.double().numpy().copy() for tensor in tensors]


def lookups_of(group: KernelGroup, batch: FusedInput) -> list[tuple[np.ndarray, np.ndarray]]:
    """(ids, bag of each id) by table."""
    ids, offsets = batch.indices.numpy(), batch.offsets.numpy()
    tables, first = [], 0
    for one in group.works:
        bounds = offsets[first : first + one.bags + 1]
        tables.append((ids[bounds[0] : bounds[-1]], np.repeat(np.arange(one.bags), np.diff(bounds))))
        first += one.bags
    return tables


def reference_forward(group: KernelGroup, weights: list[np.ndarray], batch: FusedInput) -> list[np.ndarray]:
    outputs = []
    for one, table, (ids, samples) in zip(group.works, weights, lookups_of(group, batch), strict=True):
        if group.pooled:
            summed = np.zeros((one.bags, table.shape[1]))
            np.add.at(summed, samples, table[ids])
            outputs.append(summed)
        else:
            outputs.append(table[ids])
    return outputs


def reference_update(
    optimizer: str, weights: np.ndarray, state: list[np.ndarray], gradient: np.ndarray
) -> tuple[np.ndarray, list[np.ndarray]]:
    """New weights and state for the `(rows, dim)` gradient of all weights; rows without gradient keep theirs."""
    touched = (gradient != 0).any(axis=1)
    if optimizer == "sgd":
        return weights - RATE * gradient, []
    if optimizer == "rowwise_adagrad":
        total = state[0] + (gradient**2).mean(axis=1)
        return weights - RATE * gradient / (np.sqrt(total) + EPSILON)[:, None], [total]
    if optimizer == "adagrad":
        total = state[0] + gradient**2
        return weights - RATE * gradient / (np.sqrt(total) + EPSILON), [total]
    first = np.where(touched[:, None], 0.9 * state[0] + 0.1 * gradient, state[0])
    second = np.where(touched[:, None], 0.999 * state[1] + 0.001 * gradient**2, state[1])
    step = np.where(touched[:, None], first / (np.sqrt(second) + EPSILON), 0.0)
    return weights - RATE * step, [first, second]


def split_by_table(group: KernelGroup, batch: FusedInput, outputs: list[torch.Tensor]) -> list[np.ndarray]:
    """The outputs of a call by table, however the backend lays them out."""
    by_table = len(outputs) == len(group.works)
    if by_table and (len(outputs) > 1 or len(outputs[0]) != SAMPLES):
        return double(outputs)
    if not group.pooled:
        return double(list(outputs[0].split([ids.size for ids, _ in lookups_of(group, batch)])))
    features = iter(outputs[0].split([w.dim for w in group.works for _ in w.feature_shares], dim=1))
    return double([torch.cat([next(features) for _ in w.feature_shares]) for w in group.works])


def check_against_reference(backend: str, optimizer: str, works: list[ShardWork], tolerance: float) -> None:
    group = kernel_groups(works)[0]
    arena = poisoned_arena()
    call = load_backend(backend).build(group, optimizer, arena, RATE)
    random = torch.Generator().manual_seed(3)
    weights, state = randomise(call, random)
    batch = fused_input(group, list(range(len(works))), CPU)
    outputs = list(call.forward(batch))
    found = split_by_table(group, batch, [output.detach() for output in outputs])
    for output, expected in zip(found, reference_forward(group, weights, batch), strict=True):
        np.testing.assert_allclose(output, expected, rtol=tolerance, atol=tolerance)
    gradients = [torch.randn(output.shape, generator=random).to(output.dtype) for output in outputs]
    call.backward(outputs, gradients)
    by_table = split_by_table(group, batch, gradients)
    for table, (ids, samples) in enumerate(lookups_of(group, batch)):
        whole = np.zeros_like(weights[table])
        np.add.at(whole, ids, by_table[table][samples] if group.pooled else by_table[table])
        expected, expected_state = reference_update(optimizer, weights[table], [kind[table] for kind in state], whole)
        after = call.weights()[table].double().numpy()
        np.testing.assert_allclose(after, expected, rtol=tolerance, atol=tolerance)
        untouched = np.setdiff1d(np.arange(len(whole)), ids)
        assert np.array_equal(after[untouched], weights[table][untouched])
        for kind, values in enumerate(expected_state):
            np.testing.assert_allclose(
                call.state()[kind][table].double().numpy(), values, rtol=tolerance, atol=tolerance
            )


@pytest.mark.parametrize(("backend", "optimizer"), CASES)
def test_pooled_kernels_match_the_reference(backend: str, optimizer: str) -> None:
    works = [work(50, 8, 3.4), work(1, 4, 1.0), work(300, 64, 0.5), work(7, 20, 12.0, features=3)]
    check_against_reference(backend, optimizer, works, 1e-4)


@pytest.mark.parametrize(("backend", "optimizer"), CASES)
def test_sequence_kernels_match_the_reference(backend: str, optimizer: str) -> None:
    works = [work(50, 16, 3.4, pooled=False, features=2), work(9, 16, 1.0, pooled=False)]
    check_against_reference(backend, optimizer, works, 1e-4)


@pytest.mark.parametrize("pooled", [True, False])
@pytest.mark.parametrize("backend", ["fbgemm", "embedding_bag"])
def test_a_single_table_of_several_features(backend: str, pooled: bool) -> None:
    check_against_reference(backend, "sgd", [work(50, 8, 3.4, pooled=pooled, features=3)], 1e-4)


@pytest.mark.parametrize("backend", ["fbgemm", "embedding_bag"])
def test_half_precision_weights(backend: str) -> None:
    check_against_reference(
        backend, "rowwise_adagrad", [work(50, 8, 3.4, dtype="fp16"), work(20, 32, 2, dtype="fp16")], 2e-2
    )


def test_kernels_write_nothing_outside_their_tables() -> None:
    arena = poisoned_arena()
    works = [work(50, 8, 3.4), work(300, 64, 0.5)]
    call = load_backend("fbgemm").build(kernel_groups(works)[0], "adagrad", arena, RATE)
    randomise(call, torch.Generator().manual_seed(0))
    taken = 2 * (50 * 8 + 300 * 64)
    batch = fused_input(kernel_groups(works)[0], [0, 1], CPU)
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
