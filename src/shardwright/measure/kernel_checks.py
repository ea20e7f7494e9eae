"""Check fused kernels against a plain float64 reference, with fresh random inputs and poisoned outputs for every kind of call."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import pairwise, product
from typing import Any

import numpy as np
import torch
import torch.utils.deterministic

from shardwright.errors import InvalidInput, MeasurementFailed, said
from shardwright.measure.backend import EPSILON, Arena, Backend, FusedCall, FusedInput, KernelGroup, kernel_groups
from shardwright.measure.backends import is_own, load_backend
from shardwright.measure.device_work import DeviceWork, arena_bytes
from shardwright.measure.fused import fused_inputs
from shardwright.sharding.work import ShardWork
from shardwright.task.access import AccessProfile

OPTIMIZERS = ("sgd", "rowwise_adagrad")
OPTIMIZERS_OF_OWN = (*OPTIMIZERS, "adagrad", "adam")
"""The optimizers that a user's own backend is checked with: all that samples may use."""

TOLERANCE = {"fp32": 1e-4, "fp16": 2e-3}
"""Largest allowed ‖found − reference‖ / ‖reference‖ of a table. In fp32, sums of many thousand gradients of both signs come near it.
Half-precision weights are rounded at random, by up to 2^-10 of their size."""

_RATE = 0.1
_SAMPLES = {"cpu": 512, "cuda": 4096}
_PAGE = 4096  # an arena gives whole pages
_BETA1, _BETA2 = 0.9, 0.999
_DTYPES = {"fp32": torch.float32, "fp16": torch.float16}
_BY_ROW = {"sgd": (), "rowwise_adagrad": (True,), "adagrad": (False,), "adam": (False, False)}
"""For each optimizer and kind of state: whether the state is one number per row (True) or per element."""


@dataclass(frozen=True)
class Check:
    """The result of checking one call.

    Attributes:
        name: description of the call.
        forward: relative error of the looked-up values.
        weights: relative error of the updated weights.
        state: relative error of the updated optimizer state; 0 without state.
        untouched: whether rows that no lookup reached kept every bit.
        tolerance: largest relative error that passes.
        forward_tolerance: largest error of the looked-up values that passes; these are usually fp32 for all types of weights.
        fault: the error that prevented the comparison, else empty.
        refused: why a user's own backend does not build this call, else empty. Such calls cannot be measured.
    """

    name: str
    forward: float
    weights: float
    state: float
    untouched: bool
    tolerance: float
    forward_tolerance: float
    fault: str = ""
    refused: str = ""

    @property
    def passed(self) -> bool:
        """Whether all errors are small and finite. A refused call passes too."""
        if self.fault or self.refused:
            return not self.fault
        right = self.forward <= self.forward_tolerance and max(self.weights, self.state) <= self.tolerance
        return self.untouched and bool(np.isfinite([self.forward, self.weights, self.state]).all()) and right


def check_kernels(device: str, backend: str, *, seed: int, samples: int | None = None) -> list[Check]:
    """Run every kind of fused call once: optimizers × weight types × pooled or not, on tables of many shapes.

    Args:
        device: "cpu" or "cuda".
        backend: name of the backend. One of the user's own may refuse calls by raising `MeasurementFailed` in `build`.
        seed: seed of the inputs; take a new one each time.
        samples: bags of each table; by default 512, on a GPU 4,096.
    """
    bags, own = samples or _SAMPLES[device], is_own(backend)
    where, loaded = torch.device(device), load_backend(backend)
    kinds = product(OPTIMIZERS_OF_OWN if own else OPTIMIZERS, ("fp32", "fp16"), (True, False))
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="TBE B200 optimization")  # FBGEMM 1.6 tells every kernel's tuning
        return [
            _outcome(loaded, group, optimizer, _poisoned_arena(group, optimizer, where), [seed, number], may_refuse=own)
            for number, (optimizer, dtype, pooled) in enumerate(kinds)
            for group in kernel_groups(_works(bags, dtype, pooled, np.random.default_rng([seed, number])))
        ]


def _outcome(
    backend: Backend, group: KernelGroup, optimizer: str, arena: Arena, seed: Sequence[int], *, may_refuse: bool
) -> Check:
    """Check a group; an error on the way becomes part of the result."""
    unknown = float("nan")
    name = f"{optimizer}, {group.dtype}, {'pooled' if group.pooled else 'sequences'}, {_widths(group)}"
    nothing = Check(name, unknown, unknown, unknown, False, TOLERANCE[group.dtype], TOLERANCE["fp32"])
    try:
        call = backend.build(group, optimizer, arena, _RATE)
    except MeasurementFailed as error:
        if not may_refuse:
            raise
        return replace(nothing, refused=str(error))
    except Exception as error:
        return replace(nothing, fault=f"build: {said(error)}")
    try:
        return _checked(call, group, optimizer, arena.device, seed, nothing)
    except Exception as error:  # record the error, so that the other calls are still checked
        return replace(nothing, fault=said(error))


def _works(samples: int, dtype: str, pooled: bool, rng: np.random.Generator) -> list[ShardWork]:
    """Tables with dims from 4 to 256, one row to many, empty bags to long ones, one of them of three features.

    A sequence call has one dim, so there are fewer dims.
    """
    dims = (4, 8, 12, 20, 32, 64, 100, 128, 256) if pooled else (4, 64, 64, 128, 128, 256)
    works = []
    for place, dim in enumerate(dims):
        rows = 1 if place == 1 else int(np.exp(rng.uniform(np.log(5), np.log(20_000))))
        pooling = float(np.exp(rng.uniform(np.log(0.5), np.log(40))))
        access = AccessProfile.zipf(rows, float(rng.uniform(0, 1.4)))
        shares = (0.5, 0.2, 0.3) if place == 2 else (1.0,)
        works.append(ShardWork(rows, dim, samples, pooling * samples, pooled, access, feature_shares=shares))
    return [replace(work, dtype=dtype) for work in works]  # type: ignore[arg-type]


def _poisoned_arena(group: KernelGroup, optimizer: str, device: torch.device) -> Arena:
    """An arena for the tables of a group, filled with NaN to reveal unwritten elements."""
    pages = -(-arena_bytes([DeviceWork(group.works, (), optimizer)]) // _PAGE)
    arena = Arena(pages * _PAGE, device)
    arena.take(arena.size_bytes // 4, torch.float32).fill_(float("nan"))
    arena.reset()
    return arena


def _checked(
    call: FusedCall, group: KernelGroup, optimizer: str, device: torch.device, seed: Sequence[int], named: Check
) -> Check:
    """Run a group once, forward and backward, and compare it with the reference."""
    check_views(group, optimizer, call)
    random = torch.Generator(device).manual_seed(seed[0] + 1000 * seed[1])
    before, state = _randomise(call, random)
    (batch,) = fused_inputs(group, [(*seed, table) for table in range(len(group.works))], device, 1)
    lookups = lookups_of(group, batch)
    expected = looked_up(group, before, lookups)
    with unwritten_is_nan():
        outputs = list(call.forward(batch))
    check_outputs(group, lookups, outputs)
    by_table = _by_table(group, lookups, [output.detach() for output in outputs])
    gradients = [torch.randn(output.shape, generator=random, device=device).to(output.dtype) for output in outputs]
    call.backward(outputs, gradients)
    steps = [
        updated(optimizer, *now, pooled=group.pooled, rate=_RATE)
        for now in zip(before, state, lookups, _by_table(group, lookups, gradients), strict=True)
    ]
    after = [weights.double() for weights in call.weights()]
    states_after = [kind.double() for kinds in call.state() for kind in kinds]
    return replace(
        named,
        forward=_error(by_table, expected),
        weights=_error(after, [weights for weights, _ in steps]),
        state=_error(
            states_after, [table for kind in zip(*(kinds for _, kinds in steps), strict=True) for table in kind]
        ),
        untouched=all(map(_kept, before, after, lookups)),
        forward_tolerance=TOLERANCE["fp16" if outputs[0].dtype == torch.float16 else "fp32"],
    )


@contextmanager
def unwritten_is_nan() -> Iterator[None]:
    """Fill every tensor that torch allocates in the block with NaN, also in C++ kernels, to reveal unwritten elements.

    Use it for the forward pass only: in the backward pass it would make FBGEMM take another algorithm than the measured one.
    """
    memory: Any = torch.utils.deterministic  # torch makes attributes of this module at run time
    filled = memory.fill_uninitialized_memory
    mode, warns = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*determinis")  # operators without a deterministic algorithm warn
        torch.use_deterministic_algorithms(True, warn_only=True)
        memory.fill_uninitialized_memory = True
        try:
            yield
        finally:
            torch.use_deterministic_algorithms(mode, warn_only=warns)
            memory.fill_uninitialized_memory = filled


def _randomise(call: FusedCall, random: torch.Generator) -> tuple[list[torch.Tensor], list[list[torch.Tensor]]]:
    """Set random weights and positive state; return both in float64, the state by table."""
    for weights in call.weights():
        weights.copy_(torch.randn(weights.shape, generator=random, device=weights.device))
    for kind in call.state():
        for state in kind:
            state.copy_(torch.rand(state.shape, generator=random, device=state.device))
    tables = [weights.double() for weights in call.weights()]
    return tables, [[kind[table].double() for kind in call.state()] for table in range(len(tables))]


def _by_table(
    group: KernelGroup, lookups: Sequence[LookupsOfTable], outputs: Sequence[torch.Tensor]
) -> list[torch.Tensor]:
    """Outputs or gradients by table in float64, from any layout that a backend may use."""
    if _is_joined(group, outputs) and not group.pooled:
        outputs = outputs[0].split([of_table.ids.numel() for of_table in lookups])
    elif _is_joined(group, outputs):
        widths = [len(work.feature_shares) * work.dim for work in group.works]
        parts = zip(group.works, outputs[0].split(widths, dim=1), strict=True)
        outputs = [torch.cat(part.split(work.dim, dim=1)) for work, part in parts]
    return [output.double() for output in outputs]


def _is_joined(group: KernelGroup, outputs: Sequence[torch.Tensor]) -> bool:
    """Whether the outputs are one tensor for all features, not one for each table."""
    return len(outputs) == 1 and (len(group.works) > 1 or len(outputs[0]) == group.samples)


def _error(computed: Sequence[torch.Tensor], expected: Sequence[torch.Tensor]) -> float:
    """‖computed − expected‖ / ‖expected‖ of the worst table; NaN if any table has a NaN."""
    errors = [
        float((actual - reference).norm() / reference.norm().clamp_min(1e-30))
        for actual, reference in zip(computed, expected, strict=True)
        if reference.numel()
    ]
    return float(np.max(errors)) if errors else 0.0


def _kept(before: torch.Tensor, after: torch.Tensor, lookups: LookupsOfTable) -> bool:
    """Whether the rows that were not looked up are unchanged."""
    kept = torch.ones(len(before), dtype=torch.bool, device=before.device)
    kept[lookups.ids] = False
    return torch.equal(before[kept], after[kept])


def _widths(group: KernelGroup) -> str:
    widths = sorted({work.dim for work in group.works})
    return f"{len(group.works)} tables, dim " + (f"{widths[0]}–{widths[-1]}" if len(widths) > 1 else f"{widths[0]}")


@dataclass(frozen=True)
class LookupsOfTable:
    """The lookups of one table.

    Attributes:
        ids: `(n,)` rows.
        bags: `(n,)` the bag of the table that each lookup belongs to.
    """

    ids: torch.Tensor
    bags: torch.Tensor


def lookups_of(group: KernelGroup, batch: FusedInput) -> list[LookupsOfTable]:
    """The lookups of each table of a group."""
    starts = batch.offsets[group.starts].tolist()
    sizes = batch.offsets.diff().split([work.bags for work in group.works])
    return [
        LookupsOfTable(batch.indices[start:stop], torch.arange(len(size), device=size.device).repeat_interleave(size))
        for size, (start, stop) in zip(sizes, pairwise(starts), strict=True)
    ]


def looked_up(
    group: KernelGroup, weights: Sequence[torch.Tensor], lookups: Sequence[LookupsOfTable]
) -> list[torch.Tensor]:
    """Per table, `(bags, dim)` sums (`(n, dim)` rows if not pooled) of `(rows, dim)` weights in float64."""
    if not group.pooled:
        return [table[of_table.ids] for table, of_table in zip(weights, lookups, strict=True)]
    return [
        table.new_zeros(work.bags, table.shape[1]).index_add_(0, of_table.bags, table[of_table.ids])
        for work, table, of_table in zip(group.works, weights, lookups, strict=True)
    ]


def updated(
    optimizer: str,
    weights: torch.Tensor,
    state: Sequence[torch.Tensor],
    lookups: LookupsOfTable,
    gradient: torch.Tensor,
    *,
    pooled: bool,
    rate: float,
) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """Weights and state of a table after one step, in float64; the gradients of a row are summed before the update ("exact").

    Args:
        optimizer: "sgd", "rowwise_adagrad", "adagrad" or "adam". Adam is as in a late step, when the bias corrections are 1, and updates
            only the rows looked up: state and weights of other rows stay.
        weights: `(rows, dim)`.
        state: by kind: nothing, `(rows,)` sums of mean squares, `(rows, dim)` sums of squares, or `(rows, dim)` first and second moments.
        lookups: the lookups.
        gradient: `(bags, dim)` gradients of the sums, or `(n, dim)` gradients of the rows if not pooled.
        pooled: whether rows were summed.
        rate: learning rate.
    """
    spread = gradient[lookups.bags] if pooled else gradient
    summed = torch.zeros_like(weights).index_add_(0, lookups.ids, spread)
    if optimizer == "sgd":
        return weights - rate * summed, []
    if optimizer == "adagrad":
        total = state[0] + summed.square()
        return weights - rate * summed / (total.sqrt() + EPSILON), [total]
    if optimizer == "adam":
        touched = torch.zeros(len(weights), 1, dtype=torch.bool, device=weights.device)
        touched[lookups.ids] = True
        first = torch.where(touched, _BETA1 * state[0] + (1 - _BETA1) * summed, state[0])
        second = torch.where(touched, _BETA2 * state[1] + (1 - _BETA2) * summed.square(), state[1])
        step = first / (second.sqrt() + EPSILON)
        return torch.where(touched, weights - rate * step, weights), [first, second]
    total = state[0] + summed.square().mean(dim=1)
    return weights - rate * summed / (total.sqrt() + EPSILON)[:, None], [total]


def check_views(group: KernelGroup, optimizer: str, call: FusedCall) -> None:
    """Check the views of weights and state.

    Raises:
        InvalidInput: a view is missing, or has a wrong shape or type.
    """
    weights = call.weights()
    _count("weights()", len(weights), len(group.works), "tensor for each table")
    for table, (tensor, work) in enumerate(zip(weights, group.works, strict=True)):
        _shape(f"weights()[{table}]", tensor, (work.rows, work.dim), "(rows, dim)")
        if tensor.dtype != _DTYPES[work.dtype]:
            raise InvalidInput(f"weights()[{table}] is of {tensor.dtype}, must be of {_DTYPES[work.dtype]}")
    state = call.state()
    _count("state()", len(state), len(_BY_ROW[optimizer]), f"list for each kind of state that {optimizer} has")
    for kind, (tensors, by_row) in enumerate(zip(state, _BY_ROW[optimizer], strict=True)):
        _count(f"state()[{kind}]", len(tensors), len(group.works), "tensor for each table")
        for table, (tensor, work) in enumerate(zip(tensors, group.works, strict=True)):
            shape, means = ((work.rows,), "(rows,)") if by_row else ((work.rows, work.dim), "(rows, dim)")
            _shape(f"state()[{kind}][{table}]", tensor, shape, means)


def check_outputs(group: KernelGroup, lookups: Sequence[LookupsOfTable], outputs: Sequence[torch.Tensor]) -> None:
    """Check the shapes of the outputs of a lookup.

    Raises:
        InvalidInput: an output has a wrong shape.
    """
    works, sizes = group.works, [of_table.ids.numel() for of_table in lookups]
    if _is_joined(group, outputs):
        width = sum(len(work.feature_shares) * work.dim for work in works)
        shape = (group.samples, width) if group.pooled else (sum(sizes), works[0].dim)
        means = "(samples, sum of the features' dims)" if group.pooled else "(n, dim)"
        _shape("the one output of forward", outputs[0], shape, means)
        return
    _count("forward", len(outputs), len(works), "output for each table, or one for all")
    for table, (output, work, size) in enumerate(zip(outputs, works, sizes, strict=True)):
        shape = (work.bags if group.pooled else size, work.dim)
        _shape(f"output {table} of forward", output, shape, "(bags, dim)" if group.pooled else "(lookups, dim)")


def _count(what: str, count: int, wanted: int, rule: str) -> None:
    if count != wanted:
        raise InvalidInput(f"{what} has {count} entries, must have {wanted}: a {rule}")


def _shape(what: str, tensor: torch.Tensor, wanted: tuple[int, ...], means: str) -> None:
    if tuple(tensor.shape) != wanted:
        raise InvalidInput(f"{what} has the shape {tuple(tensor.shape)}, must have {wanted}: {means}")
