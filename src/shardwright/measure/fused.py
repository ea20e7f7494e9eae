"""The fused calls of one device, and the batches that they run on.

In training every step looks up other rows. Hot rows are in a cache, since the step before looked them up; other rows come from memory. A
measurement that repeats one batch would find all its rows in the caches, as far as they fit. So a measurement uses as many batches as
needed for their distinct rows to fill the last-level cache twice. Tables that all fit the cache stay there in training as well.

On a GPU all tables of a fused call are drawn together, with a few dozen kernels for any number of tables. Only the random numbers are
drawn table by table, so that the lookups of a table depend only on its work and seed.
"""

from __future__ import annotations

from collections.abc import Sequence
from time import perf_counter
from typing import TYPE_CHECKING

import numpy as np

from shardwright.hardware import cache_bytes
from shardwright.measure.backend import Arena, Backend, FusedCall, FusedInput, KernelGroup, kernel_groups
from shardwright.sharding.work import ShardWork
from shardwright.task.table import row_bytes
from shardwright.workload.batches import Batch, Scatter, draw_batch

if TYPE_CHECKING:
    import torch

FEWEST, MOST = 2, 128
_MOST_LOOKUPS = 2e6  # most lookups of all batches together, to limit the time of drawing
_OF_CACHE, _OF_TABLES = 2.0, 0.9
_LINE = 64
_ON_CUDA = 4  # number of batches; the clock also flushes the cache
_GRADIENTS = 0.5e-6, 1.5e-6  # so small that optimizer state, which only grows, hardly changes


class DeviceCalls:
    """All fused calls of one device, run one after another: first all lookups, then all updates.

    The runs go through enough batches in turn that no batch finds its own rows in a cache.

    Args:
        works: the device's shards.
        seeds: the seed of each shard's batches.
        optimizer: optimizer inside backward.
        backend: builds the calls.
        arena: holds the tables.

    Attributes:
        batches: number of batches that the runs go through in turn.
        spent: seconds for building the calls and for drawing the batches.
    """

    def __init__(
        self, works: Sequence[ShardWork], seeds: Sequence[int], optimizer: str, backend: Backend, arena: Arena
    ) -> None:
        groups = kernel_groups(works)
        self.batches = batches_on(arena.device.type, works)
        began = perf_counter()
        self._calls: list[FusedCall] = [backend.build(group, optimizer, arena) for group in groups]
        built = perf_counter()
        self._batches: list[list[FusedInput]] = [
            fused_inputs(group, [seeds[member] for member in group.members], arena.device, self.batches)
            for group in groups
        ]
        wait_for(arena.device)
        self.spent = {"build": built - began, "batches": perf_counter() - built}
        self._outputs: list[Sequence[torch.Tensor]] = []
        self._gradients: dict[tuple[int, int], torch.Tensor] = {}

    def forward(self, batch: int) -> None:
        """Look up the rows of a batch."""
        self._outputs = [call.forward(batches[batch]) for call, batches in zip(self._calls, self._batches, strict=True)]

    def backward(self, _: int) -> None:
        """Update with the gradients of the last lookup."""
        for position, (call, outputs) in enumerate(zip(self._calls, self._outputs, strict=True)):
            call.backward(outputs, self._gradients_like(position, outputs))

    def _gradients_like(self, position: int, outputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Gradients with the shapes of the outputs, which differ between the batches of a sequence call."""
        return [self._gradient((position, number), output.detach()) for number, output in enumerate(outputs)]

    def _gradient(self, key: tuple[int, int], output: torch.Tensor) -> torch.Tensor:
        """The gradient of an output: the front of a buffer, which reaches its final size in the first pass over the batches.

        It is random, as a GPU may be faster on constant data.
        """
        count = output.numel()
        if key not in self._gradients or self._gradients[key].numel() < count:
            self._gradients.pop(key, None)  # frees the old buffer before the larger one is allocated
            self._gradients[key] = output.new_empty(count).uniform_(*_GRADIENTS)
        return self._gradients[key][:count].view(output.shape)


def batches_on(device_kind: str, works: Sequence[ShardWork]) -> int:
    """The number of batches that a visit to these works goes through on a "cpu" or "cuda" device of this machine."""
    return fresh_batches(works, cache_bytes()[1]) if device_kind == "cpu" else _ON_CUDA


def fresh_batches(works: Sequence[ShardWork], cache_bytes: int) -> int:
    """The number of batches after which the distinct rows fill a cache twice, or are nearly all rows of the tables."""
    lines = [-(-row_bytes(work.dtype, work.dim) // _LINE) * _LINE for work in works]
    total = sum(work.rows * size for work, size in zip(works, lines, strict=True))
    if total <= cache_bytes:
        return FEWEST
    wanted = min(_OF_CACHE * cache_bytes, _OF_TABLES * total)
    lookups = sum(work.lookups for work in works)
    most = int(min(MOST, max(FEWEST, _MOST_LOOKUPS / max(lookups, 1.0))))

    def distinct(batches: int) -> float:
        rows = (work.access.distinct_rows(work.lookups * batches) for work in works)
        return sum(count * size for count, size in zip(rows, lines, strict=True))

    low, high = FEWEST - 1, FEWEST
    while high < most and distinct(high) < wanted:
        low, high = high, min(2 * high, most)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if distinct(middle) >= wanted else (middle, high)
    return high


def wait_for(device: torch.device) -> None:
    """Wait until the device has finished its work."""
    if device.type == "cuda":
        import torch

        torch.cuda.synchronize(device)


def fused_inputs(group: KernelGroup, seeds: Sequence[object], device: torch.device, batches: int) -> list[FusedInput]:
    """Batches for all tables of a group; a table has the same hot rows in all batches.

    Args:
        group: the tables.
        seeds: one per table: anything that `numpy.random.SeedSequence` takes.
        device: device of the batches; numpy draws them for a CPU, and a GPU draws its own.
        batches: number of batches.
    """
    if device.type == "cuda":
        return [draw_batch_on(group.works, seeds, device, turn) for turn in range(batches)]
    scatters = [Scatter.draw(work.rows, _rng(seed)) for work, seed in zip(group.works, seeds, strict=True)]
    inputs = []
    for turn in range(batches):
        rngs = [_rng(seed, turn) for seed in seeds]
        inputs.append(_join([draw_batch(*of_table) for of_table in zip(group.works, rngs, scatters, strict=True)]))
    return inputs


def _rng(seed: object, *turn: int) -> np.random.Generator:
    return np.random.default_rng(np.random.SeedSequence(seed, spawn_key=turn))  # type: ignore[arg-type]


def _join(batches: Sequence[Batch]) -> FusedInput:
    """The batches of several tables as tensors, one table after another."""
    import torch

    starts = np.cumsum([0, *(batch.indices.size for batch in batches)])
    offsets = [batch.offsets[:-1] + start for batch, start in zip(batches, starts[:-1], strict=True)]
    joined = np.concatenate([batch.indices for batch in batches]), np.concatenate([*offsets, starts[-1:]])
    return FusedInput(*map(torch.from_numpy, joined))


def draw_batch_on(
    works: Sequence[ShardWork], seeds: Sequence[object], device: torch.device, turn: int = 0
) -> FusedInput:
    """A batch of n tables, table after table, with the distribution of `shardwright.workload.batches.draw_batch`, drawn on `device`.

    Args:
        works: n tables of one fused call: with the same samples, and all pooled or none.
        seeds: n seeds: anything that `numpy.random.default_rng` takes.
        device: torch device that holds and draws the batch; a CPU works too.
        turn: number of the batch; all batches of a seed have the same hot rows.
    """
    import torch

    rngs = [_rng(seed, turn) for seed in seeds]
    generators = [torch.Generator(device).manual_seed(int(rng.integers(2**63))) for rng in rngs]
    by_feature = [
        [int(work.lookups * share + rng.random()) for share in work.feature_shares]
        for work, rng in zip(works, rngs, strict=True)
    ]
    counts = [sum(each) for each in by_feature]
    scatters = [Scatter.draw(work.rows, _rng(seed)) for work, seed in zip(works, seeds, strict=True)]
    tables = torch.arange(len(works), device=device)
    owner = torch.repeat_interleave(tables, torch.tensor(counts, device=device), output_size=sum(counts))
    ids = _draw_ranks(works, _uniform(counts, generators, device), owner, device)
    facts = torch.tensor([(s.multiplier, s.shift, s.rows) for s in scatters], device=device)
    ids.mul_(facts[:, 0][owner]).add_(facts[:, 1][owner]).remainder_(facts[:, 2][owner])
    return FusedInput(ids, _draw_offsets(works, by_feature, generators, device))


def _uniform(counts: Sequence[int], generators: Sequence[torch.Generator], device: torch.device) -> torch.Tensor:
    """`(sum of counts,)` random numbers in [0, 1), from one generator per table; in fp64, since tables may have 10^9 rows."""
    import torch

    drawn = torch.empty(sum(counts), dtype=torch.float64, device=device)
    for part, generator in zip(drawn.split(list(counts)), generators, strict=True):
        part.uniform_(generator=generator)
    return drawn


def _draw_ranks(
    works: Sequence[ShardWork], drawn: torch.Tensor, owner: torch.Tensor, device: torch.device
) -> torch.Tensor:
    """`(n,)` hotness ranks of all lookups, by inverting the access profiles of their tables.

    Args:
        works: the tables.
        drawn: `(n,)` numbers in [0, 1).
        owner: `(n,)` position of each lookup's table.
        device: device of all tensors.
    """
    import torch

    sizes = [work.access.share.size for work in works]
    stops = np.cumsum(sizes)
    curves = np.stack(
        [
            np.concatenate([work.access.share for work in works]),
            np.concatenate([work.access.rows for work in works]),
            np.repeat(np.arange(len(works)), sizes),
        ]
    )
    share, rows, table = torch.from_numpy(curves).to(device)
    edges = torch.from_numpy(np.stack([stops - sizes + 1, stops - 1, [work.rows - 1 for work in works]])).to(device)
    # One search through all curves, each shifted to its own interval; rounding may miss by one segment at most.
    right = torch.searchsorted(share + table, drawn + owner, right=True)
    right = torch.minimum(torch.maximum(right, edges[0][owner]), edges[1][owner])
    low, width = share[right - 1], share[right] - share[right - 1]
    part = ((drawn - low) / width.clamp_min(torch.finfo(torch.float64).tiny)).clamp_(0, 1)
    ranks = torch.lerp(rows[right - 1], rows[right], part).long()
    return torch.minimum(ranks.clamp_(min=0), edges[2][owner])


def _draw_offsets(
    works: Sequence[ShardWork],
    by_feature: Sequence[Sequence[int]],
    generators: Sequence[torch.Generator],
    device: torch.device,
) -> torch.Tensor:
    """`(bags + 1,)` starts of the bags: sizes are as even as possible if pooled, else random."""
    import torch

    samples, counts = works[0].samples, [count for each in by_feature for count in each]
    if works[0].pooled:
        order = _uniform([work.bags for work in works], generators, device).view(-1, samples).argsort(dim=1)
        even = torch.tensor([divmod(count, samples) for count in counts], device=device)
        longer = torch.arange(samples, device=device) < even[:, 1:]
        sizes = torch.empty_like(order).scatter_(1, order, even[:, :1] + longer).flatten()
    else:
        bags = (_uniform(list(map(sum, by_feature)), generators, device) * samples).long().clamp_(max=samples - 1)
        features = torch.arange(len(counts), device=device)
        owner = torch.repeat_interleave(features, torch.tensor(counts, device=device), output_size=sum(counts))
        sizes = torch.bincount(owner * samples + bags, minlength=len(counts) * samples)
    return torch.nn.functional.pad(sizes.cumsum(0), (1, 0))
