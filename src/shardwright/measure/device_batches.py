"""Batches drawn on the GPU itself, so that measuring spends its time in kernels and not in preparing and copying ids."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from shardwright.measure.backend import FusedInput
from shardwright.workload.batches import Scatter

if TYPE_CHECKING:
    import torch

    from shardwright.sharding.work import ShardWork


def draw_batch_on(work: ShardWork, seed: object, device: torch.device) -> FusedInput:
    """A batch with the distribution of `shardwright.workload.batches.draw_batch`, drawn on `device`.

    Args:
        work: the shard's work.
        seed: anything that `numpy.random.default_rng` takes.
        device: torch device that holds and draws the batch; a CPU works too.
    """
    import torch

    rng = np.random.default_rng(seed)  # type: ignore[arg-type]
    random = torch.Generator(device).manual_seed(int(rng.integers(2**63)))
    total = int(work.lookups + rng.random())
    scatter = Scatter.draw(work.rows, rng)
    ranks = _draw_ranks(work, total, random, device)
    return FusedInput(
        (ranks * scatter.multiplier + scatter.shift) % work.rows, _draw_offsets(work, total, random, device)
    )


def _draw_ranks(work: ShardWork, total: int, random: torch.Generator, device: torch.device) -> torch.Tensor:
    """`(total,)` hotness ranks by the inverse of the access profile; in fp64, since tables may have 10^9 rows."""
    import torch

    share = torch.from_numpy(work.access.share.copy()).to(device)
    rows = torch.from_numpy(work.access.rows.copy()).to(device)
    drawn = torch.rand(total, generator=random, device=device, dtype=torch.float64)
    right = torch.searchsorted(share, drawn, right=True).clamp_(1, share.numel() - 1)
    low, high = share[right - 1], share[right]
    part = (drawn - low) / (high - low).clamp_min(torch.finfo(torch.float64).tiny)
    ranks = (rows[right - 1] + part * (rows[right] - rows[right - 1])).long()
    return ranks.clamp_(0, work.rows - 1)


def _draw_offsets(work: ShardWork, total: int, random: torch.Generator, device: torch.device) -> torch.Tensor:
    """`(samples + 1,)` starts of the bags."""
    import torch

    if work.pooled:
        sizes = torch.full((work.samples,), total // work.samples, dtype=torch.int64, device=device)
        sizes[torch.randperm(work.samples, generator=random, device=device)[: total % work.samples]] += 1
    else:
        bags = torch.randint(work.samples, (total,), generator=random, device=device)
        sizes = torch.bincount(bags, minlength=work.samples)
    return torch.nn.functional.pad(sizes.cumsum(0), (1, 0))
