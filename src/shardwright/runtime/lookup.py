"""The way of a step's lookups: directly to the holders, or through proxies inside the host.

Without proxies, a rank asks the holder of each row. With proxies (de-duplication by host), it asks the device on its own host that has the
holder's local rank. The proxies of a rail then ask each other for the distinct rows that their hosts need. Proxies do not
reduce the traffic of sums, so sums then travel directly. Otherwise rows and sums travel in the same messages.

A holder adds the rows of a bag in the order of its lookups, and a rank the sums of a bag in the order of ranks. A holder adds the gradients
of a row in the order of ranks, and within a rank in the order of lookups. So outputs and gradients do not depend on the holders, except
bags and gradients that were summed in parts.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch

from shardwright._engine import find_codes as native_find_codes
from shardwright.arrays import Ints
from shardwright.runtime.bags import HeldBags, in_bags
from shardwright.runtime.features import RankBatch
from shardwright.runtime.hop import Bags, Find, Hop, Route, bounds_of, sum_equal
from shardwright.runtime.placement import Placement
from shardwright.runtime.process_groups import Ranks
from shardwright.runtime.ranking import Ranking
from shardwright.runtime.storage import Storage
from shardwright.runtime.wire import Label, Rows, TrafficMeter

_IDS, _VALUES, _GRADIENTS = Label("forward", "ids"), Label("forward", "values"), Label("backward", "gradients")


class Way(NamedTuple):
    """The way of some groups' lookups. Those of sums take the last way.

    Attributes:
        groups: the groups.
        hops: the exchanges, the rank's own lookups first: one to the holders, or one to the proxies and one among them.
    """

    groups: slice
    hops: list[Hop]


class Journey(NamedTuple):
    """The routes of one step's lookups.

    Attributes:
        routes: for each way, one route per hop.
        held: for each group of sums, the bags that this rank answers.
    """

    routes: list[list[Route]]
    held: list[HeldBags]

    @property
    def failed(self) -> bool:
        """Whether any rank has bad input."""
        return self.routes[-1][-1].failed


class Lookup:
    """Bring rows and sums to the ranks that look them up, and gradients back to the holders."""

    def __init__(self, placement: Placement, ranks: Ranks, storage: Storage, meter: TrafficMeter) -> None:
        topology, exchange = placement.plan.task.topology, placement.plan.task.exchange
        way, types = exchange.deduplicate, (exchange.values, exchange.gradients)
        bits, per_host, device = placement.slot_bits, topology.devices_per_host, ranks.device
        rows = placement.row_groups
        proxies = way == "host" and min(topology.hosts, per_host) > 1 and rows > 0
        holders = placement.nearest(ranks.rank)
        questions = placement.slots(np.arange(holders.size), holders)
        self._placement, self._storage = placement, storage
        first = rows if proxies else 0
        direct = Hop(ranks.world, placement.groups[first:], bits, meter, device, way != "none", types)
        codes = direct.codes(placement.group_of_range - first, holders, questions)
        self._ways = [Way(slice(first, len(placement.groups)), [direct])]
        if proxies:
            groups = placement.groups[:rows]
            to_proxy = Hop(ranks.host, groups, bits + topology.hosts.bit_length(), meter, device, True, types)
            onward = Hop(ranks.rail, groups, bits, meter, device, True, types)
            ways = [Way(slice(0, rows), [to_proxy, onward]), *self._ways]
            self._ways = ways[: 1 + (rows < len(placement.groups))]
            questions += holders // per_host << bits
            by_proxy = to_proxy.codes(placement.group_of_range, holders % per_host, questions)
            codes = np.where(placement.group_of_range < rows, by_proxy, codes)
        self._router = Router(placement, codes, device)
        of_part = [np.unique(holders[placement.part_of_range == part]) for part in range(len(placement.parts))]
        cut = {group for group, asked in zip(placement.group_of.tolist(), of_part, strict=True) if asked.size > 1}
        self._cut = [group in cut for group in range(rows, len(placement.groups))]

    def expect(self) -> None:
        """Get ready for the questions of other ranks, before this rank knows its own."""
        self._ways[0].hops[0].expect()

    def ask(self, ranking: Ranking, batch: RankBatch) -> Journey:
        """Send the numbers of the rows that this rank looks up to their holders."""
        counts = np.bincount(self._placement.group_of, batch.counts, len(self._placement.groups))
        bounds = bounds_of(counts.astype(np.int64).tolist())
        codes, wrong = self._router.find(ranking, batch.ids, batch.counts)
        failed = wrong | (batch.error is not None)
        bags = Bags(batch.bags, bounds_of(batch.outputs[self._placement.row_groups :]), batch.weights)
        routes = []
        for groups, hops in self._ways:
            begin, end = bounds[groups.start], bounds[groups.stop]
            own = [bound - begin for bound in bounds[groups.start : groups.stop + 1]]
            its_routes = [hops[0].ask(codes[begin:end], own, _IDS, failed, bags)]
            for hop in hops[1:]:
                asked = its_routes[-1].asked
                onward = torch.cat([hop.forwarded(group, questions) for group, questions in enumerate(asked)])
                its_bounds = bounds_of([questions.numel() for questions in asked])
                its_routes.append(hop.ask(onward, its_bounds, _IDS, its_routes[-1].failed))
            failed = its_routes[-1].failed
            routes.append(its_routes)
        last, rows = routes[-1][-1], hops[-1].row_groups
        answers = last.answers.received.sum(1).tolist()
        held = HeldBags.of(groups.start + rows, last.asked[rows:], answers[rows:]) if rows < len(answers) else []
        return Journey(routes, held)

    def outputs(self, journey: Journey, bags: Sequence[int]) -> Rows:
        """By group, `(n, dim)` rows of the lookups, or sums of the bags, of which each group of sums has so many."""
        outputs = Rows()
        for (_, hops), routes in zip(self._ways, journey.routes, strict=True):
            find = self._stored(hops[-1], routes[-1], journey.held)
            for hop, route in zip(reversed(hops), reversed(routes), strict=True):
                answered = hop.answer(route, find, _VALUES)
                find = _chosen(route, answered)
            rows = hops[-1].row_groups
            outputs += [find(group) for group in range(rows)]
        return outputs + [in_bags(*its) for its in zip(answered[rows:], routes[-1].bags, bags, self._cut, strict=True)]

    def gradients(self, journey: Journey, gradients: Rows) -> tuple[Rows, Rows]:
        """Sum the gradients of lookups at the holders. Rows of fused kernels are updated at once, and are not returned.

        Args:
            journey: journey of the forward pass.
            gradients: by group, `(n, dim)` gradients of the outputs.

        Returns:
            By group, `(m,)` distinct slots of this rank, ascending, and `(m, dim)` sums.
        """
        slots, sums = Rows(), Rows()
        for (groups, hops), routes in zip(self._ways, journey.routes, strict=True):
            arrived = gradients[groups]
            for hop, route in zip(hops, routes, strict=True):
                arrived = hop.give_back(route, arrived, _GRADIENTS)
            rows = hops[-1].row_groups
            its_slots, its_sums = sum_equal(routes[-1].asked[:rows], arrived[:rows])
            slots, sums = slots + its_slots, sums + its_sums
        more_slots, more_sums = self._storage.gradients(journey.held, arrived[rows:])
        return slots + more_slots, sums + more_sums

    def _stored(self, hop: Hop, route: Route, held: Sequence[HeldBags]) -> Find:
        def find(group: int) -> torch.Tensor:
            if group < hop.row_groups:
                return self._storage.read(group, route.asked[group])
            return self._storage.sums(held[group - hop.row_groups])

        return find


def _chosen(route: Route, rows: Rows) -> Find:
    """Return a function that chooses from the rows found for lookups."""
    return lambda group: rows[group].index_select(0, route.inverse[slice(*route.lookups[group : group + 2])])


class Router:
    """Turns keys into codes for one rank: which member to ask for a row, and the question.

    A search finds the segment of a row. The segment is dealt to ranges, so a division finds the row's range and its place there.
    """

    def __init__(self, placement: Placement, codes: Ints, device: torch.device) -> None:
        """Create a router from the `(ranges,)` code of the first row of each range."""
        of_segments, parts, first = placement.segments
        parts_at = np.searchsorted(of_segments, placement.base)
        self._arrays = (parts_at, of_segments, parts, first, codes)  # in the engine's order
        self._starts, self._parts, self._first, self._codes = (
            torch.from_numpy(array).to(device) for array in self._arrays[1:]
        )
        self._dealt = bool((parts > 1).any())
        self._base = self._codes[self._first] - self._starts

    def find(
        self, ranking: Ranking, ids: torch.Tensor, counts: Sequence[int]
    ) -> tuple[torch.Tensor, torch.Tensor | bool]:
        """`(n,)` codes of `(n,)` ids, part after part, and whether any id is out of range; such an id has the code of row 0."""
        if ids.device.type != "cpu":
            keys, wrong = ranking.keys(ids, torch.tensor(counts, device=ids.device))
            return self.codes(keys), wrong
        codes = torch.empty_like(ids)
        ends = np.cumsum([0, *counts])
        return codes, native_find_codes(ids.numpy(), ends, *ranking.arrays, *self._arrays, codes.numpy())

    def codes(self, keys: torch.Tensor) -> torch.Tensor:
        """`(n,)` codes of `(n,)` keys."""
        segment = torch.searchsorted(self._starts, keys, right=True).sub_(1)
        if not self._dealt:
            return keys + self._base[segment]
        position, parts = keys - self._starts[segment], self._parts[segment]
        row = torch.div(position, parts, rounding_mode="floor")
        position.addcmul_(row, parts, value=-1).add_(self._first[segment])
        return self._codes[position].add_(row)
