"""One exchange of rows inside a process group: questions go out, answers come back, and gradients follow the way of the questions.

All tables travel together: one message of counts, one of questions, one of answers. Questions of a rank to itself are not sent. In the
first groups each question is answered by its row. In the groups of sums after them, a bag's questions to one holder are neighbours and get
one answer, the sum of their rows. So the lowest bit of such a question tells whether it is the first of its bag: no lengths travel.

A lookup is encoded in a *code*, made of the row's group, its destination and a question:

    code = (group × members + destination) << bits | question

Codes sort by group, then destination. Destinations are the members of a process group in ascending order, but with the rank itself last,
so that rows to send lie before rows that stay. The question is a slot of the destination or, to a proxy, a host and a slot.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

import numpy as np
import torch

from shardwright._engine import runs_by_place, sort_by_place
from shardwright.arrays import Ints
from shardwright.runtime.placement import Group
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
        answers: number of their answers, counted in the direction of the questions.
        questions: `(groups + 1,)` start of each group's questions.
        lookups: `(groups + 1,)` start of each group's lookups.
        order: `(n,)` lookups sorted by question, so that those of one question are neighbours.
        starts: `(questions,)` start of each question's lookups in `order`; None if each question has one lookup.
        inverse: `(n,)` question of each lookup, counted inside its group.
        asked: for each group, a tensor of the questions that arrive.
        bags: for each group of sums, `(answers,)` bag of each answer to this rank, counted inside the group.
        members: likewise, the member that answers.
        failed: whether a member has bad input.
    """

    sizes: Sizes
    answers: Sizes
    questions: list[int]
    lookups: list[int]
    order: torch.Tensor
    starts: torch.Tensor | None
    inverse: torch.Tensor
    asked: list[torch.Tensor]
    bags: list[torch.Tensor]
    members: list[torch.Tensor]
    failed: bool


class Bags(NamedTuple):
    """The bags of a rank's lookups in the groups of sums.

    Attributes:
        of: `(n,)` bag of each lookup, ascending, counted through all groups.
        bounds: `(groups + 1,)` first bag of each group.
        weights: `(n,)` fp32 weights; None if no group is weighted.
    """

    of: torch.Tensor
    bounds: list[int]
    weights: torch.Tensor | None


class Hop:
    """Exchanges of rows among the members of one process group."""

    def __init__(
        self,
        members: Members,
        groups: Sequence[Group],
        bits: int,
        meter: TrafficMeter,
        device: torch.device,
        dedupe: bool,
        types: tuple[str, str] = ("fp32", "fp32"),
    ) -> None:
        """Create a hop.

        Args:
            members: the process group.
            groups: the groups of parts, those of sums last.
            bits: bits of a question.
            meter: counts the bytes sent.
            device: where tensors lie.
            dedupe: whether equal questions for rows are sent only once.
            types: types on the wire of answers and of gradients.
        """
        self.codes = Codes(bits, members.size, members.me)
        self.groups, self.row_groups = groups, sum(not group.sums for group in groups)
        self._wire, self._dedupe, self._types = Wire(members, meter), dedupe, types
        self._widths = [group.dim for group in groups]
        self._columns = [1 + (group.sums and group.weighted) for group in groups]  # of a question
        # Without sums, ids have the 8 bytes that `cost.flows` prices.
        short = self.row_groups < len(groups) and bits < 31
        self._id_type = torch.int32 if short else torch.int64
        by_rank = self.codes.destinations(np.arange(members.size))
        self._by_rank = torch.from_numpy(by_rank).to(device)
        self._member_at = torch.from_numpy(np.argsort(by_rank)).to(device)
        self._buffers, self._numbers = Buffers(device), Buffers(device, torch.int64)

    def ask(
        self,
        codes: torch.Tensor,
        lookups: list[int],
        label: Label,
        failed: torch.Tensor | bool = False,
        bags: Bags | None = None,
    ) -> Route:
        """Send each question to the member that its code names.

        Args:
            codes: `(n,)` codes of the lookups, group after group.
            lookups: `(groups + 1,)` start of each group's lookups.
            label: label for the meter.
            failed: whether this rank has bad input.
            bags: the bags of the groups of sums.
        """
        bits, groups, members = self.codes.bits, len(self.groups), self.codes.members
        rows, cut = self.row_groups, lookups[self.row_groups]
        starts: torch.Tensor | None = None
        if self._dedupe and rows:
            found = Distinct.of(codes[:cut])
            counts = torch.bincount(found.numbers >> bits, minlength=groups * members)
            questions, order, starts = found.numbers & ((1 << bits) - 1), found.order, found.starts
            inverse = found.inverse()
        else:
            counts, order, inverse, questions = self._sorted(codes[:cut])
        counts = counts.view(groups, members)
        if bags is not None and rows < groups:
            sums = self._runs(codes[cut:], bags)
            counts = torch.cat([counts + sums.counts, sums.answers[rows:]])
        sizes, any_failed = self._wire.sizes(counts[:, self._by_rank], failed, label.phase)
        sizes, answers = sizes.split(groups, rows)
        first = [0, *np.cumsum(sizes.sent.sum(1) + sizes.own).tolist()]
        for group in range(1, rows):
            inverse[lookups[group] : lookups[group + 1]] -= first[group]
        leaving, asked = [], []
        for group, (out, into, own) in enumerate(sizes.totals()):
            its, start = (questions, first[group]) if group < rows else (sums.questions, first[group] - first[rows])
            its = its[:, : self._columns[group]] if its.ndim > 1 else its
            leaving.append(its[start : start + out].to(self._id_type).contiguous())
            asked.append(its.new_empty((into + own, *its.shape[1:]), dtype=self._id_type))
            asked[-1][into:] = its[start + out : start + out + own]
        self._exchange(leaving, asked, sizes, self._columns, label)
        asked = [one.to(torch.int64) for one in asked]
        its_bags, its_members = ([], []) if rows == groups else sums.split(answers, rows)
        return Route(sizes, answers, first, lookups, order, starts, inverse, asked, its_bags, its_members, any_failed)

    def _runs(self, codes: torch.Tensor, bags: Bags) -> _Runs:
        """Put the lookups of one bag at one place next to each other: each such run gets one answer."""
        groups, members = len(self.groups), self.codes.members
        counts, answers, questions, heads, order = self._in_runs(codes, bags)
        places = torch.arange(groups * members, device=codes.device).repeat_interleave(
            answers, output_size=heads.numel()
        )
        first = torch.tensor([0] * self.row_groups + bags.bounds[:-1], device=codes.device)
        if bags.weights is not None:
            questions = torch.stack([questions, bags.weights[order].view(torch.int32).to(torch.int64)], 1)
        return _Runs(
            counts.view(groups, members),
            answers.view(groups, members),
            questions,
            heads - first[places // members],
            self._member_at[places % members],
        )

    def _in_runs(self, codes: torch.Tensor, bags: Bags) -> tuple[torch.Tensor, ...]:
        """Counts and runs of each place, questions with their marks, the bag of each run, and the order; that only if bags are weighted."""
        places = len(self.groups) * self.codes.members
        if codes.device.type == "cpu":
            counts, answers = torch.zeros((2, places), dtype=torch.int64)
            questions, heads = (self._numbers.take(name, codes.numel()) for name in ("questions", "heads"))
            order = self._numbers.take("order", codes.numel() if bags.weights is not None else 0)
            written = (one.numpy() for one in (counts, answers, questions, heads, order))
            runs_by_place(codes.numpy(), bags.of.numpy(), self.codes.bits, *written)
            return counts, answers, questions, heads[: int(answers.sum())], order
        counts, order, _, questions = self._sorted(codes)
        place, bag = codes[order] >> self.codes.bits, bags.of[order]
        first = torch.ones_like(place, dtype=torch.bool)
        first[1:] = (place[1:] != place[:-1]) | (bag[1:] != bag[:-1])
        answers = torch.bincount(place[first], minlength=places)
        return counts, answers, (questions << 1) + first, bag[first], order

    def _sorted(self, codes: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
        """Sort codes by place. Returns counts by group and destination, the order, its inverse, and the questions in that order."""
        bits, places = self.codes.bits, len(self.groups) * self.codes.members
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
        """Return the answers to this rank, by group. `fill` writes the answers to other members, and those to this rank."""
        return self._carry(route.answers.back(), fill, ("asked", "questions"), label, self._types[0])

    def give_back(self, route: Route, take: Fill, label: Label) -> Rows:
        """Return the gradients of the answers that this rank gave, by group. `take` writes the gradients of the answers it got."""
        return self._carry(route.answers, take, ("questions", "asked"), label, self._types[1])

    def taker(self, route: Route, rows: Rows) -> Fill:
        """Return the writer of lookups' rows for `give_back`; it sums rows of one question if equal questions are sent only once."""
        sums = []
        for group in range(self.row_groups if route.starts is not None else 0):
            assert route.starts is not None
            begin, end = route.lookups[group : group + 2]
            starts = route.starts[route.questions[group] : route.questions[group + 1]]
            sums.append(summed(rows[group], route.order[begin:end] - begin, starts - begin))

        def take(group: int, start: int, stop: int, out: torch.Tensor) -> None:
            if group < len(sums):
                out.copy_(sums[group][start:stop])
                return
            if group < self.row_groups:
                first = route.questions[group]
                wanted = route.order[first + start : first + stop] - route.lookups[group]
            else:
                wanted = route.bags[group - self.row_groups][start:stop]
            torch.index_select(rows[group], 0, wanted, out=out)

        return take

    def _carry(self, sizes: Sizes, fill: Fill, names: tuple[str, str], label: Label, dtype: str) -> Rows:
        """Send the rows that `fill` writes; returns the rows that arrive, followed by those that stay."""
        leaving, found = [], []
        for group, (width, (out, into, own)) in enumerate(zip(self._widths, sizes.totals(), strict=True)):
            leaving.append(self._buffers.take((names[0], group), out, width))
            found.append(self._buffers.take((names[1], group), into + own, width))
            fill(group, 0, out, leaving[-1])
            fill(group, out, out + own, found[-1][into:])
        self._exchange(leaving, found, sizes, self._widths, label, dtype)
        return found

    def _exchange(
        self, leaving: Rows, found: Rows, sizes: Sizes, widths: Sequence[int], label: Label, dtype: str = ""
    ) -> None:
        """Send rows, and write arriving rows before those that stay."""
        arriving = [rows[:into] for rows, (_, into, _) in zip(found, sizes.totals(), strict=True)]
        self._wire.exchange(leaving, arriving, sizes, widths, label, dtype)


class _Runs(NamedTuple):
    """The questions of groups of sums: `(groups, members)` counts of questions and answers, questions, bag and member of each answer."""

    counts: torch.Tensor
    answers: torch.Tensor
    questions: torch.Tensor
    bags: torch.Tensor
    members: torch.Tensor

    def split(self, answers: Sizes, rows: int) -> tuple[Rows, Rows]:
        """Bags and members of the answers of each group; sums begin after `rows` groups."""
        numbers = (answers.sent.sum(1) + answers.own)[rows:].tolist()
        return list(self.bags.split(numbers)), list(self.members.split(numbers))


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


def sum_equal(numbers: Rows, rows: Rows, orders: Rows | None = None) -> tuple[Rows, Rows]:
    """By group, return `(m,)` ascending distinct numbers and `(m, c)` sums of the `(n, c)` rows that belong to each.

    Args:
        numbers: `(n,)` of each group.
        rows: `(n, c)` of each group.
        orders: `(n,)` order in which rows of one number are added; that of their places unless given.
    """
    if orders is None:
        found = [Distinct.of(one) for one in numbers]
        sums = [summed(matrix, one.order, one.starts) for matrix, one in zip(rows, found, strict=True)]
    else:
        found = [Distinct.of(one[order]) for one, order in zip(numbers, orders, strict=True)]
        sums = [
            summed(matrix, order[one.order], one.starts) for matrix, one, order in zip(rows, found, orders, strict=True)
        ]
    return [one.numbers for one in found], sums


class Buffers:
    """Vectors and matrices by name on one torch device. Every step reuses their memory, since fresh pages cost more than filling them."""

    def __init__(self, device: torch.device, dtype: torch.dtype = torch.float32) -> None:
        self._device, self._dtype = device, dtype
        self._spare: dict[Hashable, torch.Tensor] = {}

    def take(self, name: Hashable, *shape: int) -> torch.Tensor:
        """Return a tensor of this shape and of unknown content, valid until the name is taken again."""
        size = math.prod(shape)
        spare = self._spare.get(name)
        if spare is None or spare.numel() < size:
            spare = torch.empty(size + size // 8, device=self._device, dtype=self._dtype)
            self._spare[name] = spare
        return spare[:size].view(shape)
