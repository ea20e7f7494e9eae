"""The tables of `learned_quality.py`: each function returns column heads and rows."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from learned_outcome import Outcome
from learned_strategies import SORTED
from learned_tasks import Setting

Floats = npt.NDArray[np.float64]
Rows = list[tuple[str, ...]]
HeadsAndRows = tuple[tuple[str, ...], Rows]

_SAMPLES = 2000


class Costs:
    """Costs of one kind in one setting, by strategy and task.

    Args:
        outcomes: of the setting.
        kind: one of `learned_outcome.COSTS`.

    Attributes:
        names: the strategies, in the order of the outcomes.
        of: ms by strategy and task, of what was placed.
        bound: proven bound by task.
    """

    def __init__(self, outcomes: list[Outcome], kind: str) -> None:
        self.names = list(dict.fromkeys(outcome.strategy for outcome in outcomes))
        self.of: dict[str, dict[int, float]] = {name: {} for name in self.names}
        self.bound: dict[int, float] = {}
        for outcome in outcomes:
            if outcome.costs is not None:
                self.of[outcome.strategy][outcome.task] = outcome.costs[kind]
            if kind in outcome.bounds:
                self.bound[outcome.task] = outcome.bounds[kind]

    @property
    def best_sorted(self) -> str | None:
        """The heuristic with the lowest mean over the tasks that all heuristics placed."""
        present = [name for name in SORTED if self.of.get(name)]
        common = self.common(present)
        return min(present, key=lambda name: float(np.mean(self.at(name, common)))) if present and common else None

    def common(self, names: list[str]) -> list[int]:
        """Tasks that all of these strategies placed."""
        return sorted(set.intersection(*(set(self.of[name]) for name in names))) if names else []

    def at(self, name: str, tasks: list[int]) -> Floats:
        """A strategy's costs of these tasks."""
        return np.array([self.of[name][task] for task in tasks])

    def above_bound(self, name: str) -> Floats:
        """Shares of the bound by which a strategy lies above it, over the tasks it placed and that have one."""
        tasks = [task for task in sorted(self.of[name]) if task in self.bound]
        return self.at(name, tasks) / np.array([self.bound[task] for task in tasks]) - 1 if tasks else np.zeros(0)

    def from_best_sorted(self, name: str, *, each: bool) -> tuple[Floats, Floats]:
        """How far below the best heuristic a strategy and the bound lie, in ms, by task; empty where nothing can be said.

        Args:
            name: the strategy.
            each: measure from each task's own best heuristic, not from the one that is best on average.
        """
        best = self.best_sorted
        if best is None or not self.bound:
            return np.zeros(0), np.zeros(0)
        present = [other for other in SORTED if self.of.get(other)]
        tasks = [task for task in self.common([name, *present]) if task in self.bound]
        if not tasks:
            return np.zeros(0), np.zeros(0)
        start = np.min([self.at(other, tasks) for other in present], axis=0) if each else self.at(best, tasks)
        bound = np.array([self.bound[task] for task in tasks])
        return start - self.at(name, tasks), start - bound


def by_setting(found: list[Outcome]) -> dict[Setting, list[Outcome]]:
    """Outcomes by setting."""
    groups: dict[Setting, list[Outcome]] = {}
    for outcome in found:
        groups.setdefault(outcome.setting, []).append(outcome)
    return groups


def closed(gained: Floats, possible: Floats) -> float:
    """The share of the possible gain that was gained, of the sums over tasks."""
    total = possible.sum()
    return float(gained.sum() / total) if total > 0 else float("nan")


def closed_range(gained: Floats, possible: Floats) -> tuple[float, float]:
    """The 5th and 95th percentile of `closed` over tasks drawn anew with replacement."""
    if not gained.size or possible.max() <= 0:
        return float("nan"), float("nan")
    drawn = np.random.default_rng(0).integers(gained.size, size=(_SAMPLES, gained.size))
    shares = [closed(gained[row], possible[row]) for row in drawn]
    low, high = np.nanpercentile(shares, (5, 95))
    return float(low), float(high)


def mean_table(found: list[Outcome], kind: str) -> HeadsAndRows:
    """Mean cost of each strategy by setting, over the tasks that all strategies of the setting placed."""
    names = list(dict.fromkeys(outcome.strategy for outcome in found))
    heads = ("setting", "tasks", "of them in the means", *names, "bound")
    rows: Rows = []
    for setting, outcomes in by_setting(found).items():
        costs = Costs(outcomes, kind)
        # rnn may have been tried on some tasks only, and must not take the others out of the means
        tasks = costs.common([name for name in costs.names if name != "rnn"])
        means = [_mean([costs.of.get(name, {}).get(task) for task in tasks]) for name in names]
        bound = _mean([costs.bound.get(task) for task in tasks])
        tried = len({outcome.task for outcome in outcomes})
        rows.append((setting.name, str(tried), str(len(tasks)), *means, bound))
    return heads, rows


def closed_table(found: list[Outcome], kind: str) -> HeadsAndRows:
    """What part of the distance from the best heuristic to the bound each strategy closes."""
    heads = (
        "setting", "best heuristic", "strategy", "tasks", "closed", "5th to 95th percentile of the tasks drawn anew",
        "closed, from each task's best heuristic", "above the bound, median", "90th percentile", "worst",
    )  # fmt: skip
    rows: Rows = []
    for setting, outcomes in by_setting(found).items():
        costs = Costs(outcomes, kind)
        for name in costs.names:
            if name in SORTED or name == "random":
                continue
            gained, possible = costs.from_best_sorted(name, each=False)
            low, high = closed_range(gained, possible)
            own = closed(*costs.from_best_sorted(name, each=True))
            rows.append(
                (
                    setting.name, costs.best_sorted or "–", name, str(gained.size), _percent(closed(gained, possible)),
                    f"{_percent(low)} to {_percent(high)}", _percent(own), *_percentiles(costs.above_bound(name), (50, 90, 100)),
                )
            )  # fmt: skip
    return heads, rows


def search_table(found: list[Outcome]) -> HeadsAndRows:
    """Tasks placed and search times."""
    heads = ("setting", "strategy", "tasks", "placed", "search, median s", "longest s")
    rows: Rows = []
    for setting, outcomes in by_setting(found).items():
        for name in dict.fromkeys(outcome.strategy for outcome in outcomes):
            own = [outcome for outcome in outcomes if outcome.strategy == name]
            times = [outcome.search_s for outcome in own if outcome.costs is not None]
            shown = (f"{np.median(times):.4f}", f"{max(times):.4f}") if times else ("–", "–")
            rows.append((setting.name, name, str(len(own)), f"{len(times) / len(own):.0%}", *shown))
    return heads, rows


def _mean(values: list[float | None]) -> str:
    """The mean of the known values, with their number where some are not."""
    known = [value for value in values if value is not None]
    if not known:
        return "–"
    return f"{np.mean(known):.3f}" + ("" if len(known) == len(values) else f" (of {len(known)})")


def _percent(share: float) -> str:
    return "–" if np.isnan(share) else f"{share:.1%}"


def _percentiles(values: Floats, percentiles: tuple[int, ...]) -> list[str]:
    return [f"{np.percentile(values, p):.2%}" if values.size else "–" for p in percentiles]
