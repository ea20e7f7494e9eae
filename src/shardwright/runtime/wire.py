"""What goes over the links: matrices whose rows are sorted by destination, all groups of tables in one message, and counted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

import numpy as np
import torch

from shardwright.runtime import duplex
from shardwright.runtime.group_making import explained
from shardwright.runtime.placement import Ints
from shardwright.runtime.process_groups import Members
from shardwright.runtime.traffic import TrafficMeter

Rows: TypeAlias = list[torch.Tensor]
"""A matrix `(n, dim)` for each group of tables."""


class Label(NamedTuple):
    """What an exchange is booked as: a phase and a kind of the traffic meter."""

    phase: str
    kind: str


@dataclass(frozen=True, eq=False)
class Sizes:
    """How many rows go where.

    Attributes:
        sent: `(groups, members)` rows to each member, 0 to the rank itself.
        received: `(groups, members)` rows from each member, 0 from the rank itself.
        own: `(groups,)` rows that stay.
    """

    sent: Ints
    received: Ints
    own: Ints

    def back(self) -> Sizes:
        """The sizes of the answers."""
        return Sizes(self.received, self.sent, self.own)

    def leaving(self, group: int) -> int:
        """Rows of a group that are sent."""
        return int(self.sent[group].sum())

    def arriving(self, group: int) -> int:
        """Rows of a group that come from others."""
        return int(self.received[group].sum())

    def staying(self, group: int) -> int:
        """Rows of a group that stay."""
        return int(self.own[group])


class Wire:
    """The collectives of one process group."""

    def __init__(self, members: Members, meter: TrafficMeter) -> None:
        self._members, self._meter = members, meter

    def exchange(self, leaving: Rows, arriving: Rows, sizes: Sizes, widths: Sequence[int], label: Label) -> None:
        """Send rows.

        Args:
            leaving: `(n, width)` of each group, sorted by member.
            arriving: is written likewise.
            sizes: how many rows.
            widths: `(groups,)` elements of a row.
            label: for the meter.
        """
        wide = np.asarray(widths, dtype=np.int64)
        out, into = wide @ sizes.sent, wide @ sizes.received
        size = leaving[0].element_size()
        staying = np.zeros_like(out)
        staying[self._members.me] = int(wide @ sizes.own)
        self._meter.add(*label, self._members.links, (out + staying) * size, (into + staying) * size)
        if self._members.group is None:
            return
        single = len(leaving) == 1
        flat = leaving[0].reshape(-1) if single else _packed(leaving, sizes.sent)
        target = arriving[0].view(-1) if single else flat.new_empty(int(into.sum()))
        with explained(label.kind):
            duplex.all_to_all(target, flat, into.tolist(), out.tolist(), self._members.group)
        if not single:
            _unpack(target, arriving, sizes.received, wide)

    def sizes(self, counts: torch.Tensor, failed: torch.Tensor | bool, phase: str) -> tuple[Sizes, bool]:
        """Tell each member how many rows it will get.

        Args:
            counts: `(groups, members)` rows to each member, the rank itself among them.
            failed: whether this rank has bad input.
            phase: for the meter.

        Returns:
            The sizes, and whether any member has bad input.
        """
        groups, members = counts.shape
        me = self._members.me
        flag = torch.as_tensor(failed, device=counts.device).to(torch.int64).expand(members, 1)
        sent = torch.cat([counts.T, flag], 1).contiguous()
        received = sent.clone()
        if self._members.group is not None:
            with explained("counts"):
                duplex.all_to_all(received, sent, [1] * members, [1] * members, self._members.group)
        both = (
            torch.stack([sent, received]).cpu().numpy()
        )  # the one wait for the device: split sizes must be in main memory
        size = np.full(members, 8 * (groups + 1)) * (np.arange(members) != me)
        self._meter.add(phase, "counts", self._members.links, size, size)
        to, by = both[0, :, :groups].T.copy(), both[1, :, :groups].T.copy()
        own = to[:, me].copy()
        to[:, me] = by[:, me] = 0
        return Sizes(to, by, own), bool(both[1, :, groups].any())


def _packed(parts: Rows, counts: Ints) -> torch.Tensor:
    """All groups for the first member, then all for the next."""
    ends = np.cumsum(counts, axis=1)
    chunks = [
        part[ends[group, member] - counts[group, member] : ends[group, member]].reshape(-1)
        for member in range(counts.shape[1])
        for group, part in enumerate(parts)
        if counts[group, member]
    ]
    return torch.cat(chunks) if chunks else parts[0].new_empty(0)


def _unpack(flat: torch.Tensor, parts: Rows, counts: Ints, widths: Ints) -> None:
    sizes = counts * widths[:, None]
    starts = (np.cumsum(sizes.T) - sizes.T.ravel()).reshape(sizes.T.shape).T
    for group, part in enumerate(parts):
        chunks = [flat[start : start + size] for start, size in zip(starts[group], sizes[group], strict=True) if size]
        if chunks:
            torch.cat(chunks, out=part.view(-1))
