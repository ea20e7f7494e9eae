"""A strategy that deals tables, largest first, to the devices in alternating directions."""

from collections.abc import Iterable
from dataclasses import dataclass

import shardwright as sw
from shardwright.cost import CostModel
from shardwright.search import Strategy
from shardwright.search.strategy import why_not_whole
from shardwright.search.units import place_all, take_apart


@dataclass(frozen=True)
class Snake(Strategy):
    """Deals tables to devices 0, 1, 2, 3, then 3, 2, 1, 0, and skips a device without room."""

    name: str = "snake"

    def supports(self, task: sw.Task) -> str | None:
        """Support any task that whole tables or their cuts can answer."""
        return why_not_whole(task)

    def search(
        self,
        task: sw.Task,
        cost_model: CostModel,
        *,
        seed: int,
        deadline: float | None,
    ) -> sw.Plan:
        """Deal the tables."""
        units, devices = take_apart(task), task.topology.devices
        sizes = [unit.bytes for unit in units.free]
        order = sorted(range(len(sizes)), key=lambda index: -sizes[index])
        turns = {index: turn for turn, index in enumerate(order)}

        def choose(index: int, eligible: Iterable[int]) -> int:
            turn = turns[index] % (2 * devices)
            wanted = min(turn, 2 * devices - 1 - turn)
            return int(min(eligible, key=lambda rank: (rank - wanted) % devices))

        shards = place_all(task, units, order, choose)
        return sw.Plan(task, shards, self.name, seed)
