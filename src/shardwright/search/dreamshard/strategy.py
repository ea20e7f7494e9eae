"""`dreamshard`: a learned policy places units one after another. `dreamshard+`: its proposals are where a local search starts.

References:
    [dreamshard] Zha et al., DreamShard: Generalizable Embedding Table Placement for Recommender Systems, NeurIPS 2022.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from shardwright.cost.model import CostModel
from shardwright.errors import InfeasibleTask
from shardwright.search.certified import Certified
from shardwright.search.dreamshard.files import why_not_placed
from shardwright.search.warm import WarmStart
from shardwright.sharding.plan import Plan
from shardwright.task.task import Task

if TYPE_CHECKING:
    from shardwright.search.engine.preparation import Prepared
    from shardwright.search.engine.session import SearchSession


@dataclass(frozen=True)
class DreamShard:
    """Greedy inference of a DreamShard policy [dreamshard]; the cost model is not asked.

    Attributes:
        policy: file of a policy; by default the bundled one for the task's device.
        name: name of the strategy.
    """

    policy: Path | None = None
    name: str = "dreamshard"

    def supports(self, task: Task) -> str | None:
        """Any task of whole, cut or replicated tables, on devices for which there is a policy."""
        return why_not_placed(task, self.policy)

    def search(self, task: Task, cost_model: CostModel, *, seed: int, deadline: float | None) -> Plan:
        """Place by the policy; the seed matters only where memory is tight.

        Raises:
            InvalidInput: the policy's file cannot be read, or is one of another strategy or feature set.
            InfeasibleTask: no placement was found that keeps memory and constraints.
        """
        from shardwright.search.dreamshard.proposals import greedy_plan

        return greedy_plan(task, self.policy, self.name, seed)


@dataclass(frozen=True)
class DreamShardPlus:
    """The best of a policy's placements, improved by the local search of `certified`, with its bound.

    The search starts from the policy's placement alone, so that what it finds shows what the policy adds; it may cut tables that the
    policy has left whole.

    Attributes:
        policy: file of a DreamShard policy; by default the bundled one for the task's device.
        proposals: placements sampled from the policy, beside the greedy one; the cost model chooses.
        tolerance: as in `Certified`.
        patience: likewise.
        threads: likewise.
        name: name of the strategy.
    """

    policy: Path | None = None
    proposals: int = 16
    tolerance: float = 0.01
    patience: int = 4
    threads: int = 2
    name: str = "dreamshard+"

    def supports(self, task: Task) -> str | None:
        """Any task of whole, cut or replicated tables, on devices for which there is a policy."""
        return why_not_placed(task, self.policy)

    def search(self, task: Task, cost_model: CostModel, *, seed: int, deadline: float | None) -> Plan:
        """Propose, choose, improve; where memory is too tight for the policy, search as `certified` does.

        Raises:
            InvalidInput: the policy's file cannot be read, or is one of another strategy or feature set.
            InfeasibleTask: no plan was found that keeps memory and constraints.
        """
        from shardwright.search.dreamshard.proposals import best_plan

        search = _FromProposal(self.tolerance, self.patience, self.threads, self.name)
        try:
            proposed = best_plan(task, self.policy, cost_model, self.proposals, self.name, seed)
        except InfeasibleTask:
            return search.search(task, cost_model, seed=seed, deadline=deadline)
        return search.search_from(task, cost_model, start=proposed, move_cost=0.0, seed=seed, deadline=deadline)


class _FromProposal(Certified):
    """`certified` without starts of its own, as long as the plan it is given can be taken up."""

    def search_from(
        self, task: Task, cost_model: CostModel, *, start: Plan, move_cost: float, seed: int, deadline: float | None
    ) -> Plan:
        """Improve the plan."""
        return self._search(task, cost_model, _Proposal(task, cost_model, start, move_cost), seed, deadline)


class _Proposal(WarmStart):
    """A plan after which starting anew is out of the question."""

    def resume(self, session: SearchSession, prepared: Prepared, *, late: bool) -> bool:
        """Take up the plan, and improve it unless it is late; whether that was impossible."""
        super().resume(session, prepared, late=late)
        return session.best is None
