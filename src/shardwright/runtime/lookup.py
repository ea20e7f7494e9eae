"""The way of a step's lookups: straight to the holders, or through proxies inside the host.

Straight, a rank asks the holder of each row. Through proxies (de-duplication by host), it asks the device of its host with the holder's
local rank; the proxies of a rail ask each other for the distinct rows of their hosts.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from shardwright.runtime.hop import Fill, Hop, Route
from shardwright.runtime.placement import Ints, Placement
from shardwright.runtime.process_groups import Ranks
from shardwright.runtime.ranking import Ranking
from shardwright.runtime.routing import Router, chosen_holders, find_codes
from shardwright.runtime.storage import Storage
from shardwright.runtime.sums import sum_equal
from shardwright.runtime.traffic import TrafficMeter
from shardwright.runtime.wire import Label, Rows

_IDS, _VALUES, _GRADIENTS = Label("forward", "ids"), Label("forward", "values"), Label("backward", "gradients")


@dataclass(frozen=True, eq=False)
class Journey:
    """The routes of one step's lookups.

    Attributes:
        routes: from the rank's own lookups on.
        counts: lookups of each table.
        failed: whether any rank has bad input.
    """

    routes: tuple[Route, ...]
    counts: list[int]
    failed: bool


class Lookup:
    """Brings rows to the ranks that look them up, and gradients back to the holders."""

    def __init__(
        self, placement: Placement, ranks: Ranks, storage: Storage, bits: int, meter: TrafficMeter, device: torch.device
    ) -> None:
        topology = placement.plan.task.topology
        way = placement.plan.task.exchange.deduplicate
        self._placement, self._storage, self._bits = placement, storage, bits
        self._ends = np.searchsorted(placement.group_of, np.arange(len(placement.groups)), side="right").tolist()
        self._near, proxies = (
            topology.devices_per_host,
            way == "host" and min(topology.hosts, topology.devices_per_host) > 1,
        )
        asked_bits = bits + topology.hosts.bit_length() if proxies else bits
        first = Hop(ranks.host if proxies else ranks.world, placement.widths, asked_bits, meter, device, way != "none")
        self._hops = [first]
        if proxies:
            self._hops.append(Hop(ranks.rail, placement.widths, bits, meter, device, True))
            rail = torch.from_numpy(self._hops[1].codes.destinations(np.arange(topology.hosts)))
            self._destinations = rail.to(device) << bits
        self._router = Router(placement, self._codes(first, chosen_holders(placement, ranks.rank)), device)

    def _codes(self, hop: Hop, holders: Ints) -> Ints:
        """`(ranges,)` code of the first row of each range."""
        placement = self._placement
        slots = placement.slots(np.arange(holders.size), holders)
        if len(self._hops) == 1:
            return hop.codes.of(placement.group_of_range, holders, slots)
        questions = (holders // self._near << self._bits) + slots
        return hop.codes.of(placement.group_of_range, holders % self._near, questions)

    def ask(self, ranking: Ranking, ids: torch.Tensor, counts: list[int], failed: bool) -> Journey:
        """Tell the holders what is looked up.

        Args:
            ranking: the rank maps.
            ids: `(n,)` ids, table after table.
            counts: lookups of each table.
            failed: whether this rank has bad input.
        """
        ends = np.cumsum([0, *counts])
        bounds = [0, *ends[self._ends].tolist()]
        codes, wrong = find_codes(ranking, self._router, ids, counts)
        routes = [self._hops[0].ask(codes, bounds, _IDS, failed or wrong)]
        if len(self._hops) > 1:
            asked = routes[0].asked
            codes = torch.cat([self._onward(group, questions) for group, questions in enumerate(asked)])
            bounds = np.cumsum([0, *(questions.numel() for questions in asked)]).tolist()
            routes.append(self._hops[1].ask(codes, bounds, _IDS, routes[0].failed))
        return Journey(tuple(routes), counts, routes[-1].failed)

    def _onward(self, group: int, questions: torch.Tensor) -> torch.Tensor:
        """`(n,)` codes along the rail of what a proxy is asked."""
        hop = self._hops[1]
        slots = questions & ((1 << self._bits) - 1)
        return self._destinations[questions >> self._bits] + slots + (group * hop.codes.members << self._bits)

    def rows(self, journey: Journey) -> Rows:
        """`(n, dim)` rows of the lookups of each group."""
        fill = self._stored(journey.routes[-1])
        for hop, route in zip(reversed(self._hops), reversed(journey.routes), strict=True):
            found = hop.answer(route, fill, _VALUES)
            fill = _chosen(route, found)
        first = journey.routes[0]
        return [
            matrix.index_select(0, first.inverse[start:stop])
            for matrix, start, stop in zip(found, first.lookups, first.lookups[1:], strict=False)
        ]

    def gradients(self, journey: Journey, gradients: Rows) -> tuple[Rows, Rows]:
        """Sum the gradients of lookups at the holders.

        Args:
            journey: of the forward pass.
            gradients: by group, `(n, dim)` of the lookups.

        Returns:
            By group, `(m,)` distinct slots of this rank, ascending, and `(m, dim)` sums.
        """
        for hop, route in zip(self._hops, journey.routes, strict=True):
            gradients = hop.give_back(route, hop.taker(route, gradients), _GRADIENTS)
        sums = [sum_equal(slots, rows) for slots, rows in zip(journey.routes[-1].asked, gradients, strict=True)]
        return [slots for slots, _ in sums], [rows for _, rows in sums]

    def _stored(self, route: Route) -> Fill:
        def fill(group: int, start: int, stop: int, out: torch.Tensor) -> None:
            self._storage.read(group, route.asked[group][start:stop], out)

        return fill


def _chosen(route: Route, rows: Rows) -> Fill:
    """Fills from the rows that lookups found."""

    def fill(group: int, start: int, stop: int, out: torch.Tensor) -> None:
        first = route.lookups[group]
        torch.index_select(rows[group], 0, route.inverse[first + start : first + stop], out=out)

    return fill
