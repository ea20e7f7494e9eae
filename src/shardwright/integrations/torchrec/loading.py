"""A plan from a plan loader in place of a search."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from torchrec.distributed.planner.planners import to_sharding_plan
from torchrec.distributed.planner.types import PlanLoader, PlannerError, PlannerErrorType, ShardingOption
from torchrec.distributed.types import ShardingPlan

from shardwright.integrations.torchrec.problem import TorchRecProblem


def loaded_plan(
    loader: PlanLoader | None, problem: TorchRecProblem, context_hashes: Callable[[], Iterator[str]]
) -> ShardingPlan | None:
    """The plan that a loader has for a problem; None if it has none.

    Args:
        loader: TorchRec's or ours.
        problem: what is to be planned.
        context_hashes: hashes of the planner's inputs, its own first, then as other processes may have them; asked where the plan has one.

    Raises:
        PlannerError: the plan was made for other inputs, or its tables are not those of the problem.
    """
    if loader is None:
        return None
    of_plan = loader.plan_context_hash()
    if of_plan is not None:
        _check_context(loader, of_plan, context_hashes())
    options = loader.load()
    if not options:
        return None
    _check_tables(list(options.values()), problem)
    return to_sharding_plan(list(options.values()), problem.topology)


def _check_context(loader: PlanLoader, of_plan: str, hashes: Iterator[str]) -> None:
    own = next(hashes)
    if of_plan == own or of_plan in hashes:
        return
    named = getattr(loader, "get_plan_id", lambda: "the loaded plan")()
    raise PlannerError(
        f"planner input mismatch: {named} was made for other inputs; its context hash is {of_plan}, the planner's {own}: plan anew, or "
        "load it with the topology, batch size, model, reservation and constraints it was made for",
        PlannerErrorType.PLANNER_INPUT_CONTEXT_MISMATCH,
    )


def _check_tables(options: list[ShardingOption], problem: TorchRecProblem) -> None:
    wanted = {place.fqn for place in problem.places.values()}
    planned = {option.fqn for option in options}
    if wanted != planned:
        parts = [("it lacks", wanted - planned), ("it has besides", planned - wanted)]
        said = "; ".join(f"{what} {', '.join(sorted(names))}" for what, names in parts if names)
        raise PlannerError(
            f"the loaded plan is not for this model: {said}; plan anew", PlannerErrorType.PLAN_LOADING_FAILED
        )
