"""What a report shows of one plan."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from shardwright.cost.choice import model_behind
from shardwright.cost.model import CostModel
from shardwright.cost.score import scored
from shardwright.errors import InvalidInput
from shardwright.report.changes import Change, priced_changes
from shardwright.report.marginal import Marginals, marginals
from shardwright.report.measured import MeasuredTimes, not_comparable
from shardwright.sharding.costs import PHASES, PlanCost
from shardwright.sharding.plan import Plan

_SAME = 1e-4  # relative difference of two predicted step times that count as one cost model's


@dataclass(frozen=True, eq=False)
class Entry:
    """A plan in a report.

    Attributes:
        name: what it is called there, as a rule its file's name.
        plan: the plan, with its predicted cost.
        marginals: leave-one-out times; None where no cost model is at hand.
        measured: measured kernel times, if any.
        notes: what a reader should know about the figures.
        changes: changes that would save time, the most first; none where no cost model is at hand.
    """

    name: str
    plan: Plan
    marginals: Marginals | None = None
    measured: MeasuredTimes | None = None
    notes: tuple[str, ...] = ()
    changes: tuple[Change, ...] = ()

    @property
    def cost(self) -> PlanCost:
        """The plan's predicted cost."""
        assert self.plan.cost is not None
        return self.plan.cost


def entry_of(
    plan: Plan, name: str, *, cost_model: CostModel | None = None, measured: MeasuredTimes | None = None
) -> Entry:
    """A plan made ready to be shown.

    Args:
        plan: the plan; one without a predicted cost is scored.
        name: what to call it.
        cost_model: prices the tables' shares; by default the one calibrated here that priced the plan, or the bundled one of its device.
        measured: measured kernel times.

    Raises:
        InvalidInput: the plan has no predicted cost, and there is no cost model for its device.
    """
    unlike = measured and not_comparable(plan.task.topology.device, measured.device)
    notes = [f"Kernels are {unlike}."] if unlike else []
    try:
        model = cost_model or model_behind(plan)
    except InvalidInput as error:
        if plan.cost is None:
            raise
        return Entry(name, plan, measured=measured, notes=(*notes, f"Shares of tables are left out. {error}"))
    if plan.cost is None:
        plan = scored(plan, model)
        notes.append(f"The plan held no predicted cost; it was scored with {model.name} for this report.")
    found = marginals(plan, model)
    assert plan.cost is not None
    again = float(found.times.max(axis=0).sum())
    if not math.isclose(again, plan.cost.step_ms, rel_tol=_SAME):
        notes.append(
            f"Shares of tables are by cost model {model.name}, which predicts a step of {again:.3f} ms for this plan; the plan says "
            f"{plan.cost.step_ms:.3f} ms by {plan.cost_model or 'an unnamed model'}. Name that model with --model."
        )
    return Entry(name, plan, found, measured, tuple(notes), priced_changes(plan, model, found))


def distinct_names(names: Sequence[str]) -> list[str]:
    """The names, numbered from the second of the same kind on."""
    seen: dict[str, int] = {}
    result = []
    for name in names:
        seen[name] = seen.get(name, 0) + 1
        result.append(name if seen[name] == 1 else f"{name} ({seen[name]})")
    return result


def renamed(entries: Sequence[Entry]) -> list[Entry]:
    """The entries under names that are all different."""
    names = distinct_names([entry.name for entry in entries])
    return [replace(entry, name=name) for entry, name in zip(entries, names, strict=True)]


def phase_ms(cost: PlanCost) -> list[list[float]]:
    """The four phases, ms of every device each."""
    return [[float(getattr(device, phase)) for device in cost.devices] for phase in PHASES]
