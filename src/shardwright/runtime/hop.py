"""One exchange of rows inside a process group: questions go out, answers come back, and gradients follow the way of the questions.

All tables travel together: one message of counts, one of questions, one of answers. Questions of a rank to itself are not sent. In the
first groups each question is answered by its row. In the groups of sums after them, a bag's questions to one holder are neighbours and get
one answer, the sum of their rows. The lowest bit of such a question marks the first of its bag, so no lengths travel.

A lookup is encoded in a *code*, made of the row's group, the member of the process group that answers, and a question:

    code = (group × members + member) << bits | question

Codes sort by group, then member. The question is a slot of the member or, to a proxy, a host and a slot.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import NamedTuple, TypeAlias

import numpy as np
import torch

from shardwright._engine import runs_by_place, sort_by_place
from shardwright.arrays import Ints
from shardwright.runtime.placement import Group
from shardwright.runtime.process_groups import Members
from shardwright.runtime.wire import Label, Rows, Sizes, TrafficMeter, Wire

Find: TypeAlias = Callable[[int], torch.Tensor]
"""Called with a group: computes its `(n, dim)` rows for all members, in their order."""


@dataclass(frozen=True, eq=False)
class Route:
    """The questions that one rank sends and receives in one exchange.

    *Questions* are sorted by group, then by the member that answers. *Asked* are the questions that arrive, sorted by group, then by the
    member that asks.

    Attributes:
        answers: number of answers from and to each member, counted in the direction of the questions.
        questions: `(groups + 1,)` start of each group's questions.
        lookups: `(groups + 1,)` start of each group's lookups.
        order: `(n,)` lookups sorted by question, so that those of one question are neighbours.
        starts: `(questions,)` start of each question's lookups in `order`; None if each question has one lookup.
        inverse: `(n,)` question of each lookup, counted inside its group.
        asked: for each group, a tensor of the questions that arrive; in groups of sums as `HeldBags.of` reads them.
        bags: for each group of sums, `(answers,)` bag of each answer to this rank, counted inside the group.
        failed: whether a member has bad input.
    """

    answers: Sizes
    questions: list[int]
    lookups: list[int]
    order: torch.Tensor
    starts: torch.Tensor | None
    inverse: torch.Tensor
    asked: list[torch.Tensor]
    bags: list[torch.Tensor]
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
    """Exchanges of rows among the members of one process group.

    Attributes:
        groups: the groups of tables; those of sums come last.
        row_groups: number of groups without sums.
    """

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
        """Create a hop for questions of some bits. `types` are those of answers and of gradients on the wire."""
        self._bits, self._members = bits, members.size
        self.groups, self.row_groups = groups, sum(not group.sums for group in groups)
        self._wire, self._dedupe, self._types = Wire(members, meter, device), dedupe, types
        self._widths = [group.dim for group in groups]
        self._columns = [1 + (group.sums and group.weighted) for group in groups]  # of a question
        # Without sums, ids have the 8 bytes that `cost.flows` prices.
        short = self.row_groups < len(groups) and bits < 31
        self._id_type = torch.int32 if short else torch.int64

    def codes(self, groups: Ints, members: Ints, questions: Ints) -> Ints:
        """`(n,)` codes of `(n,)` groups, members and questions."""
        codes: Ints = ((groups * self._members + members) << self._bits) + questions
        return codes

    def forwarded(self, group: int, questions: torch.Tensor) -> torch.Tensor:
        """`(n,)` codes of `(n,)` questions to a proxy, about rows of a group: this hop's members are hosts."""
        return questions + (group * self._members << self._bits)

    def expect(self) -> None:
        """Get ready to be asked, before this rank can ask itself."""
        self._wire.expect_sizes(2 * len(self.groups) - self.row_groups)

    def ask(
        self,
        codes: torch.Tensor,
        lookups: list[int],
        label: Label,
        failed: torch.Tensor | bool = False,
        bags: Bags | None = None,
    ) -> Route:
        """Send each question of `(n,)` codes to the member that it names; `(groups + 1,)` lookups are the start of each group's codes."""
        bits, groups, members = self._bits, len(self.groups), self._members
        rows, cut = self.row_groups, lookups[self.row_groups]
        starts: torch.Tensor | None = None
        if self._dedupe and rows:
            distinct = Distinct.of(codes[:cut])
            counts = torch.bincount(distinct.numbers >> bits, minlength=groups * members)
            questions, order, starts = distinct.numbers & ((1 << bits) - 1), distinct.order, distinct.starts
            inverse = distinct.inverse()
        else:
            counts, order, inverse, questions = self._sorted(codes[:cut])
        counts, questions = counts.view(groups, members), questions.to(self._id_type)
        if rows < groups:
            assert bags is not None
            more, answers_of_bags, questions_of_bags, heads = self._runs(codes[cut:], bags)
            counts = torch.cat([counts + more, answers_of_bags[rows:]])
            questions_of_bags = questions_of_bags.to(self._id_type)
        sizes, any_failed = self._wire.sizes(counts, failed, label.phase)
        sizes, answers = sizes.split(groups, rows)
        first = bounds_of(sizes.sent.sum(1).tolist())
        for group in range(1, rows):
            inverse[lookups[group] : lookups[group + 1]] -= first[group]

        def of_group(group: int) -> torch.Tensor:
            its, start = (questions, first[group]) if group < rows else (questions_of_bags, first[group] - first[rows])
            its = its[:, : self._columns[group]] if its.ndim > 1 else its
            return its[start : start + first[group + 1] - first[group]]

        arrived = self._wire.exchange(of_group, sizes, self._columns, label, self._id_type)
        asked = [its.flatten() if columns == 1 else its for its, columns in zip(arrived, self._columns, strict=True)]
        asked[:rows] = [its.to(torch.int64) for its in asked[:rows]]
        its_bags = [] if rows == groups else list(heads.split_with_sizes(answers.sent.sum(1)[rows:].tolist()))
        return Route(answers, first, lookups, order, starts, inverse, asked, its_bags, any_failed)

    def _runs(self, codes: torch.Tensor, bags: Bags) -> tuple[torch.Tensor, ...]:
        """Put the lookups of one bag at one place next to each other; each such run gets one answer.

        Returns:
            `(groups, members)` counts of questions and of answers, the questions, and the bag of each answer.
        """
        groups, members = len(self.groups), self._members
        counts, answers, questions, heads, order = self._in_runs(codes, bags)
        if bags.weights is not None:
            questions = torch.stack([questions, bags.weights[order].view(torch.int32).to(torch.int64)], 1)
        shape = groups, members
        return counts.view(shape), answers.view(shape), questions, heads

    def _in_runs(self, codes: torch.Tensor, bags: Bags) -> tuple[torch.Tensor, ...]:
        """Counts and runs of each place, questions with their marks, the bag of each run, and, only if bags are weighted, the order."""
        places = len(self.groups) * self._members
        first_bags = np.repeat([0] * self.row_groups + bags.bounds[:-1], self._members)
        if codes.device.type == "cpu":
            counts, answers = torch.zeros((2, places), dtype=torch.int64)
            questions, heads = torch.empty_like(codes), torch.empty_like(codes)
            order = torch.empty_like(codes) if bags.weights is not None else codes[:0]
            written = (tensor.numpy() for tensor in (counts, answers, questions, heads, order))
            runs_by_place(codes.numpy(), bags.of.numpy(), first_bags, self._bits, *written)
            return counts, answers, questions, heads[: int(answers.sum())], order
        counts, order, _, questions = self._sorted(codes)
        place, bag = codes[order] >> self._bits, bags.of[order]
        first = torch.ones_like(place, dtype=torch.bool)
        first[1:] = (place[1:] != place[:-1]) | (bag[1:] != bag[:-1])
        answers = torch.bincount(place[first], minlength=places)
        heads = bag[first] - torch.from_numpy(first_bags).to(codes.device)[place[first]]
        return counts, answers, (questions << 1) + first, heads, order

    def _sorted(self, codes: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
        """Sort codes by place. Returns counts by group and destination, the order, its inverse, and the questions in that order."""
        bits, places = self._bits, len(self.groups) * self._members
        if codes.device.type == "cpu":
            counts = torch.zeros(places, dtype=torch.int64)
            order, inverse, questions = (torch.empty_like(codes) for _ in range(3))
            written = (tensor.numpy() for tensor in (counts, order, inverse, questions))
            sort_by_place(codes.numpy(), bits, *written)
            return counts, order, inverse, questions
        place = codes >> bits
        order = torch.sort(place, stable=True).indices
        inverse = torch.empty_like(order)
        inverse[order] = torch.arange(order.numel(), device=order.device)
        return torch.bincount(place, minlength=places), order, inverse, codes[order] & ((1 << bits) - 1)

    def answer(self, route: Route, find: Find, label: Label) -> Rows:
        """Return the answers to this rank, by group; `find` computes those of this rank."""
        sizes = route.answers.back()
        return self._wire.exchange(find, sizes, self._widths, label, dtype=self._types[0])

    def give_back(self, route: Route, rows: Rows, label: Label) -> Rows:
        """Return, by group, the gradients of the answers that this rank gave, from those of its own lookups or bags.

        Gradients of one question are summed first if equal questions are sent only once.
        """

        def taken(group: int) -> torch.Tensor:
            if group >= self.row_groups:
                return rows[group].index_select(0, route.bags[group - self.row_groups])
            (begin, end), first = route.lookups[group : group + 2], route.questions[group]
            order = route.order[begin:end] - begin
            if route.starts is None:
                return rows[group].index_select(0, order)
            return summed(rows[group], order, route.starts[first : route.questions[group + 1]] - begin)

        return self._wire.exchange(taken, route.answers, self._widths, label, dtype=self._types[1])


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


def bounds_of(counts: Sequence[int]) -> list[int]:
    """`(n + 1,)` start of each of `n` neighbours that have these counts, and the end of the last."""
    return [0, *accumulate(counts)]


def summed(rows: torch.Tensor, order: torch.Tensor, starts: torch.Tensor) -> torch.Tensor:
    """`(m, c)` sums of `(n, c)` rows: each sum covers the rows in `order` from one of the `(m,)` starts to the next."""
    if starts.numel() == 0:
        return rows.new_zeros((0, rows.shape[1]))
    # A pooled lookup of the rows themselves is torch's fastest segment sum, and it adds in order.
    return torch.embedding_bag(rows, order, starts, False, 0)[0]


def sum_equal(numbers: Rows, rows: Rows) -> tuple[Rows, Rows]:
    """By group, return `(m,)` ascending distinct numbers and `(m, c)` sums of the `(n, c)` rows of each, added in the order of places."""
    distinct = [Distinct.of(its) for its in numbers]
    sums = [summed(matrix, its.order, its.starts) for matrix, its in zip(rows, distinct, strict=True)]
    return [its.numbers for its in distinct], sums
