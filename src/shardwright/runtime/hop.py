"""One exchange of rows inside a process group: questions go out, rows come back, and gradients follow the way of the questions.

All tables travel together: one message of counts, one of questions, one of rows. Questions of a rank to itself are not sent.

A lookup is encoded in a *code*, made of the row's group, its destination and a question:

    code = (group × members + destination) << bits | question

Codes sort by group, then destination. Destinations are the members of a process group in ascending order, but with the rank itself last,
so that rows to send lie before rows that stay. The question is a slot of the destination or, to a proxy, a host and a slot.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import torch

from shardwright._engine import sort_by_place
from shardwright.arrays import Ints
from shardwright.runtime.process_groups import Members
from shardwright.runtime.wire import Label, Rows, Sizes, TrafficMeter, Wire

Fill: TypeAlias = Callable[[int, int, int, torch.Tensor], None]
"""Called with group, start, stop and tensor: writes the rows `[start, stop)` of the group into the `(stop - start, dim)` tensor."""


@dataclass(frozen=True)
class Codes:
    """The layout of codes in 64 bits.

    Attributes:
        bits: bits of the question.
        members: members of the process group.
        me: position of this rank in the process group.
    """

    bits: int
    members: int
    me: int

    def destinations(self, members: Ints) -> Ints:
        """`(n,)` destinations of `(n,)` members: other members in ascending order, then the rank itself."""
        return np.where(members == self.me, self.members - 1, members - (members > self.me))

    def of(self, groups: Ints, members: Ints, questions: Ints) -> Ints:
        """`(n,)` codes of `(n,)` groups, members and questions."""
        codes: Ints = ((groups * self.members + self.destinations(members)) << self.bits) + questions
        return codes


@dataclass(frozen=True, eq=False)
class Route:
    """The questions that one rank sends and receives in one exchange.

    *Questions* are sorted by group, then destination, with the rank itself last. *Asked* are the questions that arrive, sorted by group,
    then by the asking rank, with this rank's own last.

    Attributes:
        sizes: number of questions to and from each member.
        questions: `(groups + 1,)` start of each group's questions.
        lookups: `(groups + 1,)` start of each group's lookups.
        order: `(n,)` lookups sorted by question, so that those of one question are neighbours.
        starts: `(questions,)` start of each question's lookups in `order`; None if each question has one lookup.
        inverse: `(n,)` question of each lookup, counted inside its group.
        asked: for each group, a tensor of the questions that arrive.
        failed: whether a member has bad input.
    """

    sizes: Sizes
    questions: list[int]
    lookups: list[int]
    order: torch.Tensor
    starts: torch.Tensor | None
    inverse: torch.Tensor
    asked: list[torch.Tensor]
    failed: bool


class Hop:
    """Exchanges of rows among the members of one process group."""

    def __init__(
        self,
        members: Members,
        widths: Sequence[int],
        bits: int,
        meter: TrafficMeter,
        device: torch.device,
        dedupe: bool,
    ) -> None:
        """Create a hop.

        Args:
            members: the process group.
            widths: columns of each group of tables.
            bits: bits of a question.
            meter: counts the bytes sent.
            device: where tensors lie.
            dedupe: whether equal questions are sent only once.
        """
        self.codes = Codes(bits, members.size, members.me)
        self._wire, self._widths, self._dedupe = Wire(members, meter), widths, dedupe
        self._by_rank = torch.from_numpy(self.codes.destinations(np.arange(members.size))).to(device)
        self._buffers = Buffers(device)

    def ask(self, codes: torch.Tensor, lookups: list[int], label: Label, failed: torch.Tensor | bool = False) -> Route:
        """Send each question to the member that its code names.

        Args:
            codes: `(n,)` codes of the lookups, group after group.
            lookups: `(groups + 1,)` start of each group's lookups.
            label: label for the meter.
            failed: whether this rank has bad input.
        """
        bits, groups, members = self.codes.bits, len(self._widths), self.codes.members
        starts: torch.Tensor | None = None
        if self._dedupe:
            found = Distinct.of(codes)
            counts = torch.bincount(found.numbers >> bits, minlength=groups * members)
            questions, order, starts = found.numbers & ((1 << bits) - 1), found.order, found.starts
            inverse = found.inverse()
        else:
            counts, order, inverse, questions = self._sorted(codes)
        counts = counts.view(groups, members)[:, self._by_rank]
        sizes, any_failed = self._wire.sizes(counts, failed, label.phase)
        first = [0, *np.cumsum(sizes.sent.sum(1) + sizes.own).tolist()]
        for group in range(1, groups):
            inverse[lookups[group] : lookups[group + 1]] -= first[group]
        leaving, asked = [], []
        for start, (out, into, own) in zip(first, sizes.totals(), strict=False):
            leaving.append(questions[start : start + out])
            asked.append(questions.new_empty(into + own))
            asked[-1][into:] = questions[start + out : start + out + own]
        self._exchange(leaving, asked, sizes, [1] * groups, label)
        return Route(sizes, first, lookups, order, starts, inverse, asked, any_failed)

    def _sorted(self, codes: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
        """Sort codes by place. Returns counts by group and destination, the order, its inverse, and the questions in that order."""
        bits, places = self.codes.bits, len(self._widths) * self.codes.members
        if codes.device.type == "cpu":
            counts = torch.zeros(places, dtype=torch.int64)
            order, inverse, questions = (torch.empty_like(codes) for _ in range(3))
            written = (one.numpy() for one in (counts, order, inverse, questions))
            sort_by_place(codes.numpy(), bits, *written)
            return counts, order, inverse, questions
        place = codes >> bits
        order = torch.sort(place, stable=True).indices
        inverse = torch.empty_like(order)
        inverse[order] = torch.arange(order.numel(), device=order.device)
        return torch.bincount(place, minlength=places), order, inverse, codes[order] & ((1 << bits) - 1)

    def answer(self, route: Route, fill: Fill, label: Label) -> Rows:
        """Return the rows of this rank's questions, by group. `fill` writes the rows that other members ask for, and this rank's own."""
        return self._carry(route.sizes.back(), fill, ("asked", "questions"), label)

    def give_back(self, route: Route, take: Fill, label: Label) -> Rows:
        """Return the gradients of the rows that this rank was asked for, by group. `take` writes the gradients of its own questions."""
        return self._carry(route.sizes, take, ("questions", "asked"), label)

    def taker(self, route: Route, rows: Rows) -> Fill:
        """Return the writer of lookups' rows for `give_back`; it sums rows of one question if equal questions are sent only once."""
        if route.starts is None:

            def take(group: int, start: int, stop: int, out: torch.Tensor) -> None:
                first = route.questions[group]
                lookups = route.order[first + start : first + stop] - route.lookups[group]
                torch.index_select(rows[group], 0, lookups, out=out)

            return take
        sums = []
        for group, matrix in enumerate(rows):
            begin, end = route.lookups[group : group + 2]
            starts = route.starts[route.questions[group] : route.questions[group + 1]]
            sums.append(summed(matrix, route.order[begin:end] - begin, starts - begin))

        def take_sums(group: int, start: int, stop: int, out: torch.Tensor) -> None:
            out.copy_(sums[group][start:stop])

        return take_sums

    def _carry(self, sizes: Sizes, fill: Fill, names: tuple[str, str], label: Label) -> Rows:
        """Send the rows that `fill` writes; returns the rows that arrive, followed by those that stay."""
        leaving, found = [], []
        for group, (width, (out, into, own)) in enumerate(zip(self._widths, sizes.totals(), strict=True)):
            leaving.append(self._buffers.take((names[0], group), out, width))
            found.append(self._buffers.take((names[1], group), into + own, width))
            fill(group, 0, out, leaving[-1])
            fill(group, out, out + own, found[-1][into:])
        self._exchange(leaving, found, sizes, self._widths, label)
        return found

    def _exchange(self, leaving: Rows, found: Rows, sizes: Sizes, widths: Sequence[int], label: Label) -> None:
        """Send rows, and write arriving rows before those that stay."""
        arriving = [rows[:into] for rows, (_, into, _) in zip(found, sizes.totals(), strict=True)]
        self._wire.exchange(leaving, arriving, sizes, widths, label)


@dataclass(frozen=True, eq=False)
class Distinct:
    """The distinct values of some numbers, and the places where each occurs.

    Attributes:
        numbers: `(m,)` distinct numbers, ascending.
        order: `(n,)` places of all numbers, equal numbers next to each other, each in order of place.
        starts: `(m,)` start of each distinct number's places in `order`.
        counts: `(m,)` number of occurrences of each.
    """

    numbers: torch.Tensor
    order: torch.Tensor
    starts: torch.Tensor
    counts: torch.Tensor

    @classmethod
    def of(cls, numbers: torch.Tensor) -> Distinct:
        """Find the distinct values of `(n,)` whole numbers."""
        ordered, order = torch.sort(numbers, stable=True)
        distinct, counts = torch.unique_consecutive(ordered, return_counts=True)
        return cls(distinct, order, torch.cumsum(counts, 0) - counts, counts)

    def inverse(self) -> torch.Tensor:
        """`(n,)` index of the distinct number at each place."""
        which = torch.arange(self.numbers.numel(), device=self.order.device)
        inverse = torch.empty_like(self.order)
        inverse[self.order] = torch.repeat_interleave(which, self.counts, output_size=self.order.numel())
        return inverse


def summed(rows: torch.Tensor, order: torch.Tensor, starts: torch.Tensor) -> torch.Tensor:
    """`(m, c)` sums of `(n, c)` rows: each sum covers the rows in `order` from one of the `(m,)` starts to the next."""
    if starts.numel() == 0:
        return rows.new_zeros((0, rows.shape[1]))
    # A pooled lookup of the rows themselves is torch's fastest segment sum, and it adds in order.
    return torch.embedding_bag(rows, order, starts, False, 0)[0]


def sum_equal(numbers: Rows, rows: Rows) -> tuple[Rows, Rows]:
    """By group, return `(m,)` ascending distinct numbers and `(m, c)` sums of the `(n, c)` rows that belong to each."""
    found = [Distinct.of(one) for one in numbers]
    sums = [summed(matrix, one.order, one.starts) for matrix, one in zip(rows, found, strict=True)]
    return [one.numbers for one in found], sums


class Buffers:
    """Matrices by name on one torch device. Every step reuses their memory, since fresh pages cost more than filling them."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._spare: dict[Hashable, torch.Tensor] = {}

    def take(self, name: Hashable, rows: int, width: int) -> torch.Tensor:
        """Return a `(rows, width)` fp32 matrix of unknown content, valid until the name is taken again."""
        spare = self._spare.get(name)
        if spare is None or spare.numel() < rows * width:
            spare = torch.empty(rows * width + rows * width // 8, device=self._device)
            self._spare[name] = spare
        return spare[: rows * width].view(rows, width)
