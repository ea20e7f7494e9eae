"""One exchange of rows inside a process group: questions one way, rows back, gradients the way of the questions.

All tables travel together: one message of counts, one of questions, one of rows. What a rank asks of itself is not sent.

A lookup is a *code*, made of the row's group, whom to ask, and what to ask for:

    code = (group × members + destination) << bits | question

Codes sort by group, then destination. Destinations are members of a process group in ascending order with the rank itself last, so that
what is sent lies before what stays. The question is a slot of the destination, or, to a proxy, a host and a slot.
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
"""Writes the rows from a start to a stop of a group into a tensor `(stop - start, dim)`."""


@dataclass(frozen=True)
class Codes:
    """How codes are laid out in 64 bits.

    Attributes:
        bits: of the question.
        members: of the process group.
        me: position of this rank in it.
    """

    bits: int
    members: int
    me: int

    def destinations(self, members: Ints) -> Ints:
        """`(n,)` destinations of `(n,)` members: others in ascending order, then the rank itself."""
        return np.where(members == self.me, self.members - 1, members - (members > self.me))

    def of(self, groups: Ints, members: Ints, questions: Ints) -> Ints:
        """`(n,)` codes of `(n,)` groups, members and questions."""
        codes: Ints = ((groups * self.members + self.destinations(members)) << self.bits) + questions
        return codes


@dataclass(frozen=True, eq=False)
class Route:
    """What one rank asks, and is asked, in one exchange.

    *Questions* are sorted by group, then destination, the rank itself last. *Asked* are the questions that arrive, by group, then the
    rank that asks, its own last.

    Attributes:
        sizes: questions to and from each member.
        questions: `(groups + 1,)` where the questions of each group start.
        lookups: `(groups + 1,)` where the lookups of each group start.
        order: `(n,)` lookups of the questions, side by side.
        starts: `(questions,)` where those of each question start; None where each question has one lookup.
        inverse: `(n,)` question of each lookup, counted inside its group.
        asked: `(groups,)` tensors of what is asked.
        failed: whether a member has had bad input.
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
        """Make a hop.

        Args:
            members: the process group.
            widths: columns of each group of tables.
            bits: of a question.
            meter: counts what is sent.
            device: where tensors lie.
            dedupe: whether equal questions are asked once.
        """
        self.codes = Codes(bits, members.size, members.me)
        self._wire, self._widths, self._dedupe = Wire(members, meter), widths, dedupe
        self._by_rank = torch.from_numpy(self.codes.destinations(np.arange(members.size))).to(device)
        self._buffers = Buffers(device)

    def ask(self, codes: torch.Tensor, lookups: list[int], label: Label, failed: torch.Tensor | bool = False) -> Route:
        """Send each question to the member that its code names.

        Args:
            codes: `(n,)` codes of the lookups, group after group.
            lookups: `(groups + 1,)` where those of each group start.
            label: for the meter.
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
        """How many codes go to each group and destination, their order, its inverse, and the questions in that order."""
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
        """The rows of this rank's questions, by group, where `fill` writes rows that are asked for."""
        return self._carry(route.sizes.back(), fill, ("asked", "questions"), label)

    def give_back(self, route: Route, take: Fill, label: Label) -> Rows:
        """Gradients of the rows that this rank was asked for, by group. `take` writes gradients of this rank's own questions."""
        return self._carry(route.sizes, take, ("questions", "asked"), label)

    def taker(self, route: Route, rows: Rows) -> Fill:
        """Takes the rows of lookups, by group, for `give_back`: as they are, or summed where equal questions are asked once."""
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
        """Send rows that `fill` writes; what arrives, with the rows that stay last."""
        leaving, found = [], []
        for group, (width, (out, into, own)) in enumerate(zip(self._widths, sizes.totals(), strict=True)):
            leaving.append(self._buffers.take((names[0], group), out, width))
            found.append(self._buffers.take((names[1], group), into + own, width))
            fill(group, 0, out, leaving[-1])
            fill(group, out, out + own, found[-1][into:])
        self._exchange(leaving, found, sizes, self._widths, label)
        return found

    def _exchange(self, leaving: Rows, found: Rows, sizes: Sizes, widths: Sequence[int], label: Label) -> None:
        """Send rows, and write what arrives before the rows that stay."""
        arriving = [rows[:into] for rows, (_, into, _) in zip(found, sizes.totals(), strict=True)]
        self._wire.exchange(leaving, arriving, sizes, widths, label)


@dataclass(frozen=True, eq=False)
class Distinct:
    """The distinct ones of some numbers, and where each occurs.

    Attributes:
        numbers: `(m,)` the distinct numbers, ascending.
        order: `(n,)` places of all numbers, equal ones side by side, each in order of place.
        starts: `(m,)` where the places of each distinct number start in `order`.
        counts: `(m,)` how often each occurs.
    """

    numbers: torch.Tensor
    order: torch.Tensor
    starts: torch.Tensor
    counts: torch.Tensor

    @classmethod
    def of(cls, numbers: torch.Tensor) -> Distinct:
        """Find the distinct ones of `(n,)` whole numbers."""
        ordered, order = torch.sort(numbers, stable=True)
        distinct, counts = torch.unique_consecutive(ordered, return_counts=True)
        return cls(distinct, order, torch.cumsum(counts, 0) - counts, counts)

    def inverse(self) -> torch.Tensor:
        """`(n,)` which of the distinct numbers is at each place."""
        which = torch.arange(self.numbers.numel(), device=self.order.device)
        inverse = torch.empty_like(self.order)
        inverse[self.order] = torch.repeat_interleave(which, self.counts, output_size=self.order.numel())
        return inverse


def summed(rows: torch.Tensor, order: torch.Tensor, starts: torch.Tensor) -> torch.Tensor:
    """`(m, c)` sums of `(n, c)` rows: the rows in `order` from each of the `(m,)` starts to the next one."""
    if starts.numel() == 0:
        return rows.new_zeros((0, rows.shape[1]))
    # A pooled lookup of the rows themselves: the fastest segment sum that torch has, and one that adds in order.
    return torch.embedding_bag(rows, order, starts, False, 0)[0]


def sum_equal(numbers: Rows, rows: Rows) -> tuple[Rows, Rows]:
    """By group, `(m,)` distinct numbers, ascending, and `(m, c)` sums of the `(n, c)` rows that belong to each."""
    found = [Distinct.of(one) for one in numbers]
    sums = [summed(matrix, one.order, one.starts) for matrix, one in zip(rows, found, strict=True)]
    return [one.numbers for one in found], sums


class Buffers:
    """Matrices by name on one torch device. Their memory serves every step, since fresh pages cost more than filling them."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._spare: dict[Hashable, torch.Tensor] = {}

    def take(self, name: Hashable, rows: int, width: int) -> torch.Tensor:
        """A `(rows, width)` fp32 matrix of unknown content, valid until the name is taken again."""
        spare = self._spare.get(name)
        if spare is None or spare.numel() < rows * width:
            spare = torch.empty(rows * width + rows * width // 8, device=self._device)
            self._spare[name] = spare
        return spare[: rows * width].view(rows, width)
