"""`certified`: split by price, place, improve, and say by proof how far the plan is from the best possible one.

1. The lower bound (`search.bound`) gives the price that everything is measured by.
2. Tables whose cost alone exceeds a share of the bound are cut into equal column blocks below it; a few shares are tried.
3. Pieces are placed greedily by fused cost, then improved by moves, swaps and splits (`engine.improve`).
4. Kicks: pieces of the slowest devices and some others are taken off, placed anew and improved; a better plan is kept.

It stops when the gap to the bound is at most `tolerance`, when several kicks in a row have found nothing better, or at the deadline, and
returns the best plan so far. It cuts tables into columns only, while the bound also allows row blocks and replicas of any table: where one
table dominates, part of the gap is room that only those could use.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from shardwright.cost.model import CostModel
from shardwright.errors import InfeasibleTask
from shardwright.search.support import why_not_whole
from shardwright.search.units import take_apart
from shardwright.sharding.plan import Plan
from shardwright.task.task import Task

if TYPE_CHECKING:
    from shardwright.search.engine.session import Session

_SHARES = (0.5, np.inf, 0.25, 0.12)  # of the bound; infinity leaves every table whole
_MEMORY_WEIGHTS = (0.0, 1.0, 10.0, 100.0)  # in bounds per memory of a device
_KICKED = 0.1


@dataclass(frozen=True)
class Certified:
    """Search with a certificate.

    Attributes:
        tolerance: stop when the gap to the bound is at most this.
        patience: stop after this many kicks in a row without a better plan.
        name: name of the strategy.
    """

    tolerance: float = 0.01
    patience: int = 8
    name: str = field(default="certified")

    def supports(self, task: Task) -> str | None:
        """Any task whose tables may be whole, cut into columns or rows, or replicated."""
        return why_not_whole(task)

    def search(self, task: Task, cost_model: CostModel, *, seed: int, deadline: float | None) -> Plan:
        """Search until the gap is small enough; without a convex cost model there is no bound."""
        from shardwright.search.bound import lower_bound
        from shardwright.search.engine.session import Session

        units = take_apart(task)
        bound = lower_bound(task, cost_model)
        session = Session(task, units, cost_model, np.random.default_rng(seed))
        session.goal = bound.ms * (1 + self.tolerance) if bound else 0.0
        price = bound.ms if bound else session.mean_cost()
        try:
            self._starts(session, price, deadline)
            failed = 0
            while failed < self.patience and session.best_ms > session.goal and not _late(deadline):
                failed = 0 if session.kick(_KICKED) else failed + 1
        except KeyboardInterrupt:  # anytime: what was found so far is a plan
            if session.best is None:
                raise
        return Plan(task, session.shards(), self.name, seed, bound_ms=bound.ms if bound else None)

    def _starts(self, session: Session, price: float, deadline: float | None) -> None:
        """A plan from every share, most promising first."""
        for share in _SHARES:
            for weight in _MEMORY_WEIGHTS:
                stuck = session.start(share * price, weight * price / float(np.median(session.setting.memory)))
                if stuck is None:
                    break
            if session.best is not None and (session.best_ms <= session.goal or _late(deadline)):
                return
        if session.best is None:
            raise InfeasibleTask(
                f"no device is left for table '{stuck}', in whatever order tables are placed: memory or constraints are too tight; "
                "allow row_wise for large tables, or use more devices or memory"
            )


def _late(deadline: float | None) -> bool:
    return deadline is not None and time.monotonic() >= deadline
