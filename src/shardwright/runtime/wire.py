"""The exchange of rows over the links, and its bytes: matrices sorted by destination, all groups of tables in one message."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

import numpy as np
import torch
import torch.distributed as dist

from shardwright.arrays import Ints
from shardwright.runtime.process_groups import Members, explained

Rows: TypeAlias = list[torch.Tensor]
"""A matrix `(n, dim)` for each group of tables."""

_LINKS = ("self", "intra", "inter")
_NARROW = {"fp16": torch.float16, "bf16": torch.bfloat16}


@dataclass
class TrafficMeter:
    """Bytes that one rank sent and received since the last reset, counted from the sizes of the messages.

    A key is (phase, kind, link). The phase is "forward" or "backward". The kind is "counts" (sizes that ranks exchange first), "ids",
    "values", "gradients" (of answers, to their holders) or "replicas" (among the replicas of a row). The link is "self" (stays on
    the rank, never sent), "intra" (inside the host) or "inter" (between hosts).

    Attributes:
        sent: bytes by key.
        received: bytes by key.
    """

    sent: dict[tuple[str, str, str], int] = field(default_factory=dict)
    received: dict[tuple[str, str, str], int] = field(default_factory=dict)

    def reset(self) -> None:
        """Forget everything counted so far."""
        self.sent.clear()
        self.received.clear()

    def total(self, link: str | None = None, phase: str | None = None, kind: str | None = None) -> int:
        """Bytes sent with this link, phase and kind. None stands for all of them, except the link "self", which is never sent."""
        return sum(
            size
            for (its_phase, its_kind, its_link), size in self.sent.items()
            if (link == its_link if link else its_link != "self")
            and phase in (None, its_phase)
            and kind in (None, its_kind)
        )

    def add(self, phase: str, kind: str, links: Sequence[int], sent: Ints, received: Ints) -> None:
        """Count one exchange.

        Args:
            phase: forward or backward.
            kind: counts, ids, values, gradients or replicas.
            links: `(members,)` link to each member of the group: 0 itself, 1 inside the host, 2 between hosts.
            sent: `(members,)` bytes sent to each.
            received: `(members,)` bytes received from each.
        """
        for book, sizes in ((self.sent, sent), (self.received, received)):
            for link, size in enumerate(np.bincount(links, weights=sizes, minlength=len(_LINKS))):
                if size:
                    key = (phase, kind, _LINKS[link])
                    book[key] = book.get(key, 0) + int(size)


class Label(NamedTuple):
    """The phase and kind under which the traffic meter counts an exchange."""

    phase: str
    kind: str


@dataclass(frozen=True, eq=False)
class Sizes:
    """Numbers of rows in an exchange.

    Attributes:
        sent: `(groups, members)` rows to each member, 0 to the rank itself.
        received: `(groups, members)` rows from each member, 0 from the rank itself.
        own: `(groups,)` rows that stay.
    """

    sent: Ints
    received: Ints
    own: Ints

    def back(self) -> Sizes:
        """Return the sizes of the exchange in the other direction."""
        return Sizes(self.received, self.sent, self.own)

    def split(self, groups: int, rows: int) -> tuple[Sizes, Sizes]:
        """Divide questions from answers.

        Args:
            groups: number of groups; the sizes go on with the answers of the groups of sums.
            rows: number of groups of rows, which come first and have one answer a question.
        """
        chosen = [*range(rows), *range(groups, self.own.size)]
        return (
            Sizes(self.sent[:groups], self.received[:groups], self.own[:groups]),
            Sizes(self.sent[chosen], self.received[chosen], self.own[chosen]),
        )

    def totals(self) -> list[tuple[int, int, int]]:
        """By group, the rows that leave, arrive and stay."""
        return list(zip(self.sent.sum(1).tolist(), self.received.sum(1).tolist(), self.own.tolist(), strict=True))


class Wire:
    """The collectives of one process group."""

    def __init__(self, members: Members, meter: TrafficMeter) -> None:
        self._members, self._meter = members, meter

    def exchange(
        self, leaving: Rows, arriving: Rows, sizes: Sizes, widths: Sequence[int], label: Label, dtype: str = ""
    ) -> None:
        """Send rows.

        Args:
            leaving: `(n, width)` rows of each group, sorted by member.
            arriving: likewise; overwritten.
            sizes: numbers of rows.
            widths: `(groups,)` elements of a row.
            label: label for the meter.
            dtype: type in which fp32 rows travel, "fp32", "fp16" or "bf16"; their own unless given. Rows that stay are not rounded.
        """
        wide = np.asarray(widths, dtype=np.int64)
        out, into = wide @ sizes.sent, wide @ sizes.received
        narrow = _NARROW.get(dtype)
        size = leaving[0].element_size() if narrow is None else 2
        staying = np.zeros_like(out)
        staying[self._members.me] = int(wide @ sizes.own)
        self._meter.add(*label, self._members.links, (out + staying) * size, (into + staying) * size)
        if self._members.group is None:
            return
        single = len(leaving) == 1 and narrow is None
        flat = leaving[0].reshape(-1) if single else _packed(leaving, sizes.sent * wide[:, None])
        target = arriving[0].view(-1) if single else flat.new_empty(int(into.sum()))
        if narrow is None:
            self._all_to_all(target, flat, into, out, label)
        else:  # as bytes, since gloo does not know bf16
            rounded = torch.empty_like(target, dtype=narrow)
            self._all_to_all(rounded.view(torch.uint8), flat.to(narrow).view(torch.uint8), 2 * into, 2 * out, label)
            target.copy_(rounded)
        if not single:
            _unpack(target, arriving, sizes.received * wide[:, None])

    def _all_to_all(self, target: torch.Tensor, source: torch.Tensor, into: Ints, out: Ints, label: Label) -> None:
        assert self._members.group is not None
        with explained(label.kind):
            all_to_all(target, source, into.tolist(), out.tolist(), self._members.group)

    def sizes(self, counts: torch.Tensor, failed: torch.Tensor | bool, phase: str) -> tuple[Sizes, bool]:
        """Tell each member how many rows it will get.

        Args:
            counts: `(groups, members)` rows to each member, including the rank itself.
            failed: whether this rank has bad input.
            phase: phase for the meter.

        Returns:
            The sizes, and whether any member has bad input.
        """
        groups, members = counts.shape
        me = self._members.me
        flag = torch.as_tensor(failed, device=counts.device).to(torch.int64).expand(members, 1)
        sent = torch.cat([counts.T, flag], 1).contiguous()
        received = sent.clone()
        if self._members.group is not None:
            with explained("counts"):  # too short for both directions of a link to get into each other's way
                dist.all_to_all_single(received, sent, group=self._members.group)
        # The only wait for the device: split sizes must be in main memory.
        both = torch.stack([sent, received]).cpu().numpy()
        size = np.full(members, 8 * (groups + 1)) * (np.arange(members) != me)
        self._meter.add(phase, "counts", self._members.links, size, size)
        to, by = both[0, :, :groups].T.copy(), both[1, :, :groups].T.copy()
        own = to[:, me].copy()
        to[:, me] = by[:, me] = 0
        return Sizes(to, by, own), bool(both[1, :, groups].any())


def all_to_all(
    output: torch.Tensor,
    source: torch.Tensor,
    received: Sequence[int],
    sent: Sequence[int],
    group: dist.ProcessGroup,
) -> None:
    """Send a part of a tensor to each member of a group, and receive one from each. On gloo, both directions of a link work at once.

    gloo's own all-to-all posts its sends before its receives. If one rank starts earlier than the other, the message "ready to receive"
    waits in the socket behind the data of the other direction. The pair then sends one way after the other, which takes up to twice the
    time on a slow link. With the receives posted first nothing waits.

    Args:
        output: contiguous; overwritten.
        source: contiguous.
        received: `(members,)` rows of the output from each member.
        sent: `(members,)` rows of the source to each member.
        group: the members.
    """
    if dist.get_backend(group) != "gloo":
        dist.all_to_all_single(output, source, list(received), list(sent), group=group)
        return
    me, members = dist.get_rank(group), dist.get_world_size(group)
    arriving, leaving = output.split(list(received)), source.split(list(sent))
    arriving[me].copy_(leaving[me])
    waiting = []
    for step in range(1, members):
        before = (me - step) % members
        if received[before]:
            waiting.append(dist.irecv(arriving[before], group=group, group_src=before))
    for step in range(1, members):
        after = (me + step) % members
        if sent[after]:
            waiting.append(dist.isend(leaving[after], group=group, group_dst=after))
    for work in waiting:
        if work is not None:
            work.wait()


def _packed(parts: Rows, sizes: Ints) -> torch.Tensor:
    """Pack all groups for the first member, then all for the next; sizes `(groups, members)` are in elements."""
    by_group = [part.reshape(-1).split(own) for part, own in zip(parts, sizes.tolist(), strict=True)]
    return torch.cat([chunk for member in zip(*by_group, strict=True) for chunk in member])


def _unpack(flat: torch.Tensor, parts: Rows, sizes: Ints) -> None:
    chunks = flat.split(sizes.T.ravel().tolist())
    for group, part in enumerate(parts):
        torch.cat(chunks[group :: len(parts)], out=part.view(-1))
