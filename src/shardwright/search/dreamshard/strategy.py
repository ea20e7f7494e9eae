"""`dreamshard`: a learned policy places units one after another. `dreamshard+`: its proposals are where a local search starts.

Proposals are greedy, sampled, and ways out where memory is tight.

References:
    [dreamshard] Zha et al., DreamShard: Generalizable Embedding Table Placement for Recommender Systems, NeurIPS 2022.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from shardwright.cost.model import CostModel
from shardwright.errors import InfeasibleTask
from shardwright.files import is_missing, status
from shardwright.schema import Place
from shardwright.search.certified import Certified
from shardwright.search.dreamshard.policy import NAME, STUCK, Encoded, Policy
from shardwright.search.learned.arrays import Floats, Ints, PlacementArrays
from shardwright.search.learned.policy_files import load_policy, policy_file, why_not_placed
from shardwright.search.learned.worlds import SimulatedWorld, step_ms
from shardwright.search.strategy import WarmStart
from shardwright.sharding.plan import Plan
from shardwright.task.task import Task

if TYPE_CHECKING:
    from shardwright.search.engine.session import Prepared, SearchSession

_SAMPLES = 16  # sampled placements before a task is given up


def policy_for(path: Path | None, task: Task) -> Policy:
    """The policy of a file, or the bundled one for the task's device."""
    chosen = policy_file(task, path, NAME)
    assert chosen is not None, "a strategy's supports() names devices without a policy"
    found = None if is_missing(chosen) else status(chosen)
    return _read(chosen, 0 if found is None else found.st_mtime_ns)


def greedy_placement(policy: Policy, encoded: Encoded, seed: int) -> Ints:
    """`(n,)` devices by the policy's likeliest choices.

    Where these leave a unit without a device, units that are hard to place go first: those that take most of the memory they may use.
    Then placements in this order are sampled.

    Raises:
        InfeasibleTask: every one of these left a unit without a device.
    """
    found = policy.place(encoded)
    if _is_whole(found):
        return found
    rng = np.random.default_rng(seed)
    hardest = _hardest_first(encoded.arrays)
    for attempt in range(_SAMPLES + 1):
        found = policy.place(encoded, hardest, _noise(encoded, rng) if attempt else None)
        if _is_whole(found):
            return found
    unit = int(hardest[np.argmax(found[hardest] == STUCK)])
    raise InfeasibleTask(
        encoded.arrays.left_over(unit, found, f"in the last of {_SAMPLES + 2} placements by the policy")
    )


def sampled_placements(policy: Policy, encoded: Encoded, count: int, seed: int) -> list[Ints]:
    """Of `count` samples of the policy those that keep memory and constraints, each once."""
    rng = np.random.default_rng(seed)
    found = [policy.place(encoded, noise=_noise(encoded, rng)) for _ in range(count)]
    return list({sample.tobytes(): sample for sample in found if _is_whole(sample)}.values())


@lru_cache(maxsize=8)
def _read(path: Path, modified: int) -> Policy:
    """The policy of a file as it was at a time of modification."""
    with Place(str(path)).naming():
        return Policy(load_policy(path, NAME))


def _noise(encoded: Encoded, rng: np.random.Generator) -> Floats:
    return rng.gumbel(size=(len(encoded.arrays), encoded.arrays.devices))


def _is_whole(assignment: Ints) -> bool:
    return bool((assignment != STUCK).all())


def _hardest_first(arrays: PlacementArrays) -> Ints:
    room = np.maximum(arrays.allowed @ np.maximum(arrays.memory - arrays.used, 0), 1)
    return np.argsort(-arrays.bytes / room, kind="stable")


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
        return why_not_placed(task, self.policy, NAME)

    def search(self, task: Task, cost_model: CostModel, *, seed: int, deadline: float | None) -> Plan:
        """Place by the policy; the seed matters only where memory is tight.

        Raises:
            InvalidInput: the policy's file cannot be read, or is one of another strategy or feature set.
            InfeasibleTask: no placement was found that keeps memory and constraints.
        """
        arrays, policy = PlacementArrays.of(task), policy_for(self.policy, task)
        return arrays.plan(greedy_placement(policy, policy.encode(arrays), seed), self.name, seed)


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
    tolerance: float = 0.005
    patience: int | None = None
    threads: int = 2
    name: str = "dreamshard+"

    def supports(self, task: Task) -> str | None:
        """Any task of whole, cut or replicated tables, on devices for which there is a policy."""
        return why_not_placed(task, self.policy, NAME)

    def search(self, task: Task, cost_model: CostModel, *, seed: int, deadline: float | None) -> Plan:
        """Propose, choose, improve; where memory is too tight for the policy, search as `certified` does.

        Raises:
            InvalidInput: the policy's file cannot be read, or is one of another strategy or feature set.
            InfeasibleTask: no plan was found that keeps memory and constraints.
        """
        search = _FromProposal(self.tolerance, self.patience, self.threads, self.name)
        try:
            proposed = self._proposed(task, cost_model, seed)
        except InfeasibleTask:
            return search.search(task, cost_model, seed=seed, deadline=deadline)
        return search.search_from(task, cost_model, start=proposed, move_cost=0.0, seed=seed, deadline=deadline)

    def _proposed(self, task: Task, cost_model: CostModel, seed: int) -> Plan:
        """The fastest, by the cost model, of the greedy placement and the sampled ones."""
        arrays, policy = PlacementArrays.of(task), policy_for(self.policy, task)
        encoded = policy.encode(arrays)
        placements = [
            greedy_placement(policy, encoded, seed),
            *sampled_placements(policy, encoded, self.proposals, seed),
        ]
        costs = SimulatedWorld(cost_model).costs([(arrays, placement) for placement in placements])
        return arrays.plan(placements[int(np.argmin([step_ms(phases) for phases in costs]))], self.name, seed)


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
