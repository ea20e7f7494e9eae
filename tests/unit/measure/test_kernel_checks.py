from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from shardwright.errors import InvalidInput, MeasurementFailed
from shardwright.measure import embedding_bag
from shardwright.measure import kernel_checks as module
from shardwright.measure.backend import Arena, FusedCall, FusedInput, KernelGroup, kernel_groups
from shardwright.measure.backends import load_backend
from shardwright.measure.kernel_checks import LookupsOfTable, check_kernels, check_outputs, check_views
from shardwright.sharding.work import ShardWork
from shardwright.task.access import AccessProfile


class Spoilt:
    """A backend whose calls are right but for one thing."""

    name = "spoilt"

    def __init__(self, fault: str) -> None:
        self.fault = fault

    def build(self, group: KernelGroup, optimizer: str, arena: Arena, learning_rate: float = 0.1) -> FusedCall:
        call: Any = load_backend("embedding_bag").build(group, optimizer, arena, learning_rate)
        forward, backward = call.forward, call.backward

        def spoilt_forward(batch: FusedInput) -> Sequence[torch.Tensor]:
            self.right = list(forward(batch))
            self.scratch = [torch.zeros_like(output) for output in self.right * 3]  # takes what was freed before
            return [_all_but_the_last(output) for output in self.right] if self.fault == "unwritten" else self.right

        def spoilt_backward(outputs: Sequence[torch.Tensor], gradients: Sequence[torch.Tensor]) -> None:
            scale = 1.5 if self.fault == "gradient" else 1.0
            backward(self.right, [gradient * scale for gradient in gradients])
            if self.fault == "overrun":
                with torch.no_grad():
                    for weights in call.weights():
                        weights.mul_(1 + 2 * torch.finfo(weights.dtype).eps)
            if self.fault == "state" and call.state():
                call.state()[0][0].mul_(1.01)

        call.forward, call.backward = spoilt_forward, spoilt_backward
        return call  # type: ignore[no-any-return]


def _all_but_the_last(output: torch.Tensor) -> torch.Tensor:
    """A tensor like a call's output, made as kernels make theirs, in which the last element is not written."""
    made = torch.empty_like(output.detach())
    made.view(-1)[:-1] = output.detach().view(-1)[:-1]
    return made


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["fbgemm", "embedding_bag"])
@settings(max_examples=2)
@given(seed=st.integers(0, 2**31 - 1))
def test_the_kernels_of_this_machine_are_right(backend: str, seed: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "OPTIMIZERS", ("sgd", "rowwise_adagrad", "adagrad"))  # all of FBGEMM's on CPUs
        checks = check_kernels("cpu", backend, seed=seed, samples=48)
    assert [check.name for check in checks if not check.passed] == []
    names = " ".join(check.name for check in checks)
    for part in ("sgd, fp32, pooled", "rowwise_adagrad, fp16, sequences", "9 tables, dim 4–256"):
        assert part in names


@pytest.mark.parametrize(
    ("fault", "wrong"), [("unwritten", 20), ("gradient", 20), ("overrun", 8), ("state", 10), ("", 0)]
)
def test_wrong_kernels_are_found(monkeypatch: pytest.MonkeyPatch, fault: str, wrong: int) -> None:
    monkeypatch.setattr(module, "load_backend", lambda name: Spoilt(fault))
    failed = [check for check in check_kernels("cpu", "spoilt", seed=1, samples=48) if not check.passed]
    assert len(failed) >= wrong if wrong else not failed


def test_backward_runs_as_it_is_measured_and_so_does_what_follows(monkeypatch: pytest.MonkeyPatch) -> None:
    backward, seen = embedding_bag.EmbeddingBagCall.backward, []

    def watched(self: Any, *given: Any) -> None:
        seen.append(torch.are_deterministic_algorithms_enabled())
        backward(self, *given)

    monkeypatch.setattr(embedding_bag.EmbeddingBagCall, "backward", watched)
    check_kernels("cpu", "embedding_bag", seed=1, samples=8)
    assert set(seen) == {False}
    assert not torch.are_deterministic_algorithms_enabled()


def test_settings_are_restored_if_forward_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    memory: Any = torch.utils.deterministic
    monkeypatch.setattr(memory, "fill_uninitialized_memory", False)
    with pytest.raises(IndexError), module.unwritten_is_nan():  # noqa: PT012
        assert torch.isnan(torch.empty(1000)).all()
        raise IndexError
    assert not torch.are_deterministic_algorithms_enabled()
    assert not memory.fill_uninitialized_memory


OWN = "shardwright.measure.embedding_bag:EmbeddingBagBackend"  # named as a backend of the user's own


@pytest.mark.slow
@settings(max_examples=2)
@given(st.integers(0, 2**31 - 1))
def test_a_backend_of_ones_own_is_checked_with_every_optimizer(seed: int) -> None:
    checks = check_kernels("cpu", OWN, seed=seed, samples=48)
    assert [check.name for check in checks if not check.passed or check.refused] == []
    assert {check.name.split(",")[0] for check in checks} == {"sgd", "rowwise_adagrad", "adagrad", "adam"}


@pytest.mark.slow
@pytest.mark.parametrize("optimizer", ["adagrad", "adam"])
def test_wrong_steps_of_the_other_optimizers_are_found(monkeypatch: pytest.MonkeyPatch, optimizer: str) -> None:
    right = embedding_bag._DIRECTIONS[optimizer]
    monkeypatch.setitem(embedding_bag._DIRECTIONS, optimizer, lambda *given: 1.01 * right(*given))
    wrong = {check.name.split(",")[0] for check in check_kernels("cpu", OWN, seed=1, samples=48) if not check.passed}
    assert wrong == {optimizer}


def test_an_own_backend_may_refuse_calls_and_ours_may_not(monkeypatch: pytest.MonkeyPatch) -> None:
    build = embedding_bag.EmbeddingBagBackend.build

    def some(self: Any, group: KernelGroup, optimizer: str, arena: Arena, learning_rate: float = 0.1) -> Any:
        if group.dtype == "fp16":
            raise MeasurementFailed("no fp16 here")
        return build(self, group, optimizer, arena, learning_rate)

    monkeypatch.setattr(embedding_bag.EmbeddingBagBackend, "build", some)
    checks = check_kernels("cpu", OWN, seed=1, samples=48)
    assert all(check.passed for check in checks)
    assert {check.refused for check in checks if "fp16" in check.name} == {"no fp16 here"}
    assert {check.refused for check in checks if "fp32" in check.name} == {""}
    with pytest.raises(MeasurementFailed, match="no fp16 here"):
        check_kernels("cpu", "embedding_bag", seed=1, samples=48)


@pytest.mark.parametrize("method", ["build", "forward", "backward", "state"])
def test_an_error_in_a_kernel_is_the_fault_of_its_call(monkeypatch: pytest.MonkeyPatch, method: str) -> None:
    def broken(self: Any, *given: Any, **named: Any) -> Any:
        raise IndexError("row 7 of 5\nand more")

    owner = embedding_bag.EmbeddingBagBackend if method == "build" else embedding_bag.EmbeddingBagCall
    monkeypatch.setattr(owner, method, broken)
    checks = check_kernels("cpu", OWN, seed=1, samples=48)
    assert {check.fault for check in checks} == {"build: " * (method == "build") + "IndexError: row 7 of 5"}
    assert not any(check.passed for check in checks)


def test_the_reference_agrees_with_autograd() -> None:
    works = [ShardWork(30, 8, 6, 20.0, True, AccessProfile.zipf(30, 1.0)) for _ in range(2)]
    group = kernel_groups(works)[0]
    offsets = torch.tensor([0, 2, 2, 5, 6, 9, 10, 11, 13, 16, 16, 18, 20])
    batch = FusedInput(torch.randint(30, (20,), generator=torch.Generator().manual_seed(0)), offsets)
    weights = [torch.randn(30, 8, dtype=torch.float64) for _ in works]
    lookups = module.lookups_of(group, batch)
    assert [of_table.ids.numel() for of_table in lookups] == [10, 10]
    outputs = module.looked_up(group, weights, lookups)
    for table, (output, of_table) in enumerate(zip(outputs, lookups, strict=True)):
        leaf = weights[table].clone().requires_grad_()
        starts = offsets[table * 6 : table * 6 + 6] - offsets[table * 6]
        expected = torch.nn.functional.embedding_bag(of_table.ids, leaf, starts, mode="sum")
        torch.testing.assert_close(output, expected.detach())
        gradient = torch.randn_like(expected)
        expected.backward(gradient)
        after, _ = module.updated("sgd", weights[table], [], of_table, gradient, pooled=True, rate=0.5)
        torch.testing.assert_close(after, weights[table] - 0.5 * leaf.grad)


def group(*, pooled: bool = True) -> KernelGroup:
    dims = (8, 12) if pooled else (8, 8)
    (kernel_group,) = kernel_groups([ShardWork(30, dim, 6, 20.0, pooled, AccessProfile.zipf(30, 1.0)) for dim in dims])
    return kernel_group


WEIGHTS = [torch.zeros(30, 8), torch.zeros(30, 12)]
ROWS = [torch.zeros(30), torch.zeros(30)]


@pytest.mark.parametrize(
    ("optimizer", "weights", "state", "says"),
    [
        ("sgd", WEIGHTS[:1], [], r"weights\(\) has 1 entries, must have 2: a tensor for each table"),
        ("sgd", WEIGHTS[::-1], [], r"weights\(\)\[0\] has the shape \(30, 12\), must have \(30, 8\): \(rows, dim\)"),
        ("sgd", [table.half() for table in WEIGHTS], [], "is of torch.float16, must be of torch.float32"),
        ("sgd", WEIGHTS, [ROWS], r"state\(\) has 1 entries, must have 0: a list for each kind of state that sgd has"),
        ("adam", WEIGHTS, [WEIGHTS], r"state\(\) has 1 entries, must have 2"),
        ("rowwise_adagrad", WEIGHTS, [ROWS[:1]], r"state\(\)\[0\] has 1 entries, must have 2"),
        ("rowwise_adagrad", WEIGHTS, [WEIGHTS], r"must have \(30,\): \(rows,\)"),
        ("adagrad", WEIGHTS, [ROWS], r"must have \(30, 8\): \(rows, dim\)"),
    ],
)
def test_wrong_views_are_reported(optimizer: str, weights: list[Any], state: list[Any], says: str) -> None:
    call: Any = SimpleNamespace(weights=lambda: weights, state=lambda: state)
    with pytest.raises(InvalidInput, match=says):
        check_views(group(), optimizer, call)


LOOKUPS = [
    LookupsOfTable(torch.zeros(size, dtype=torch.int64), torch.zeros(size, dtype=torch.int64)) for size in (5, 3)
]


@pytest.mark.parametrize(
    ("pooled", "shapes", "says"),
    [
        (True, [(6, 8), (6, 12)], None),
        (True, [(6, 20)], None),
        (False, [(5, 8), (3, 8)], None),
        (False, [(8, 8)], None),
        (True, [(20, 6)], r"the one output of forward has the shape \(20, 6\), must have \(6, 20\)"),
        (True, [(6, 8), (6, 12), (6, 4)], "forward has 3 entries, must have 2"),
        (True, [(6, 8), (6, 8)], r"output 1 of forward has the shape \(6, 8\), must have \(6, 12\)"),
        (False, [(3, 8), (5, 8)], r"output 0 of forward .* must have \(5, 8\): \(lookups, dim\)"),
        (False, [(6, 8)], r"must have \(8, 8\): \(n, dim\)"),
    ],
)
def test_the_shapes_of_outputs(pooled: bool, shapes: list[tuple[int, int]], says: str | None) -> None:
    outputs = [torch.zeros(shape) for shape in shapes]
    with nullcontext() if says is None else pytest.raises(InvalidInput, match=says):
        check_outputs(group(pooled=pooled), LOOKUPS, outputs)
