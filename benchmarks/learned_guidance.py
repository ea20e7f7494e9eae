"""A policy's placement as a start of `certified`, against `certified` as it is: writes results/learned_guidance.md.

    python -m benchmarks.learned_guidance [--sizes 200x16 1000x128] [--seeds 3] [--seconds 12]

Tasks are for hosts of eight H100s, with tables that no policy learned from. `guided` improves `dreamshard`'s placement before its own
starts, as `certified` does if all tables must stay whole; `guided alone` makes no other starts. Searches run one after another on one
thread. The table shows the seconds until a search comes within 1% of the best plan.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from benchmarks.learned_quality import World, drawn
from benchmarks.program import options_of
from benchmarks.results_table import command_of, write_results
from shardwright.cost.files import bundled_models, load_model
from shardwright.learned.dreamshard.strategy import DreamShard
from shardwright.search.certified import Certified
from shardwright.search.engine.session import SearchSession, Start
from shardwright.search.solve import plan
from shardwright.search.strategy import BestPlan, tell
from shardwright.task import Task
from shardwright.task.constraints import Constraints

NAME = "learned_guidance"
KINDS = ("no policy", "guided", "guided alone")
NEAR = 0.01


@dataclass(frozen=True)
class Guided(Certified):
    """`certified` with or without the policy's placement, which reports its best step after every pair of starts.

    Attributes:
        kind: one of `KINDS`.
    """

    kind: str = "guided"

    def _policy_first(self, session: SearchSession, seen: BestPlan) -> None:
        if self.kind != "no policy":
            placed = DreamShard().search(seen.task, seen.cost_model, seed=0, deadline=None)
            session.adopt([placed])
            tell(session.best_ms, session.prepared.bound_ms)

    def _starts(self, session: SearchSession) -> int:
        return -1 if self.kind == "guided alone" and session.best is not None else super()._starts(session)

    def _some(self, session: SearchSession, starts: list[Start]) -> int:
        stuck = -1
        for first in range(0, len(starts), 2):
            stuck = super()._some(session, starts[first : first + 2])
            tell(session.best_ms, session.prepared.bound_ms)
            if session.best is not None and (self._done(session) or session.late):
                break
        return stuck


Curve = list[tuple[float, float]]
"""Seconds and the best step in ms by then."""


def main(arguments: Sequence[str] | None = None) -> None:
    options = options_of(
        __doc__, arguments, sizes=(["200x16", "1000x128"], "tables x devices"), seeds=(3, "tasks of each size"),
        seconds=(12.0, "time limit of a search"),
    )  # fmt: skip
    world = World("H100, learned model", "h100", load_model(bundled_models()["h100"]), False)
    searched(drawn(world, 0, (10, 2)), world, "guided", 1.0)
    rows = []
    for size in options.sizes:
        tables, devices = (int(part) for part in size.split("x"))
        for whole in (False, True):
            tasks = [drawn(world, seed, (tables, devices)) for seed in range(options.seeds)]
            if not whole:
                tasks = [replace(task, constraints=Constraints()) for task in tasks]
            every = [{kind: searched(task, world, kind, options.seconds) for kind in KINDS} for task in tasks]
            rows += [row(f"{tables} × {devices}, {'whole' if whole else 'any cuts'}", kind, every) for kind in KINDS]
            print(*rows[-3:], sep="\n", flush=True)
    caption = (
        f"{options.seeds} tasks of each kind, at most {options.seconds:g} s a search, one thread. Near: within {NEAR:.0%} of the best "
        "plan of the task; a search that never comes near counts with the whole limit. Steps are predicted by the H100's cost model."
    )
    heads = ("task", "search", "seconds until near, each", "mean", "first step / best", "final step / best")
    write_results(NAME, "A policy's placement as a start", [(caption, heads, rows)], command_of(NAME, arguments))


def searched(task: Task, world: World, kind: str, seconds: float) -> Curve:
    """Search, and return the times at which better steps came; the last entry is the returned plan's."""
    began, curve = time.perf_counter(), []

    def note(step_ms: float, bound_ms: float | None) -> None:
        curve.append((time.perf_counter() - began, step_ms))

    strategy = Guided(threads=1, kind=kind)
    best = plan(task, strategy=strategy, cost_model=world.model, time_limit=seconds, progress=note)
    assert best.cost is not None
    return [*curve, (time.perf_counter() - began, best.cost.step_ms)]


def row(what: str, kind: str, every: Sequence[dict[str, Curve]]) -> tuple[str, ...]:
    """Return the figures of a search on some tasks."""
    near, first, last = [], [], []
    for curves in every:
        best = min(step for curve in curves.values() for _, step in curve)
        limit = max(curve[-1][0] for curve in curves.values())
        near.append(min([when for when, step in curves[kind] if step <= (1 + NEAR) * best], default=limit))
        first.append(next(step for _, step in curves[kind] if math.isfinite(step)) / best)
        last.append(curves[kind][-1][1] / best)
    each = ", ".join(f"{seconds:.1f}" for seconds in near)
    return what, kind, each, f"{np.mean(near):.2f}", f"{np.mean(first):.3f}", f"{np.mean(last):.4f}"


if __name__ == "__main__":
    main()
