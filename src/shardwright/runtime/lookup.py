"""The way of a step's lookups: directly to the holders, or through proxies inside the host.

Without proxies, a rank asks the holder of each row. With proxies (de-duplication by host), it asks the device on its own host that has the
holder's local rank. The proxies of a rail then ask each other for the distinct rows that their hosts need.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch

from shardwright._engine import find_codes as native_find_codes
from shardwright.arrays import Ints
from shardwright.runtime.hop import Fill, Hop, Route, sum_equal
from shardwright.runtime.placement import Placement
from shardwright.runtime.process_groups import Ranks
from shardwright.runtime.ranking import Ranking
from shardwright.runtime.storage import Storage
from shardwright.runtime.wire import Label, Rows, TrafficMeter

_IDS, _VALUES, _GRADIENTS = Label("forward", "ids"), Label("forward", "values"), Label("backward", "gradients")


@dataclass(frozen=True, eq=False)
class Journey:
    """The routes of one step's lookups.

    Attributes:
        routes: one route per hop; the first carries the rank's own lookups.
        failed: whether any rank has bad input.
    """

    routes: tuple[Route, ...]
    failed: bool


class Lookup:
    """Bring rows to the ranks that look them up, and gradients back to the holders."""

    def __init__(self, placement: Placement, ranks: Ranks, storage: Storage, meter: TrafficMeter) -> None:
        topology = placement.plan.task.topology
        way = placement.plan.task.exchange.deduplicate
        bits, per_host, device = placement.slot_bits, topology.devices_per_host, ranks.device
        proxies = way == "host" and min(topology.hosts, per_host) > 1
        holders = placement.nearest(ranks.rank)
        questions = placement.slots(np.arange(holders.size), holders)
        self._placement, self._storage = placement, storage
        if proxies:
            first = Hop(ranks.host, placement.widths, bits + topology.hosts.bit_length(), meter, device, True)
            onward = Hop(ranks.rail, placement.widths, bits, meter, device, True)
            self._hops = [first, onward]
            rail = torch.from_numpy(onward.codes.destinations(np.arange(topology.hosts)))
            self._destinations = rail.to(device) << bits
            questions += holders // per_host << bits
            holders = holders % per_host
        else:
            first = Hop(ranks.world, placement.widths, bits, meter, device, way != "none")
            self._hops = [first]
        self._router = Router(placement, first.codes.of(placement.group_of_range, holders, questions), device)

    def ask(self, ranking: Ranking, ids: torch.Tensor, counts: list[int], failed: bool) -> Journey:
        """Tell the holders which rows are looked up.

        Args:
            ranking: the rank maps.
            ids: `(n,)` ids, table after table.
            counts: lookups of each table.
            failed: whether this rank has bad input.
        """
        bounds = np.cumsum([0, *(sum(counts[tables]) for tables in self._placement.tables_of_group)]).tolist()
        codes, wrong = self._router.find(ranking, ids, counts)
        routes = [self._hops[0].ask(codes, bounds, _IDS, failed or wrong)]
        if len(self._hops) > 1:
            asked = routes[0].asked
            codes = torch.cat([self._onward(group, questions) for group, questions in enumerate(asked)])
            bounds = np.cumsum([0, *(questions.numel() for questions in asked)]).tolist()
            routes.append(self._hops[1].ask(codes, bounds, _IDS, routes[0].failed))
        return Journey(tuple(routes), routes[-1].failed)

    def _onward(self, group: int, questions: torch.Tensor) -> torch.Tensor:
        """`(n,)` codes for the rail of the questions that a proxy receives."""
        codes = self._hops[1].codes
        slots = questions & ((1 << codes.bits) - 1)
        return self._destinations[questions >> codes.bits] + slots + (group * codes.members << codes.bits)

    def rows(self, journey: Journey) -> Rows:
        """`(n, dim)` rows of the lookups of each group."""
        fill = self._stored(journey.routes[-1])
        for hop, route in zip(reversed(self._hops), reversed(journey.routes), strict=True):
            found = hop.answer(route, fill, _VALUES)
            fill = _chosen(route, found)
        first = journey.routes[0]
        return [
            matrix.index_select(0, first.inverse[start:stop])
            for matrix, (start, stop) in zip(found, pairwise(first.lookups), strict=True)
        ]

    def gradients(self, journey: Journey, gradients: Rows) -> tuple[Rows, Rows]:
        """Sum the gradients of lookups at the holders.

        Args:
            journey: journey of the forward pass.
            gradients: by group, `(n, dim)` gradients of the lookups.

        Returns:
            By group, `(m,)` distinct slots of this rank, ascending, and `(m, dim)` sums.
        """
        for hop, route in zip(self._hops, journey.routes, strict=True):
            gradients = hop.give_back(route, hop.taker(route, gradients), _GRADIENTS)
        return sum_equal(journey.routes[-1].asked, gradients)

    def _stored(self, route: Route) -> Fill:
        def fill(group: int, start: int, stop: int, out: torch.Tensor) -> None:
            self._storage.read(group, route.asked[group][start:stop], out)

        return fill


def _chosen(route: Route, rows: Rows) -> Fill:
    """Return a writer that copies from the rows found for lookups."""

    def fill(group: int, start: int, stop: int, out: torch.Tensor) -> None:
        first = route.lookups[group]
        torch.index_select(rows[group], 0, route.inverse[first + start : first + stop], out=out)

    return fill


class Router:
    """Turns keys into codes for one rank: which member to ask for a row, and the question.

    A search finds the segment of a row. The segment is dealt to ranges, so a division finds the row's range and its place there.
    """

    def __init__(self, placement: Placement, codes: Ints, device: torch.device) -> None:
        """Create a router.

        Args:
            placement: where every row lies.
            codes: `(ranges,)` code of the first row of each range.
            device: device of the keys.
        """
        starts, parts, first = placement.segments
        tables = np.searchsorted(starts, placement.base[:-1])
        self._arrays = (np.append(tables, starts.size), starts, parts, first, codes)  # in the engine's order
        self._starts, self._parts, self._first, self._codes = (
            torch.from_numpy(one).to(device) for one in self._arrays[1:]
        )
        self._dealt = bool((parts > 1).any())
        self._base = self._codes[self._first] - self._starts

    def find(
        self, ranking: Ranking, ids: torch.Tensor, counts: Sequence[int]
    ) -> tuple[torch.Tensor, torch.Tensor | bool]:
        """Return the codes of lookups.

        Args:
            ranking: the rank maps.
            ids: `(n,)` ids, table after table.
            counts: lookups of each table.

        Returns:
            `(n,)` codes, and whether any id is out of range; such an id has the code of row 0.
        """
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
