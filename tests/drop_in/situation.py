"""Situations, and their outcomes with a planner."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import nn
from torchrec.distributed.planner import EmbeddingShardingPlanner
from torchrec.distributed.planner.storage_reservations import FixedPercentageStorageReservation
from torchrec.distributed.planner.types import PlannerError
from torchrec.distributed.types import ParameterSharding, ShardingPlan

from shardwright.integrations.torchrec import ShardwrightPlanner
from tests.unit.integrations.torchrec.made import SHARDERS, topology

PLANNED = "planned"
Tables = Mapping[str, ParameterSharding]


@dataclass(frozen=True)
class Situation:
    """One row.

    Attributes:
        name: the user's action.
        model: makes the model.
        fields: makes the other arguments of both planners; objects that planners change must be new each time.
        theirs: the outcome with TorchRec's planner: "planned", or the type of the error.
        ours: the outcome with our planner.
        sharders: makes the sharders.
        holds: the condition on the tables of either plan, by name.
        why: why the outcomes differ, if they do.
    """

    name: str
    model: Callable[[], nn.Module]
    fields: Callable[[], dict[str, Any]] = dict
    theirs: str = PLANNED
    ours: str = PLANNED
    sharders: Callable[[], Sequence[Any]] = field(default=lambda: SHARDERS)
    holds: Callable[[Tables], bool] | None = None
    why: str = ""


@dataclass(frozen=True)
class Outcome:
    """The outcome of a situation: "planned" or the type of the error, its text, the plan, and the warnings."""

    what: str
    said: str = ""
    plan: ShardingPlan | None = None
    warned: tuple[str, ...] = ()


PLANNERS = {"theirs": EmbeddingShardingPlanner, "ours": ShardwrightPlanner}


def outcome(situation: Situation, whose: str, **more: Any) -> Outcome:
    """Plan a situation with one of the planners; `more` are its further arguments."""
    usual = {"topology": topology(), "batch_size": 64, "storage_reservation": FixedPercentageStorageReservation(0.0)}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            planner = PLANNERS[whose](**usual | {"stats": []} | more | situation.fields())
            plan = planner.plan(situation.model(), list(situation.sharders()))
        except PlannerError as error:
            return Outcome(error.error_type.name, str(error), None, _said(caught))
        except (ArithmeticError, AssertionError, RuntimeError, ValueError, TypeError) as error:
            return Outcome(type(error).__name__, str(error), None, _said(caught))
    return Outcome(PLANNED, "", plan, _said(caught))


def tables_by_name(plan: ShardingPlan) -> dict[str, ParameterSharding]:
    """How each table is sharded, by its name."""
    return {name: table for module in plan.plan.values() for name, table in module.items()}


def _said(caught: Sequence[warnings.WarningMessage]) -> tuple[str, ...]:
    return tuple(str(one.message) for one in caught if "shardwright" in one.filename or "drop_in" in one.filename)
