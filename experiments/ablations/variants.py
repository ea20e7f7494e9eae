"""The searches of `ablations`, each with one part taken out."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

import numpy as np

from experiments.ablations.ablated_search import UncachedNeuroShard
from shardwright.arrays import Floats
from shardwright.cost.model import CostModel, Pricing
from shardwright.search.certified import Certified
from shardwright.search.engine.session import SearchSession, prepare
from shardwright.search.neuroshard import NeuroShard
from shardwright.search.strategy import Strategy, WarmStart
from shardwright.sharding.plan import Plan
from shardwright.sharding.work import ShardWork
from shardwright.task import Constraints, TableConstraint, Task

FULL = "as it is"
NEUROSHARD, CERTIFIED = "neuroshard", "certified"
TOLERANCE = 0.002
_UNBOUNDED = 1e6  # times the mean dims of a device: as good as none


class SummedCosts:
    """A cost model to which tables of a device add up: each costs what it costs alone, as if no kernel were fused.

    Args:
        fused: the model whose prices of single shards are summed.
    """

    def __init__(self, fused: CostModel) -> None:
        self._fused = fused
        self.pricing = Pricing(
            np.zeros((0, 2)), np.zeros(0), np.zeros((2, 0)), np.eye(2), np.zeros(2), fused.pricing.once
        )

    @property
    def name(self) -> str:
        """As in "cpu/convex, summed"."""
        return f"{self._fused.name}, summed"

    def encode(self, works: Sequence[ShardWork]) -> Floats:
        """`(n, 2)` forward and backward ms of n shards alone."""
        return self._fused.pricing.price(self._fused.encode(works)) if works else np.zeros((0, 2))


@dataclass(frozen=True)
class AblatedCertified(Certified):
    """`certified` without some of its parts.

    Attributes:
        local_search: starts are improved and kicked; else the best start is the plan.
        share_limits: starts cut tables until no piece takes more than a share of a device; else every table starts in the one way that
            is cheapest by price, and is not spread.
        tightening: the bound is made better by what a plan rules out.
    """

    local_search: bool = True
    share_limits: bool = True
    tightening: bool = True

    def _search(
        self, task: Task, cost_model: CostModel, warm: WarmStart | None, seed: int, deadline: float | None
    ) -> Plan:
        prepared = prepare(task, cost_model)
        first_bound = prepared.bound_ms
        if not self.tightening:
            prepared = replace(prepared, _proof=None)
        with ThreadPoolExecutor(self.threads) as pool:
            session = SearchSession(
                prepared.assembly,
                prepared.peak_shares,
                prepared.spread_price,
                pool,
                deadline,
                local_search=self.local_search,
                share_limits=self.share_limits,
            )
            self._starts(task, prepared, session)
            if self.local_search:
                self._kicks(prepared, session, seed)
        late = deadline is not None and time.monotonic() >= deadline
        bound = prepared.tighten(session.best_ms, late=late) if self.tightening else first_bound or None
        return Plan(task, prepared.shards(session.best), self.name, seed, bound_ms=bound)


@dataclass(frozen=True)
class Variant:
    """A search with a part taken out.

    Attributes:
        strategy: the search.
        what: what is taken out, and what is left in its place; Markdown.
        kinds: sharding types that tables are limited to; None for all.
        summed: it searches on summed costs; its plans are judged by the fused ones all the same.
        slow: it plans some tasks of four devices only, and takes the time that it needs.
    """

    strategy: Strategy
    what: str
    kinds: tuple[str, ...] | None = None
    summed: bool = False
    slow: bool = False

    def task(self, task: Task) -> Task:
        """The task under the variant's constraints."""
        if self.kinds is None:
            return task
        limit = TableConstraint(sharding_types=self.kinds)
        return replace(task, constraints=Constraints({table.name: limit for table in task.tables}))

    def model(self, fused: CostModel) -> CostModel:
        """The cost model it searches with."""
        return SummedCosts(fused) if self.summed else fused


def _certified(**parts: bool | int) -> Certified:
    make: Callable[..., Certified] = AblatedCertified if set(parts) - {"patience"} else Certified
    return make(tolerance=TOLERANCE, **parts)


VARIANTS: dict[str, dict[str, Variant]] = {
    NEUROSHARD: {
        FULL: Variant(NeuroShard(), "the search as published: N=10, K=3, L=10, M=11"),
        "no grid": Variant(
            NeuroShard(grid=1, widest_bound=_UNBOUNDED), "one greedy without any bound on the devices' dims"
        ),
        "no beam": Variant(NeuroShard(most_splits=0), "no column splits: the grid on whole tables"),
        "beam width 1": Variant(NeuroShard(beam_width=1), "the best split of each step alone goes on"),
        "no cache": Variant(
            UncachedNeuroShard(),
            "every set of pieces is encoded anew by the cost model, and every bound of the grid is tried",
            slow=True,
        ),
        "summed costs": Variant(NeuroShard(), "a device is predicted to take the sum of what its pieces take alone", summed=True),
    },
    CERTIFIED: {
        FULL: Variant(_certified(), f"starts, local search, kicks, bound; tolerance {TOLERANCE:.1%}"),
        "no local search": Variant(_certified(local_search=False), "the best start is the plan, no kicks"),
        "no kicks": Variant(_certified(patience=0), "the search ends at the local optimum of the best start"),
        "no limits on starts": Variant(
            _certified(share_limits=False), "every table starts in the way that is cheapest by price, however much it loads one device"
        ),
        "no tightening": Variant(_certified(tightening=False), "the first bound is the last"),
        "columns only": Variant(_certified(), "whole tables and column blocks, as in `neuroshard`", ("table_wise", "column_wise")),
        "whole tables": Variant(_certified(), "no table is cut", ("table_wise",)),
        "summed costs": Variant(_certified(), "as above; its bound is on summed costs and left out", summed=True),
    },
}  # fmt: skip
"""Variants by system and name; the full system first."""
