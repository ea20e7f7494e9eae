"""Bags in pieces: the part of a bag that one rank holds, its sum, and the sum of all parts in the order of ranks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from shardwright.runtime.hop import Distinct, summed
from shardwright.runtime.wire import Rows


@dataclass(eq=False)
class HeldBags:
    """The lookups of all ranks' bags, one rank after another, that this rank answers for one group.

    Attributes:
        group: the group.
        slots: `(n,)` looked-up slots.
        starts: `(answers,)` first lookup of each answer.
        weights: `(n,)` fp32 weights of the lookups; None without weights.
        output: the kernel's sums, with their way back, until their gradient has come.
    """

    group: int
    slots: torch.Tensor
    starts: torch.Tensor
    weights: torch.Tensor | None
    output: torch.Tensor | None = None

    @classmethod
    def of(cls, first: int, asked: Rows, answers: Sequence[int]) -> list[HeldBags]:
        """Read the questions of neighbouring groups.

        Args:
            first: the first group.
            asked: by group, `(n,)` questions, whose lowest bit marks the first of an answer, or `(n, 2)` of them and the bits of weights.
            answers: by group, number of answers.
        """
        sizes = [its.shape[0] for its in asked]
        questions = torch.cat([its if its.ndim == 1 else its[:, 0] for its in asked]).to(torch.int64)
        starts = (questions & 1).nonzero().flatten().split_with_sizes(list(answers))
        slots, held, begin = (questions >> 1).split_with_sizes(sizes), [], 0
        for group, (its, size) in enumerate(zip(asked, sizes, strict=True)):
            weights = None if its.ndim == 1 else its[:, 1].to(torch.int32).contiguous().view(torch.float32)
            held.append(cls(first + group, slots[group], starts[group] - begin if begin else starts[group], weights))
            begin += size
        return held

    def gradients(self, gradient: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """`(m,)` ascending slots and their `(m, dim)` sums of `(answers, dim)` gradients; none if a fused kernel has updated the rows."""
        if self.output is not None or self.starts.numel() == 0:
            self.output = None
            return self.slots[:0], gradient[:0]
        distinct = Distinct.of(self.slots)
        answer = torch.bucketize(distinct.order, self.starts, right=True) - 1
        weights = None if self.weights is None else self.weights[distinct.order]
        return distinct.numbers, weighted_sums(gradient, answer, distinct.starts, weights)


def weighted_sums(
    rows: torch.Tensor, places: torch.Tensor, starts: torch.Tensor, weights: torch.Tensor | None
) -> torch.Tensor:
    """`(sums, dim)` fp32 sums of `(m, dim)` rows at `(n,)` places, by `(n,)` weights, from each of the `(sums,)` starts to the next.

    Each product is rounded before it is added: a fused multiply-add would round unlike sums of rows that travelled.
    """
    if weights is None and rows.dtype == torch.float32:
        return summed(rows, places, starts)
    chosen = rows.index_select(0, places).to(torch.float32)
    if weights is not None:
        chosen *= weights[:, None]
    return summed(chosen, torch.arange(chosen.shape[0], device=chosen.device), starts)


def in_bags(answers: torch.Tensor, bags: torch.Tensor, count: int, cut: bool) -> torch.Tensor:
    """`(count, dim)` sums of bags, zeros for empty ones: adds `(n, dim)` answers of `(n,)` bags in their order, several only if `cut`."""
    result = answers.new_zeros((count, answers.shape[1]))
    if cut:
        bags, order = torch.sort(bags, stable=True)
        bags, counts = torch.unique_consecutive(bags, return_counts=True)
        answers = summed(answers, order, torch.cumsum(counts, 0) - counts)
    return result.index_copy_(0, bags, answers)
