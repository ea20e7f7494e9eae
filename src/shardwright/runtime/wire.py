"""The exchange of rows over the links, and its bytes: matrices sorted by destination, all groups of tables in one message."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Hashable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch
import torch.distributed as dist

from shardwright.arrays import Ints
from shardwright.runtime.process_groups import Members, explained

Rows: TypeAlias = list[torch.Tensor]
"""A matrix `(n, dim)` for each group of tables."""

_LINKS = ("self", "intra", "inter")
_NARROW = {"fp16": torch.float16, "bf16": torch.bfloat16}
_KINDS = ("counts", "ids", "values", "gradients", "replicas")
_LATE_COUNTS = len(_KINDS)  # tag of the counts in a backward pass, which those of the next batch may meet


class Label(NamedTuple):
    """The phase and kind under which the traffic meter counts an exchange."""

    phase: str
    kind: str


@dataclass
class TrafficMeter:
    """Bytes that one rank sent and received since the last reset, counted from the sizes of the messages.

    A key is (phase, kind, link). The phase is "forward" or "backward". The kind is "counts" (sizes that ranks exchange first), "ids",
    "values", "gradients" (of answers, to their holders) or "replicas" (among the replicas of a row). The link is "self" (stays on
    the rank, never sent), "intra" (inside the host) or "inter" (between hosts).

    Attributes:
        sent: bytes by key.
        received: bytes by key.
        around: called with the label of an exchange once its rows are computed; what it returns stays entered until rows have arrived.
    """

    sent: dict[tuple[str, str, str], int] = field(default_factory=dict)
    received: dict[tuple[str, str, str], int] = field(default_factory=dict)
    around: Callable[[Label], AbstractContextManager[Any]] = nullcontext

    def reset(self) -> None:
        """Forget everything counted so far."""
        self.sent.clear()
        self.received.clear()

    def total(self, link: str | None = None, phase: str | None = None, kind: str | None = None) -> int:
        """Bytes sent with this link, phase and kind. None stands for all of them, except the link "self", which is never sent."""
        return sum(
            size
            for (its_phase, its_kind, its_link), size in list(self.sent.items())  # a batch ahead may add to it
            if (link == its_link if link else its_link != "self")
            and phase in (None, its_phase)
            and kind in (None, its_kind)
        )

    def add(
        self, label: Label, links: Sequence[int], sent: Sequence[int], received: Sequence[int], item_bytes: int
    ) -> None:
        """Count one exchange: `(members,)` links as in `Members`, and elements of so many bytes to and from each."""
        for book, sizes in ((self.sent, sent), (self.received, received)):
            for link, size in zip(links, sizes, strict=True):
                if size:
                    key = (*label, _LINKS[link])
                    book[key] = book.get(key, 0) + size * item_bytes


@dataclass(frozen=True, eq=False)
class Sizes:
    """Numbers of rows in an exchange, `(groups, members)` each; rows that stay count as sent and as received.

    Attributes:
        sent: rows to each member.
        received: rows from each member.
    """

    sent: Ints
    received: Ints

    def back(self) -> Sizes:
        """Return the sizes of the exchange in the other direction."""
        return Sizes(self.received, self.sent)

    def split(self, groups: int, rows: int) -> tuple[Sizes, Sizes]:
        """Divide questions from answers: after all groups come the answers of those of sums; groups of rows have one a question."""
        chosen = [*range(rows), *range(groups, len(self.sent))]
        return Sizes(self.sent[:groups], self.received[:groups]), Sizes(self.sent[chosen], self.received[chosen])


class Wire:
    """The exchanges of one process group. In each, all groups of tables travel in one message to every member."""

    def __init__(self, members: Members, meter: TrafficMeter, device: torch.device) -> None:
        self._members, self._meter, self._device = members, meter, device
        self._buffers = Buffers(device)
        self._counts: tuple[torch.Tensor, Arrival] | None = None

    def exchange(
        self,
        rows: Callable[[int], torch.Tensor],
        sizes: Sizes,
        widths: Sequence[int],
        label: Label,
        kind: torch.dtype = torch.float32,
        dtype: str = "",
    ) -> Rows:
        """Send rows. The receives are posted before the rows are computed.

        Args:
            rows: computes the `(n, width)` rows of a group to all members, in their order.
            sizes: numbers of rows.
            widths: `(groups,)` elements of a row.
            label: label for the meter.
            kind: type of the rows.
            dtype: type in which fp32 rows travel, "fp32", "fp16" or "bf16"; their own unless given. Rows that stay are not rounded.

        Returns:
            By group, the rows of all members, in their order. Rows of fp32 are valid until this wire's next exchange.
        """
        wide, me = np.asarray(widths, dtype=np.int64)[:, None], self._members.me
        out, into = wide * sizes.sent, wide * sizes.received
        to, by = out.sum(0).tolist(), into.sum(0).tolist()
        travelling = _NARROW.get(dtype, kind)
        self._meter.add(label, self._members.links, to, by, travelling.itemsize)
        if self._members.group is None:
            parts = [rows(group) for group in range(len(widths))]
            with self._meter.around(label):
                return parts
        arriving = self._take("arriving", sum(by), travelling)
        arrival = Arrival(arriving, by, self._members, _KINDS.index(label.kind))
        parts = [rows(group) for group in range(len(widths))]
        leaving = _transposed(parts, out, self._take("leaving", sum(to), kind))
        with self._meter.around(label):
            arrival.send(leaving.to(travelling), to)
        if travelling != kind:
            own, staying = (slice(sum(sizes[:me]), sum(sizes[: me + 1])) for sizes in (by, to))
            arriving = self._take("wide", sum(by), kind).copy_(arriving)
            arriving[own] = leaving[staying]
        if len(widths) > 1:
            by_member = arriving.split_with_sizes(by)
            arriving = _transposed(by_member, into.T, self._take("leaving", sum(by), kind))
        by_group = arriving.split_with_sizes(into.sum(1).tolist())
        return [matrix.view(-1, width) for matrix, width in zip(by_group, widths, strict=True)]

    def _take(self, name: Hashable, size: int, kind: torch.dtype) -> torch.Tensor:
        if kind == torch.float32:
            return self._buffers.take(name, size)
        return torch.empty(size, dtype=kind, device=self._device)

    def expect_sizes(self, groups: int, phase: str = "forward") -> None:
        """Post the receives of `sizes`, before the rank knows its own; those of a call that was interrupted stay."""
        if self._counts is not None:
            return
        received = torch.empty((self._members.size, groups + 1), dtype=torch.int64, device=self._device)
        tag = 0 if phase == "forward" else _LATE_COUNTS
        self._counts = received, Arrival(received.view(-1), [groups + 1] * self._members.size, self._members, tag)

    def sizes(self, counts: torch.Tensor, failed: torch.Tensor | bool, phase: str) -> tuple[Sizes, bool]:
        """Send each member its column of `(groups, members)` numbers of rows; returns the sizes, and whether any member has bad input."""
        groups, members = counts.shape
        if self._counts is None:
            self.expect_sizes(groups, phase)
        assert self._counts is not None
        (received, arrival), self._counts = self._counts, None
        sent = torch.empty_like(received)
        sent[:, :groups] = counts.T
        sent[:, groups] = failed
        label, elements = Label(phase, "counts"), [groups + 1] * members
        with self._meter.around(label):
            arrival.send(sent.view(-1), elements)
        # The only wait for the device: split sizes must be in main memory.
        to, by = (sent, received) if sent.device.type == "cpu" else torch.stack([sent, received]).cpu()
        to, by = to.numpy(), by.numpy()
        elements[self._members.me] = 0
        self._meter.add(label, self._members.links, elements, elements, sent.itemsize)
        return Sizes(to[:, :groups].T, by[:, :groups].T), bool(by[:, groups].any())


class Arrival:
    """The receives of one all-to-all, posted before anything is sent.

    gloo sends nothing before the receiver reports, over the connection of the pair, that it is ready. There the report waits behind data of
    the other direction, so the two directions take turns, in up to twice the time. Each direction therefore has a connection of its own. A
    receive that is posted early then costs no wait, and the thread that receives is not held up by one that sends.

    Attributes:
        tag: number that tells apart exchanges under way at one time: the place of its kind, and `_LATE_COUNTS`.
    """

    def __init__(self, target: torch.Tensor, sizes: Sequence[int], members: Members, tag: int) -> None:
        """Post the receives of `(members,)` numbers of elements into a contiguous target."""
        self._target, self._sizes, self._members, self.tag = target, list(sizes), members, tag
        self._parts, self._waiting = target.split_with_sizes(self._sizes), []
        if members.back is not None:
            with self._explained():
                for other in members.others(-1):
                    if sizes[other]:
                        way = members.connection(other, members.me)
                        self._waiting.append(way.recv([self._parts[other]], other, tag))

    def send(self, source: torch.Tensor, sizes: Sequence[int]) -> None:
        """Send `(members,)` elements of a contiguous tensor to each member, and wait for all."""
        members, leaving = self._members, source.split_with_sizes(list(sizes))
        with self._explained():
            if members.group is not None and members.back is None:
                dist.all_to_all_single(self._target, source, self._sizes, list(sizes), group=members.group)
                return
            _give_way()
            for other in members.others(1):
                if sizes[other]:
                    way = members.connection(members.me, other)
                    self._waiting.append(way.send([leaving[other]], other, self.tag))
            self._parts[members.me].copy_(leaving[members.me])
            for work in self._waiting:
                work.wait()

    def _explained(self) -> AbstractContextManager[None]:
        return explained(_KINDS[self.tag % _LATE_COUNTS])


def _transposed(parts: Sequence[torch.Tensor], sizes: Ints, out: torch.Tensor) -> torch.Tensor:
    """Join `(rows, columns)` chunks column by column; each part has one row of chunks, of these sizes in elements."""
    chunks = [part.reshape(-1).split_with_sizes(own) for part, own in zip(parts, sizes.tolist(), strict=True)]
    return torch.cat([chunk for column in zip(*chunks, strict=True) for chunk in column], out=out)


def _give_way() -> None:
    """Let gloo's threads that are ready run before this one sends.

    Else one of them may take this thread's core while this thread holds a connection's lock. It then spins on the lock until its time slice
    of about 4 ms ends. Such threads are often ready: other ranks post their receives while this one computes rows.
    """
    if hasattr(os, "sched_yield"):
        os.sched_yield()


class Buffers:
    """Vectors and matrices by name on one torch device. Every step reuses their memory, since fresh pages cost more than filling them."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._spare: dict[Hashable, torch.Tensor] = {}

    def take(self, name: Hashable, *shape: int) -> torch.Tensor:
        """Return an fp32 tensor of this shape and of unknown content, valid until the name is taken again."""
        size = math.prod(shape)
        spare = self._spare.get(name)
        if spare is None or spare.numel() < size:
            spare = torch.empty(size + size // 8, dtype=torch.float32, device=self._device)
            self._spare[name] = spare
        return spare[:size].view(shape)
