"""One exchange of rows inside a process group: questions one way, rows back, gradients the way of the questions.

All tables travel together: one message of counts, one of questions, one of rows. What a rank asks of itself is not sent.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import torch

from shardwright._engine import sort_by_place
from shardwright.runtime.buffers import Buffers
from shardwright.runtime.process_groups import Members
from shardwright.runtime.routing import Codes
from shardwright.runtime.sums import Groups, summed
from shardwright.runtime.traffic import TrafficMeter
from shardwright.runtime.wire import Label, Rows, Sizes, Wire

Fill: TypeAlias = Callable[[int, int, int, torch.Tensor], None]
"""Writes the rows from a start to a stop of a group into a tensor `(stop - start, dim)`."""


@dataclass(frozen=True, eq=False)
class Route:
    """What one rank asks, and is asked, in one exchange.

    *Questions* are sorted by group, then destination, the rank itself last. *Asked* are the questions that arrive, by group, then the
    rank that asks, its own last.

    Attributes:
        sizes: questions to and from each member.
        order: `(n,)` lookups of the questions, side by side.
        starts: `(questions,)` where those of each question start; None where each question has one lookup.
        inverse: `(n,)` question of each lookup, counted inside its group.
        lookups: `(groups + 1,)` where the lookups of each group start.
        asked: `(groups,)` tensors of what is asked.
        failed: whether a member has had bad input.
    """

    sizes: Sizes
    order: torch.Tensor
    starts: torch.Tensor | None
    inverse: torch.Tensor
    lookups: list[int]
    asked: list[torch.Tensor]
    failed: bool

    def questions(self, group: int) -> int:
        """Questions of a group, those to the rank itself among them."""
        return self.sizes.leaving(group) + self.sizes.staying(group)


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
        self._wire, self._widths, self._device, self._dedupe = Wire(members, meter), widths, device, dedupe
        self._by_rank = torch.from_numpy(self.codes.destinations(np.arange(members.size))).to(device)
        self._buffers = Buffers(device)

    def ask(self, codes: torch.Tensor, lookups: list[int], label: Label, failed: torch.Tensor | bool = False) -> Route:
        """Send questions to whom they belong.

        Args:
            codes: `(n,)` codes of the lookups, group after group.
            lookups: `(groups + 1,)` where those of each group start.
            label: for the meter.
            failed: whether this rank has bad input.
        """
        bits, groups, members = self.codes.bits, len(self._widths), self.codes.members
        starts: torch.Tensor | None = None
        if self._dedupe:
            found = Groups.of(codes)
            counts = torch.bincount(found.distinct >> bits, minlength=groups * members)
            questions, order, starts = found.distinct & ((1 << bits) - 1), found.order, found.starts
            inverse = found.inverse()
        else:
            counts, order, inverse, questions = self._sorted(codes)
        counts = counts.view(groups, members)[:, self._by_rank]
        sizes, any_failed = self._wire.sizes(counts, failed, label.phase)
        first = np.cumsum(sizes.sent.sum(1) + sizes.own)
        for group in range(1, groups):
            inverse[lookups[group] : lookups[group + 1]] -= int(first[group - 1])
        asked = self._tell(questions, sizes, label)
        return Route(sizes, order, starts, inverse, lookups, asked, any_failed)

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
        """The rows, as gradients, of what this rank was asked, by group, where `take` writes rows of this rank's questions."""
        return self._carry(route.sizes, take, ("questions", "asked"), label)

    def taker(self, route: Route, rows: Rows) -> Fill:
        """Takes the rows of lookups, by group, for `give_back`: as they are, or summed where equal questions are asked once."""
        if route.starts is None:
            ends = np.cumsum([0, *(route.questions(group) for group in range(len(rows)))]).tolist()

            def take(group: int, start: int, stop: int, out: torch.Tensor) -> None:
                lookups = route.order[ends[group] + start : ends[group] + stop] - route.lookups[group]
                torch.index_select(rows[group], 0, lookups, out=out)

            return take
        sums = []
        first = 0
        for group, matrix in enumerate(rows):
            begin, end = route.lookups[group], route.lookups[group + 1]
            last = first + route.questions(group)
            sums.append(summed(matrix, route.order[begin:end] - begin, route.starts[first:last] - begin))
            first = last

        def take_sums(group: int, start: int, stop: int, out: torch.Tensor) -> None:
            out.copy_(sums[group][start:stop])

        return take_sums

    def _carry(self, sizes: Sizes, fill: Fill, names: tuple[str, str], label: Label) -> Rows:
        """Send rows that `fill` writes, those that stay last; the rows that arrive, likewise."""
        leaving, found = [], []
        for group, width in enumerate(self._widths):
            out, into, own = sizes.leaving(group), sizes.arriving(group), sizes.staying(group)
            leaving.append(self._buffers.take((names[0], group), out, width))
            found.append(self._buffers.take((names[1], group), into + own, width))
            fill(group, 0, out, leaving[-1])
            fill(group, out, out + own, found[-1][into:])
        arriving = [rows[: sizes.arriving(group)] for group, rows in enumerate(found)]
        self._wire.exchange(leaving, arriving, sizes, self._widths, label)
        return found

    def _tell(self, questions: torch.Tensor, sizes: Sizes, label: Label) -> list[torch.Tensor]:
        """`(groups,)` tensors of what this rank is asked, its own questions last."""
        leaving, asked = [], []
        start = 0
        for group in range(len(self._widths)):
            out, into, own = sizes.leaving(group), sizes.arriving(group), sizes.staying(group)
            leaving.append(questions[start : start + out])
            asked.append(torch.empty(into + own, dtype=torch.int64, device=self._device))
            asked[-1][into:] = questions[start + out : start + out + own]
            start += out + own
        arriving = [ids[: sizes.arriving(group)] for group, ids in enumerate(asked)]
        self._wire.exchange(leaving, arriving, sizes, [1] * len(asked), label)
        return asked
