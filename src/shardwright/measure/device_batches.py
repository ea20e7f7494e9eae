"""The batches that a measurement goes through: how many, and how they are drawn on the GPU itself.

In training every step looks up other rows. The hot ones are in a cache as they were looked up a step ago; the others come from memory. A
measurement that repeats one batch finds all of them in the caches, as far as they fit. So it goes through as many batches as it takes for
their distinct rows to fill the last-level cache twice. Tables that fit the cache altogether stay there in training as well.

All tables of a fused call are drawn together: a few dozen kernels however many tables there are. Only the random numbers are drawn table
by table, so that the lookups of a table follow from its work and seed alone, whatever is drawn beside it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from shardwright.measure.backend import FusedInput
from shardwright.workload.batches import Scatter

if TYPE_CHECKING:
    import torch

    from shardwright.sharding.work import ShardWork
from shardwright.sharding.work import ShardWork
from shardwright.task.table import row_bytes

FEWEST, MOST = 2, 128
_MOST_LOOKUPS = 2e6  # of all batches together: what drawing them may take
_OF_CACHE, _OF_TABLES = 2.0, 0.9
_LINE = 64


def fresh_batches(works: Sequence[ShardWork], cache_bytes: int) -> int:
    """How many batches it takes for their distinct rows to fill a cache twice, or to be nearly all rows of the tables.

    Args:
        works: the shards of one device.
        cache_bytes: bytes of the last-level cache.
    """
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


def draw_batch_on(
    works: Sequence[ShardWork], seeds: Sequence[object], device: torch.device, turn: int = 0
) -> FusedInput:
    """Batches with the distribution of `shardwright.workload.batches.draw_batch`, drawn on `device`, one table after another.

    Args:
        works: n tables of one fused call: with the same samples, and all of them pooled or none.
        seeds: n seeds: anything that `numpy.random.default_rng` takes.
        device: torch device that holds and draws the batch; a CPU works too.
        turn: number of the batch; the hot rows lie at the same ids in all batches of a seed.
    """
    import torch

    rngs = [np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(turn,))) for seed in seeds]  # type: ignore[arg-type]
    generators = [torch.Generator(device).manual_seed(int(rng.integers(2**63))) for rng in rngs]
    counts = [int(work.lookups + rng.random()) for work, rng in zip(works, rngs, strict=True)]
    scatters = [Scatter.draw(work.rows, np.random.default_rng(seed)) for work, seed in zip(works, seeds, strict=True)]  # type: ignore[arg-type]
    tables = torch.arange(len(works), device=device)
    owner = torch.repeat_interleave(tables, torch.tensor(counts, device=device), output_size=sum(counts))
    ids = _draw_ranks(works, _uniform(counts, generators, device), owner, device)
    facts = torch.tensor([(s.multiplier, s.shift, s.rows) for s in scatters], device=device)
    ids.mul_(facts[:, 0][owner]).add_(facts[:, 1][owner]).remainder_(facts[:, 2][owner])
    return FusedInput(ids, _draw_offsets(works, counts, owner, generators, device))


def _uniform(counts: Sequence[int], generators: Sequence[torch.Generator], device: torch.device) -> torch.Tensor:
    """`(sum of counts,)` numbers in [0, 1), each table's from its own generator; in fp64, since tables may have 10^9 rows."""
    import torch

    drawn = torch.empty(sum(counts), dtype=torch.float64, device=device)
    for part, generator in zip(drawn.split(list(counts)), generators, strict=True):
        part.uniform_(generator=generator)
    return drawn


def _draw_ranks(
    works: Sequence[ShardWork], drawn: torch.Tensor, owner: torch.Tensor, device: torch.device
) -> torch.Tensor:
    """`(n,)` hotness ranks of all tables by the inverse of their access profiles.

    Args:
        works: the tables.
        drawn: `(n,)` numbers in [0, 1).
        owner: `(n,)` position of each lookup's table.
        device: where all this lies.
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
    # One search through all curves, each shifted to an interval of its own; rounding there may at worst miss by one segment.
    right = torch.searchsorted(share + table, drawn + owner, right=True)
    right = torch.minimum(torch.maximum(right, edges[0][owner]), edges[1][owner])
    low, width = share[right - 1], share[right] - share[right - 1]
    part = ((drawn - low) / width.clamp_min(torch.finfo(torch.float64).tiny)).clamp_(0, 1)
    ranks = torch.lerp(rows[right - 1], rows[right], part).long()
    return torch.minimum(ranks.clamp_(min=0), edges[2][owner])


def _draw_offsets(
    works: Sequence[ShardWork],
    counts: Sequence[int],
    owner: torch.Tensor,
    generators: Sequence[torch.Generator],
    device: torch.device,
) -> torch.Tensor:
    """`(tables × samples + 1,)` starts of the bags: as even as can be where pooled, else as chance deals them."""
    import torch

    samples, tables = works[0].samples, len(works)
    if works[0].pooled:
        order = _uniform([samples] * tables, generators, device).view(tables, samples).argsort(dim=1)
        even = torch.tensor([divmod(count, samples) for count in counts], device=device)
        longer = torch.arange(samples, device=device) < even[:, 1:]
        sizes = torch.empty_like(order).scatter_(1, order, even[:, :1] + longer).flatten()
    else:
        bags = (_uniform(counts, generators, device) * samples).long().clamp_(max=samples - 1)
        sizes = torch.bincount(owner * samples + bags, minlength=tables * samples)
    return torch.nn.functional.pad(sizes.cumsum(0), (1, 0))
