"""The storage of one rank: a weight matrix and optimizer state for each group of parts, and the initial weights."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import torch

from shardwright.arrays import Ints
from shardwright.errors import InvalidInput
from shardwright.runtime.bags import HeldBags, weighted_sums
from shardwright.runtime.kernels import FusedKernel, fuses
from shardwright.runtime.optimizers import Optimizer
from shardwright.runtime.placement import Placement
from shardwright.runtime.ranking import Ranking
from shardwright.runtime.wire import Rows
from shardwright.task.table import Table

InitialRows: TypeAlias = Callable[[Table, Ints], npt.NDArray[np.float32]]
"""From a table and `(n,)` ids to `(n, dim)` weights."""

_TYPES = {"fp32": torch.float32, "fp16": torch.float16}
_CHUNK_BYTES = 16 * 2**20


class Cut(NamedTuple):
    """Some rows of a range that a rank holds.

    Attributes:
        part: the part of a table.
        group: its group.
        number: the range.
        start: first row within the range.
        stop: row after the last one.
        first: slot of the range's first row.
    """

    part: int
    group: int
    number: int
    start: int
    stop: int
    first: int

    @property
    def rows(self) -> int:
        """Number of rows."""
        return self.stop - self.start

    @property
    def slots(self) -> slice:
        """Slots of the rows."""
        return slice(self.first + self.start, self.first + self.stop)


class Storage(torch.nn.Module):
    """Weights and optimizer state of one rank, and their kernels.

    Attributes:
        step: number of updates so far.
    """

    step: torch.Tensor

    def __init__(
        self, placement: Placement, rank: int, device: torch.device, optimizer: Optimizer, fused: bool, exact: bool
    ) -> None:
        super().__init__()
        self.placement, self.rank, self.optimizer, self.fused = placement, rank, optimizer, fused
        self._device, self._exact = device, exact
        rows = placement.rows_on(rank).tolist()
        self._kernels: list[FusedKernel | None] = []
        for number, (count, group) in enumerate(zip(rows, placement.groups, strict=True)):
            shape, kernel = (count, group.dim), None
            if fused and not exact and group.sums and not group.replicated and fuses(optimizer.name, *shape):
                kernel = FusedKernel(*shape, group.dtype, optimizer, device)
            weights = torch.zeros(shape, dtype=_TYPES[group.dtype], device=device) if kernel is None else kernel.weights
            self._kernels.append(kernel)
            self.register_parameter(f"weights_{number}", torch.nn.Parameter(weights, requires_grad=not fused))
            width = 1 if optimizer.by_row else group.dim
            for place, name in enumerate(optimizer.states):
                state = (
                    torch.zeros(count, width, dtype=torch.float32, device=device)
                    if kernel is None
                    else kernel.states[place]
                )
                self.register_buffer(f"{name}_{number}", state)
        self.register_buffer("step", torch.zeros((), dtype=torch.int64))

    @property
    def weights(self) -> list[torch.nn.Parameter]:
        """The weights of all groups."""
        return [getattr(self, f"weights_{group}") for group in range(len(self.placement.groups))]

    def __deepcopy__(self, memo: Any) -> Storage:
        """Copy rows and states; a kernel's own tensors cannot be copied, so the copy has new kernels."""
        copied = Storage(self.placement, self.rank, self._device, self.optimizer, self.fused, self._exact)
        pairs = zip((*self.parameters(), *self.buffers()), (*copied.parameters(), *copied.buffers()), strict=True)
        with torch.no_grad():
            for own, its in pairs:
                its.copy_(own).requires_grad_(own.requires_grad)
                memo[id(own)] = its  # an optimizer that is copied too has the copy's rows
        return copied

    def _apply(self, fn: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True) -> Storage:
        """Apply a conversion that keeps the tensors, which kernels share.

        Raises:
            InvalidInput: it would give others.
        """
        if any(
            fn(probe := tensor.detach().reshape(-1)[:0]) is not probe
            for tensor in (*self.parameters(), *self.buffers())
        ):
            raise InvalidInput(
                "the rows of ShardedEmbeddings keep their type and device, which Table.dtype and device= state; "
                "convert the other parts of the model"
            )
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        return self

    def state_dict(self, *, destination: Any = None, **_: Any) -> Any:
        """Give nothing: the enclosing module gives the tables."""
        return {} if destination is None else destination

    def _load_from_state_dict(self, *_: Any) -> None:
        """Load nothing."""

    def states(self, group: int) -> list[torch.Tensor]:
        """The optimizer states of a group, `(rows, width)` fp32 each, in the order of `Optimizer.states`."""
        return [getattr(self, f"{name}_{group}") for name in self.optimizer.states]

    def matrices(self, group: int) -> dict[str, torch.Tensor]:
        """The weights and optimizer state of a group, `(rows, width)` each, by name."""
        names = ("weights", *self.optimizer.states)
        return dict(zip(names, (self.weights[group].detach(), *self.states(group)), strict=True))

    def cuts(self, chunk_bytes: int = _CHUNK_BYTES, owned: bool = False) -> Iterator[Cut]:
        """Yield the rows held here, some at a time; with `owned` without those of other owners, so that all ranks yield each row once."""
        placement = self.placement
        mine = placement.held_by(self.rank)
        if owned:
            mine = mine[placement.owner[mine] == self.rank]
        for number, first in zip(mine.tolist(), placement.slots(mine, self.rank).tolist(), strict=True):
            part = int(placement.part_of_range[number])
            group, rows = int(placement.group_of[part]), int(placement.ranges[1, number])
            most = max(chunk_bytes // (4 * placement.groups[group].dim), 1)
            for start in range(0, rows, most):
                yield Cut(part, group, number, start, min(start + most, rows), first)

    @torch.no_grad()
    def initialise(self, initial: InitialRows, ranking: Ranking) -> None:
        """Set all weights.

        Raises:
            InvalidInput: the function gives weights of another shape.
        """
        for cut in self.cuts():
            keys, weights = self.placement.keys(cut.number, cut.start, cut.stop), self.weights[cut.group]
            part = self.placement.parts[cut.part]
            rows, shape = initial(part.table, ranking.ids(self.placement, cut.part, keys)), (cut.rows, part.table.dim)
            if getattr(rows, "shape", None) != shape:
                given = f"weights of shape {rows.shape}" if hasattr(rows, "shape") else f"a {type(rows).__name__}"
                raise InvalidInput(
                    f"table '{part.table.name}': initial gives {given}, must be weights of shape {shape}, a row for each id"
                )
            weights[cut.slots] = torch.from_numpy(np.ascontiguousarray(rows[:, slice(*part.columns)])).to(weights)

    def read(self, group: int, slots: torch.Tensor) -> torch.Tensor:
        """`(n, dim)` fp32 weights of `(n,)` slots of a group."""
        return self.weights[group].detach().index_select(0, slots).to(torch.float32)

    def sums(self, held: HeldBags) -> torch.Tensor:
        """`(answers, dim)` fp32 sums of the rows of bags."""
        kernel = self._kernels[held.group]
        if held.starts.numel() == 0:
            return held.slots.new_zeros((0, self.placement.groups[held.group].dim), dtype=torch.float32)
        if kernel is not None:
            return kernel.sums(held)
        return weighted_sums(self.weights[held.group].detach(), held.slots, held.starts, held.weights)

    def gradients(self, held: Sequence[HeldBags], gradients: Rows) -> tuple[Rows, Rows]:
        """Return distinct slots and their sums of `(answers, dim)` gradients; none of fused kernels, which learn here in one pass."""
        pairs = list(zip(held, gradients, strict=True))
        fused = [(bags.output, gradient) for bags, gradient in pairs if bags.output is not None]
        if fused:
            torch.autograd.backward([output for output, _ in fused], [gradient for _, gradient in fused])
        sums = [bags.gradients(gradient) for bags, gradient in pairs]
        return [slots for slots, _ in sums], [matrix for _, matrix in sums]

    def learn(self, group: int, slots: torch.Tensor, gradient: torch.Tensor) -> None:
        """Update `(n,)` distinct slots by `(n, dim)` summed gradients, which are overwritten; if not fused, add them to sparse `.grad`s."""
        if self.fused and slots.numel() == 0:
            return
        weights = getattr(self, f"weights_{group}")
        if self.fused:
            self.optimizer.update(int(self.step), weights.data, self.states(group), slots, gradient)
            return
        # Also without slots: a torch optimizer counts steps only where there is a gradient, and replicas must count alike.
        sparse = torch.sparse_coo_tensor(slots[None], gradient.to(weights.dtype), weights.shape, is_coalesced=False)
        weights.grad = sparse if weights.grad is None else weights.grad + sparse


@dataclass(frozen=True)
class UniformRows:
    """Weights uniform over ± 1 / √rows, TorchRec's default, from a hash of seed, table, id and column.

    They are the same for every plan and number of ranks.

    Attributes:
        seed: seed of the weights.
    """

    seed: int = 0

    def __call__(self, table: Table, ids: Ints) -> npt.NDArray[np.float32]:
        """`(n, dim)` weights of `(n,)` ids."""
        salt = zlib.crc32(table.name.encode("utf-8")) ^ ((self.seed & 0xFFFFFFFF) << 32)
        start = _mixed(np.asarray(ids, dtype=np.uint64) ^ _mixed(np.full(1, salt, dtype=np.uint64)))
        steps = np.arange(1, table.dim + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        numbers = _mixed(start[:, None] + steps)
        share = (numbers >> np.uint64(40)).astype(np.float32) * np.float32(2.0**-24)
        weights: npt.NDArray[np.float32] = (share * 2 - 1) * np.float32(table.rows**-0.5)
        return weights


def _mixed(numbers: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """SplitMix64's finalizer (Steele, Lea, Flood 2014)."""
    numbers = (numbers ^ (numbers >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    numbers = (numbers ^ (numbers >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed: npt.NDArray[np.uint64] = numbers ^ (numbers >> np.uint64(31))
    return mixed
