"""Equal things side by side, and their rows summed in a fixed order."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True, eq=False)
class Groups:
    """Numbers, sorted, and what of them is equal.

    Attributes:
        distinct: `(m,)` the distinct numbers, ascending.
        order: `(n,)` places of the numbers, equal ones side by side, each in order of place.
        starts: `(m,)` where the places of each distinct number start in `order`.
        counts: `(m,)` how often each occurs.
    """

    distinct: torch.Tensor
    order: torch.Tensor
    starts: torch.Tensor
    counts: torch.Tensor

    @classmethod
    def of(cls, numbers: torch.Tensor) -> Groups:
        """Group `(n,)` whole numbers."""
        ordered, order = torch.sort(numbers, stable=True)
        distinct, counts = torch.unique_consecutive(ordered, return_counts=True)
        return cls(distinct, order, torch.cumsum(counts, 0) - counts, counts)

    def inverse(self) -> torch.Tensor:
        """`(n,)` which of the distinct numbers is at each place."""
        which = torch.arange(self.distinct.numel(), device=self.order.device)
        inverse = torch.empty_like(self.order)
        inverse[self.order] = torch.repeat_interleave(which, self.counts, output_size=self.order.numel())
        return inverse


def summed(rows: torch.Tensor, order: torch.Tensor, starts: torch.Tensor) -> torch.Tensor:
    """`(m, c)` sums of `(n, c)` rows: the rows in `order` from each of the `(m,)` starts to the next one."""
    if starts.numel() == 0:
        return rows.new_zeros((0, rows.shape[1]))
    # A pooled lookup of the rows themselves: the fastest segment sum that torch has, and one that adds in order.
    return torch.embedding_bag(rows, order, starts, False, 0)[0]


def sum_equal(numbers: torch.Tensor, rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """`(m,)` distinct numbers, ascending, and `(m, c)` sums of the `(n, c)` rows that belong to each."""
    groups = Groups.of(numbers)
    return groups.distinct, summed(rows, groups.order, groups.starts)
