"""Plan one task by `certified` and its rivals on one cost model: the outcomes that `search_quality.py` collects."""

from __future__ import annotations

from dataclasses import dataclass

import shardwright as sw
from benchmarks.block_times import HALF, Heaviest, block_ms, heaviest_blocks
from shardwright.cost import CostModel, cost_model_for
from shardwright.errors import InfeasibleTask
from shardwright.search.baselines import HEURISTICS
from shardwright.search.bound import Bound, BoundProof
from shardwright.search.certified import Certified
from shardwright.search.engine.catalog import make_catalog
from shardwright.sharding import Plan
from shardwright.task import Task
from shardwright.workload import random_task

BATCH = {"cpu": 1024, "h100": 65_536}
"""Batch size of the tasks, by device type."""

RIVALS = ("neuroshard", "greedy", "best sorted")
SORTED = tuple(strategy.name for strategy in HEURISTICS)
_SAME = 1e-6


@dataclass(frozen=True)
class Outcome:
    """The results of all strategies on a task.

    Attributes:
        group: setting of the task.
        tables: number of tables.
        devices: number of devices.
        step_ms: predicted step by strategy; None if it did not place the task.
        search_s: seconds of the search by strategy.
        bound_ms: `certified`'s bound; None if there is none.
        finest: the heaviest block over all tables' finest ways (`block_times`).
        cheapest: the heaviest block over all tables' cheapest ways.
        heaviest_ms: time of the heaviest shard in `certified`'s plan, alone on a device.
        memory_share: share of all devices' memory that `certified`'s plan takes.
        ended: why `certified` ended; "" if it has no plan.
        proofs: the bound after each part of the proof, given `certified`'s plan, with the part that gave the best bound.
    """

    group: str
    tables: int
    devices: int
    step_ms: dict[str, float | None]
    search_s: dict[str, float]
    bound_ms: float | None
    finest: Heaviest
    cheapest: Heaviest
    heaviest_ms: float
    memory_share: float
    ended: str = ""
    proofs: tuple[Bound, ...] = ()

    def share(self, ms: float) -> float:
        """Return ms as a share of `certified`'s step; 0 if it has none."""
        step = self.step_ms["certified"]
        return 0.0 if step is None else ms / step

    @property
    def binds(self) -> bool:
        """Whether a table binds."""
        return self.share(self.finest.ms) >= HALF

    @property
    def cut_dearly(self) -> bool:
        """Whether a table binds or is costly to cut."""
        return self.binds or self.share(self.cheapest.ms) >= HALF

    def above_bound(self, strategy: str) -> float | None:
        """(step − bound) / bound of a strategy; None if either is missing."""
        step = self.step_ms[strategy]
        return None if step is None or self.bound_ms is None else step / self.bound_ms - 1

    def ratio(self, rival: str) -> float | None:
        """Step of `certified` divided by a rival's; None if either is missing."""
        own, other = self.step_ms["certified"], self.step_ms[rival]
        return None if own is None or other is None else own / other

    def against(self, rival: str) -> str:
        """Return "win", "tie" or "loss" of `certified` against a rival, or "neither" if neither placed the task."""
        own, other = self.step_ms["certified"], self.step_ms[rival]
        if own is None or other is None:
            return "neither" if own is other else "loss" if own is None else "win"
        return "win" if own < other * (1 - _SAME) else "loss" if own > other * (1 + _SAME) else "tie"

    @property
    def line(self) -> str:
        """A progress line about the outcome."""
        steps = ", ".join(f"{name} {'–' if ms is None else f'{ms:.3f}'}" for name, ms in self.step_ms.items())
        gap = self.above_bound("certified")
        return f"{self.group}, {self.tables} tables: {steps}, gap {'–' if gap is None else f'{gap:.2%}'}"

    @property
    def columns(self) -> list[str]:
        """Column heads of the outcome in a CSV file."""
        names = [*(f"{name} ms" for name in self.step_ms), *(f"{name} s" for name in self.search_s)]
        return ["setting", "tables", "devices", *names, "bound ms", "finest", "cheapest", "heaviest shard", "memory"]

    @property
    def values(self) -> list[object]:
        """Row of the outcome in a CSV file."""
        numbers = [*self.step_ms.values(), *self.search_s.values(), self.bound_ms]
        shown = ["" if number is None else f"{number:.5g}" for number in numbers]
        shares = [self.share(ms) for ms in (self.finest.ms, self.cheapest.ms, self.heaviest_ms)]
        return [self.group, self.tables, self.devices, *shown, *(f"{x:.3f}" for x in (*shares, self.memory_share))]


class Search:
    """Plans tasks by every strategy.

    Args:
        tolerance: gap at which `certified` stops.
        time_limit: seconds a search.
    """

    def __init__(self, tolerance: float, time_limit: float) -> None:
        self._certified, self._time_limit = Certified(tolerance=tolerance), time_limit
        self._models: dict[str, CostModel] = {}

    def warm_up(self, devices: list[str]) -> None:
        """Load cost models and libraries, so that no search includes their loading time."""
        for device in devices:
            self._models[device] = cost_model_for(device)
            task = random_task(0, tables=12, devices=2, device=device, batch_size=BATCH[device])
            for strategy in ("neuroshard", "certified"):
                sw.plan(task, strategy=strategy, cost_model=self._models[device])

    def outcome(self, group: str, task: Task) -> Outcome:
        """Plan a task by all strategies."""
        model = self._models[task.topology.device]
        plans = {name: self._plan(task, name, model) for name in ("neuroshard", "greedy", *SORTED)}
        own = plans["certified"] = self._plan(task, "certified", model)
        step = {name: _step(plan) for name, plan in plans.items()}
        placed = [ms for name in SORTED if (ms := step[name]) is not None]
        step_ms = {name: step[name] for name in ("certified", "neuroshard", "greedy")}
        step_ms["best sorted"] = min(placed, default=None)
        search_s = {name: (plan.search_s or 0.0) if plan else 0.0 for name, plan in plans.items() if name in step_ms}
        memory = float(own.memory.total.sum()) / sum(task.topology.memory_bytes) if own else 0.0
        heaviest = float(block_ms(task, own.shards, model).max()) if own else 0.0
        return Outcome(
            group, len(task.tables), task.topology.devices, step_ms, search_s, own.bound_ms if own else None,
            *heaviest_blocks(task, model), heaviest, memory, (own and own.search_end) or "", _proofs(own, model) if own else (),
        )  # fmt: skip

    def _plan(self, task: Task, name: str, model: CostModel) -> Plan | None:
        strategy = self._certified if name == "certified" else name
        try:
            return sw.plan(task, strategy=strategy, cost_model=model, time_limit=self._time_limit)
        except InfeasibleTask:
            return None


def _step(plan: Plan | None) -> float | None:
    return None if plan is None or plan.cost is None else plan.cost.step_ms


def _proofs(plan: Plan, model: CostModel) -> tuple[Bound, ...]:
    """Return the bounds by prices, then by pieces on their own, then by ranges of kernels and holders of hot tables, without time limit."""
    proof, step_ms = BoundProof(make_catalog(plan.task, model), model), _step(plan) or 0.0
    by_prices = proof.solve()
    by_pieces = proof.tightened(by_prices, step_ms)
    return by_prices, by_pieces, proof.refined(by_pieces, step_ms, lambda: False)
