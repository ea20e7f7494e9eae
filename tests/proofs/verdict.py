"""The proofs of a case, compared with its plans."""

from __future__ import annotations

from typing import Any

import numpy as np

from shardwright.cost.score import score
from shardwright.errors import ShardwrightError
from shardwright.search.bound import BoundProof
from shardwright.search.engine.catalog import make_catalog
from shardwright.search.exact import Exact
from shardwright.search.exact.formulation import Effort, all_ways, solve
from shardwright.search.infeasible import prove_infeasible
from shardwright.sharding.checking import check_plan
from shardwright.task import Task
from tests.proofs.cases import draw
from tests.proofs.plans import AllPlans

ROUNDING = 1e-9  # sums of the same floats in other orders
PRECISION = 1e-5  # the solver's, on sums of a few hundred numbers
SOLVER_MS = 1e-7
EXACT_PLANS = 500  # plans up to which the integer program is solved as well


def judged(number: int, seed: int) -> dict[str, Any]:
    """Draw a case and look for findings."""
    task, model, rng = draw(number, seed)
    plans = AllPlans(task, model, rng, any_grids=number % 3 != 1)  # the integer program is asked of the others
    findings = []
    best_ms = plans.best_ms
    if np.isfinite(best_ms):
        best = plans.shards(int(np.argmin(plans.step_ms)))
        check_plan(task, best)
        if not np.isclose(score(task, best, model).step_ms, best_ms, rtol=1e-9, atol=1e-12):
            raise AssertionError(f"case {number}: the plans are priced wrongly")
        if (reason := prove_infeasible(task)) is not None:
            findings.append(f"infeasible: {reason}")
    proof = BoundProof(make_catalog(task, model), model)
    plain = proof.solve()
    bounds = {"plain": plain.ms}
    if number % 3 == 0 and np.isfinite(plain.ms) and np.isfinite(best_ms):
        known_ms = best_ms * (1 + ROUNDING, 1.05, 2.0)[number // 3 % 3]
        tightened = proof.tightened(plain, known_ms)
        bounds |= {"tightened": tightened.ms, "refined": proof.refined(tightened, known_ms, lambda: False).ms}
    findings += [
        f"bound: {name} {ms!r} is above a plan of {best_ms!r}"
        for name, ms in bounds.items()
        if ms > best_ms * (1 + 2 * ROUNDING) + 1e-12
    ]
    exact = number % 3 == 1 and plans.complete and plans.step_ms.size <= EXACT_PLANS and Exact().supports(task) is None
    if exact:
        findings += _of_exact(task, model, best_ms)
    return {
        "case": number,
        "kind": kind_of(task),
        "plans": plans.step_ms.size,
        "complete": plans.complete,
        "possible": bool(np.isfinite(best_ms)),
        "best_ms": best_ms,
        "bounds": bounds,
        "exact": exact,
        "findings": findings,
    }


def _of_exact(task: Task, model: Any, best_ms: float) -> list[str]:
    try:
        answer = solve(task, model, all_ways(task, model, None), Effort(None, None, 1e-6))
    except ShardwrightError as error:
        return [f"exact: {error}"]
    if not np.isclose(answer.bound_ms, best_ms, rtol=PRECISION, atol=SOLVER_MS):
        return [f"exact: optimum {answer.bound_ms!r}, the best of all plans takes {best_ms!r}"]
    if answer.shards is None:
        return [] if np.isinf(best_ms) else ["exact: no plan"]
    check_plan(task, answer.shards)
    step_ms = score(task, answer.shards, model).step_ms
    return (
        [] if np.isclose(step_ms, best_ms, rtol=PRECISION, atol=SOLVER_MS) else [f"exact: its plan takes {step_ms!r}"]
    )


def kind_of(task: Task) -> str:
    """Pooled, sequence or mixed."""
    pooled = {table.pooled for table in task.tables}
    return "mixed" if len(pooled) > 1 else "pooled" if True in pooled else "sequence"
