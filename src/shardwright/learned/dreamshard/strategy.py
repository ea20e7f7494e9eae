"""The strategies `dreamshard` (a learned policy places units one after another) and `dreamshard+` (a local search starts from that).

A policy's placements are greedy or sampled; if memory is tight, other orders of the units are tried.

References:
    [dreamshard] Zha et al., DreamShard: Generalizable Embedding Table Placement for Recommender Systems, NeurIPS 2022.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from shardwright.cost.model import CostModel
from shardwright.errors import InfeasibleTask
from shardwright.learned.arrays import Floats, Ints, PlacementArrays
from shardwright.learned.dreamshard.policy import NAME, STUCK, EncodedTask, Policy
from shardwright.learned.policy_files import INPUTS, ByPolicy, SavedPolicy
from shardwright.learned.priced.placing import priced_plan
from shardwright.learned.priced.policy import PricedPolicy
from shardwright.learned.worlds import SimulatedWorld, step_ms
from shardwright.search.certified import Certified
from shardwright.search.engine.plans import WarmStart
from shardwright.sharding.plan import Plan
from shardwright.task.task import Task

if TYPE_CHECKING:
    from shardwright.search.engine.session import SearchSession

_SAMPLES = 16  # placements sampled before a task is given up


def greedy_placement(policy: Policy, encoded: EncodedTask, seed: int) -> Ints:
    """`(n,)` device of each unit by the policy's likeliest choices.

    If these choices leave a unit without a device, the hardest units are placed first: those that take most of the memory they may use.
    If that fails too, placements in this order are sampled.

    Raises:
        InfeasibleTask: every placement left a unit without a device.
    """
    placed = policy.place(encoded)
    if _is_whole(placed):
        return placed
    rng = np.random.default_rng(seed)
    hardest = _hardest_first(encoded.arrays)
    for attempt in range(_SAMPLES + 1):
        placed = policy.place(encoded, hardest, _noise(encoded, rng) if attempt else None)
        if _is_whole(placed):
            return placed
    unit = int(hardest[np.argmax(placed[hardest] == STUCK)])
    raise InfeasibleTask(
        encoded.arrays.left_over(unit, placed, f"in the last of {_SAMPLES + 2} placements by the policy")
    )


def sampled_placements(policy: Policy, encoded: EncodedTask, count: int, seed: int) -> list[Ints]:
    """The distinct placements among `count` samples of the policy that keep memory and constraints."""
    rng = np.random.default_rng(seed)
    samples = (policy.place(encoded, noise=_noise(encoded, rng)) for _ in range(count))
    return list({sample.tobytes(): sample for sample in samples if _is_whole(sample)}.values())


def _noise(encoded: EncodedTask, rng: np.random.Generator) -> Floats:
    return rng.gumbel(size=(len(encoded.arrays), encoded.arrays.devices))


def _is_whole(assignment: Ints) -> bool:
    return bool((assignment != STUCK).all())


def _hardest_first(arrays: PlacementArrays) -> Ints:
    room = np.maximum(arrays.allowed @ np.maximum(arrays.memory - arrays.used, 0), 1)
    return np.argsort(-arrays.bytes / room, kind="stable")


@dataclass(frozen=True)
class DreamShard(ByPolicy):
    """Placement by a policy that DreamShard's REINFORCE learned [dreamshard].

    The bundled policy reads the prices of the task's cost model (see `priced.policy`); the paper estimates them by a separate
    network. A policy trained as published (`preset=published`) has that network, and does not use the cost model.

    Attributes:
        policy: as in `ByPolicy`.
        name: name of the strategy.
    """

    learner: ClassVar[str] = NAME

    name: str = NAME

    def search(self, task: Task, cost_model: CostModel, *, seed: int, deadline: float | None) -> Plan:
        """Place by the policy.

        Raises:
            InvalidInput: the policy's file cannot be read, or belongs to another strategy or feature set.
            InfeasibleTask: the policy found no placement that keeps memory and constraints.
        """
        policy = self.read_policy(_policy)
        if isinstance(policy, PricedPolicy):
            return priced_plan(policy, task, cost_model, self.name, seed, deadline)
        arrays = PlacementArrays.of(task)
        return arrays.plan(greedy_placement(policy, policy.encode(arrays), seed), self.name, seed)


def _policy(saved: SavedPolicy) -> PricedPolicy | Policy:
    return PricedPolicy(saved) if INPUTS in saved.metadata else Policy(saved)


@dataclass(frozen=True)
class DreamShardPlus(ByPolicy):
    """The best of a policy's placements, improved by the local search of `certified`, with the bound of `certified`.

    The search starts only from the policy's placement, so that its result shows the policy's contribution. It may cut tables that the
    policy left whole.

    Attributes:
        policy: as in `ByPolicy`.
        proposals: placements sampled from the policy beside the greedy one; the cost model chooses the fastest.
        tolerance: as in `Certified`.
        patience: as in `Certified`.
        threads: as in `Certified`.
        name: name of the strategy.
    """

    learner: ClassVar[str] = NAME

    proposals: int = 16
    tolerance: float = 0.005
    patience: int | None = None
    threads: int = 2
    name: str = "dreamshard+"

    def search(self, task: Task, cost_model: CostModel, *, seed: int, deadline: float | None) -> Plan:
        """Propose placements, choose the fastest and improve it; if memory is too tight for the policy, search as `certified` does.

        Raises:
            InvalidInput: the policy's file cannot be read, or belongs to another strategy or feature set.
            InfeasibleTask: the search found no plan that keeps memory and constraints.
        """
        search = _FromProposal(self.tolerance, self.patience, self.threads, self.name)
        policy = self.read_policy(_policy)
        try:
            proposed = self._proposed(task, cost_model, policy, seed, deadline)
        except InfeasibleTask:
            return search.search(task, cost_model, seed=seed, deadline=deadline)
        return search.search_from(task, cost_model, start=proposed, move_cost=0.0, seed=seed, deadline=deadline)

    def _proposed(
        self, task: Task, cost_model: CostModel, policy: PricedPolicy | Policy, seed: int, deadline: float | None
    ) -> Plan:
        """The plan of the fastest placement by the cost model, among the greedy and the sampled ones."""
        if isinstance(policy, PricedPolicy):
            return priced_plan(policy, task, cost_model, self.name, seed, deadline, 1 + self.proposals)
        arrays = PlacementArrays.of(task)
        encoded = policy.encode(arrays)
        several = [greedy_placement(policy, encoded, seed), *sampled_placements(policy, encoded, self.proposals, seed)]
        costs = SimulatedWorld(cost_model).costs([(arrays, placement) for placement in several])
        return arrays.plan(several[int(np.argmin([step_ms(phases) for phases in costs]))], self.name, seed)


class _FromProposal(Certified):
    """`certified` without its own starts, unless the given plan cannot be taken up."""

    def search_from(
        self, task: Task, cost_model: CostModel, *, start: Plan, move_cost: float, seed: int, deadline: float | None
    ) -> Plan:
        """Improve the plan."""
        return self._search(task, cost_model, _Proposal(task, cost_model, start, move_cost), seed, deadline)


class _Proposal(WarmStart):
    """A warm start that rules out other starts if the plan can be taken up."""

    def resume(self, session: SearchSession) -> bool:
        """Start from the plan, and improve it unless time is up; return whether the session still has no plan."""
        super().resume(session)
        return session.best is None
