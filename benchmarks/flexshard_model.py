"""A small next-item model on sequences of embeddings, and its training without sharding.

The state after each item is the mean of the embeddings so far. It should be closer to the next item than to another item of the batch.
There are no dense weights, so only embeddings travel between hosts.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch

from benchmarks.flexshard_cases import Case
from shardwright.runtime import UniformRows

LEARNING_RATE = 0.05
EPS = 1e-5  # gradients that cancel up to rounding should not become whole steps
SEED = 5
_SCALE = 100.0  # factor on products of embeddings, which start at 1 / √rows


def loss_of(sequences: Mapping[str, tuple[torch.Tensor, torch.Tensor]]) -> torch.Tensor:
    """Return the sum of the losses of all items that have a next one, in thousands.

    Args:
        sequences: by table, `(n, dim)` embeddings and `(samples,)` lengths.
    """
    total = torch.zeros(())
    for values, lengths in sequences.values():
        size = values.shape[0]
        ends = torch.cumsum(lengths, 0)
        sample = torch.repeat_interleave(torch.arange(lengths.numel()), lengths)
        start = (ends - lengths)[sample]
        sums = torch.cat([values.new_zeros(1, values.shape[1]), values.cumsum(0)])
        here = torch.arange(size)
        state = (sums[1:] - sums[start]) / (here - start + 1)[:, None]
        last = here == ends[sample] - 1
        follows = torch.where(last, here, here + 1)
        other = (here * 7919 + 1) % max(size, 1)
        right, wrong = ((state * values[index]).sum(1) * _SCALE for index in (follows, other))
        losses = torch.nn.functional.softplus(-right) + torch.nn.functional.softplus(wrong)
        total = total + losses[~last].sum() * 1e-3
    return total


def losses_unsharded(case: Case, ranks: int, steps: int) -> list[float]:
    """Return the losses of each step of unsharded embeddings in one process, with the batches of all ranks and row-wise Adagrad."""
    torch.set_num_threads(1)
    data, initial = case.data(), UniformRows(SEED)
    weights = {table.name: torch.from_numpy(initial(table, np.arange(table.rows))) for table in data.tables()}
    sums = {name: torch.zeros(weight.shape[0], 1) for name, weight in weights.items()}
    losses = []
    for step in range(steps):
        total = 0.0
        touched = {name: torch.zeros_like(weight) for name, weight in weights.items()}
        for rank in range(ranks):
            batch = {name: tuple(map(torch.from_numpy, parts)) for name, parts in data.batch(step, rank, ranks).items()}
            rows = {name: weights[name][ids].requires_grad_() for name, (ids, _) in batch.items()}
            loss = loss_of({name: (rows[name], lengths) for name, (_, lengths) in batch.items()})
            loss.backward()
            total += float(loss.detach())
            for name, (ids, _) in batch.items():
                gradient = rows[name].grad
                assert gradient is not None
                touched[name].index_add_(0, ids, gradient)
        for name, gradient in touched.items():
            sums[name] += gradient.square().mean(1, keepdim=True)
            weights[name] -= LEARNING_RATE * gradient / (sums[name].sqrt() + EPS)
        losses.append(total)
    return losses
