"""The variants of the searches in `ablations`, with the code that replaces the parts taken out."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

import numpy as np

from shardwright._engine import greedy
from shardwright.arrays import Floats, Ints
from shardwright.cost.features import WorkArrays
from shardwright.cost.model import CostModel, Pricing
from shardwright.errors import InfeasibleTask
from shardwright.search.certified import SIMPLER, Certified
from shardwright.search.engine.plans import WarmStart
from shardwright.search.engine.session import SearchSession, prepare
from shardwright.search.neuroshard import NO_LIMIT, Beam, NeuroShard, Pieces, Score, make_pieces, shards_of
from shardwright.search.strategy import BestPlan, Strategy
from shardwright.search.units import Unit, take_apart
from shardwright.sharding.plan import Plan
from shardwright.sharding.shard import Shard
from shardwright.task import Constraints, TableConstraint, Task


@dataclass(frozen=True)
class UncachedNeuroShard(NeuroShard):
    """`neuroshard` without reuse: nothing computed for one set of pieces is kept for the next.

    The paper's cache holds predictions of sets of tables. The search `neuroshard` needs no cache: it encodes every width of every table
    once before the beam, keeps sums of encodings by device, and skips bounds of the grid that cannot change a placement. This variant
    encodes every set of pieces anew and tries all bounds. One encoding per set is the least that a search without a cache must do; the
    paper's search would need one for every device that the greedy considers. The plan is the same.
    """

    def search(self, task: Task, cost_model: CostModel, *, seed: int, deadline: float | None) -> Plan:
        """Search, and return the best plan found by the deadline."""
        pieces, cuts = make_pieces(task, take_apart(task), cost_model)
        limits = self._limits(pieces, cuts.whole)

        def inner(state: Ints) -> tuple[float, Ints]:
            return _best_of_all(_encoded_anew(pieces, state), state, limits)

        best = Beam(self, cuts, inner, deadline).search()
        if np.isinf(best.ticks):
            raise InfeasibleTask(
                "no device is left for a table, and no split that was tried makes room; allow row_wise, or use devices with more memory"
            )
        return Plan(task, shards_of(pieces, best, Score(embedding=True)), self.name, seed)


def _encoded_anew(pieces: Pieces, state: Ints) -> Pieces:
    """The pieces, with the encodings of a state's pieces computed anew."""
    rows = np.unique(state)
    blocks = [_blocks(pieces.units.free[pieces.unit[row]], int(pieces.dims[row])) for row in rows]
    vectors = np.zeros_like(pieces.added.vectors)
    parts = pieces.added._replace(call=np.arange(len(vectors))).take(rows).call  # positions of the rows' encodings
    vectors[parts] = pieces.encoder.encode(blocks)[0].added.vectors
    return replace(pieces, added=pieces.added._replace(vectors=vectors))


def _blocks(unit: Unit, dim: int) -> list[Shard]:
    if len(unit.blocks) > 1:
        return list(unit.blocks)
    (block,) = unit.blocks
    return [replace(block, columns=(block.columns[0], block.columns[0] + dim))]


def _best_of_all(pieces: Pieces, state: Ints, limits: Ints) -> tuple[float, Ints]:
    """Like `_engine.best_by_links`, but without skipping any bound."""
    best, chosen, judge = np.inf, np.zeros(0, dtype=np.int64), Score(embedding=True)
    for limit in [*limits[::-1], NO_LIMIT]:
        if limit == NO_LIMIT and np.isfinite(best):
            break  # as published: no bound is tried only if no bound lets every piece find a device
        placed, _, device = greedy(pieces.native, state, limit)
        if placed == state.size and (ticks := judge(pieces, state, device)) <= best:
            best, chosen = ticks, device
    return best, chosen


FULL = "as it is"
NEUROSHARD, CERTIFIED = "neuroshard", "certified"
TOLERANCE = 0.002
_UNBOUNDED = 1e6  # bound in mean dims of a device: so wide that it never binds


class SummedCosts(CostModel):
    """A cost model that sums the costs of a device's tables, each taken alone, as if no kernel were fused.

    Args:
        fused: the model that prices single shards.
    """

    def __init__(self, fused: CostModel) -> None:
        self._fused = fused

    @property
    def pricing(self) -> Pricing:
        """The sums as they are."""
        once = self._fused.pricing.once
        return Pricing(np.zeros((0, 2)), np.zeros(0), np.zeros((2, 0)), np.eye(2), np.zeros(2), once)

    @property
    def name(self) -> str:
        """For example "cpu/convex, summed"."""
        return f"{self._fused.name}, summed"

    def encode_arrays(self, works: WorkArrays) -> Floats:
        """`(n, 2)` forward and backward ms of n shards, each alone."""
        return self._fused.pricing.price(self._fused.encode_arrays(works))


@dataclass(frozen=True)
class AblatedCertified(Certified):
    """`certified` without some of its parts.

    Attributes:
        local_search: whether starts are improved and kicked; else the best start is the plan.
        share_limits: whether starts cut tables until no piece takes more than a share of a device; else every table starts in the single
            way that is cheapest by price, and is not spread.
        tightening: whether the plan found is used to tighten the bound.
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
                prepared,
                pool,
                deadline,
                local_search=self.local_search,
                share_limits=self.share_limits,
            )
            self._starts(session)
            if self.local_search:
                if not self._done(session):
                    self._others(session, BestPlan(task, cost_model, seed, deadline))
                self._kicks(session, seed)
                session.simplify(SIMPLER, cost_model.cut_error)
        bound = (
            self._proven(prepared, session.best_ms, lambda: session.late) if self.tightening else first_bound or None
        )
        return Plan(task, prepared.shards(session.best), self.name, seed, bound_ms=bound)


@dataclass(frozen=True)
class Variant:
    """A search with a part taken out.

    Attributes:
        strategy: the search.
        what: the part taken out, and its replacement; Markdown.
        kinds: sharding types that tables are limited to; None for all.
        summed: whether it searches on summed costs; fused costs judge its plans in any case.
        slow: whether it plans only some tasks of four devices, without a time limit.
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
        """The cost model that the variant searches with."""
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
"""Variants by system and name; the full system comes first."""
