"""The tables of `dreamshard-tables`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np

from experiments.dreamshard.distances import Costs, Floats, closed, closed_interval
from experiments.entrants import SORTED
from experiments.experiment import ResultTable, Row, Value
from experiments.learned.entrants import RNN
from experiments.learned.tasks import Setting
from experiments.summaries import NOTHING, cell, ratio_of_means, with_interval

Groups: TypeAlias = dict[tuple[Setting, str], list[Row]]
"""Rows by setting and half of the pool."""
_PLAIN = ("random", *SORTED)


def summary_table(groups: Groups, names: Sequence[str]) -> ResultTable:
    """All settings together, by strategy and half."""
    heads = ("strategy", "tables", "tasks", "placed", "step over the best heuristic's", "tasks with a shorter step", "closed, step",
             "closed, kernels", "above the bound, median", "search, median s")  # fmt: skip
    body = []
    for name in names:
        for half in dict.fromkeys(half for _, half in groups):
            chosen = [rows for (_, of), rows in groups.items() if of == half]
            own = [row for rows in chosen for row in rows if row["strategy"] == name]
            if own:
                body.append(
                    (name, half, len(own), *_placed(own), *_against_heuristics(chosen, name), _median_search(own))
                )
    caption = (
        "All settings together. Step over the best heuristic's: sum over tasks, over that of the heuristic with the lowest mean of each "
        "setting; shorter: more than 0.1% below that heuristic's."
    )
    return ResultTable(caption, heads, body)


def _placed(own: Sequence[Row]) -> tuple[str]:
    return (f"{np.mean([row['step_ms'] is not None for row in own]):.0%}",)


def _against_heuristics(settings: Sequence[Sequence[Row]], name: str) -> tuple[str, ...]:
    """Ratio to the best heuristic, tasks won, both shares closed, median distance to the bound."""
    steps = [Costs(rows, "step_ms") for rows in settings]
    own, best = [], []
    for costs in steps:
        heuristic = costs.best_heuristic
        tasks = costs.common([name, heuristic]) if heuristic else []
        own += list(costs.at(name, tasks))
        best += list(costs.at(heuristic, tasks)) if heuristic else []
    ratio = np.sum(own) / np.sum(best) if own else float("nan")
    won = float(np.mean(np.array(own) < 0.999 * np.array(best))) if own else float("nan")
    shares = []
    for kind in ("step_ms", "compute_ms"):
        gains = [Costs(rows, kind).from_best_heuristic(name) for rows in settings]
        shares.append(_share(name, *(np.concatenate(each) for each in zip(*gains, strict=True))))
    above = np.concatenate([costs.above_bound(name) for costs in steps])
    return cell(ratio, ".3f"), cell(won, ".0%"), *shares, _percentiles(above, (50,))[0]


def search_seconds(own: Sequence[Row]) -> list[float]:
    """Seconds of the searches that placed their task, as far as they were timed."""
    return [float(seconds) for row in own if row["step_ms"] is not None and (seconds := row["search_s"]) is not None]


def _median_search(own: Sequence[Row]) -> str:
    times = search_seconds(own)
    return f"{np.median(times):.4f}" if times else NOTHING


def closed_matrix(groups: Groups, names: Sequence[str], kind: str, what: str) -> ResultTable:
    """What part of the distance to the bound each strategy closes, setting by setting."""
    shown = [name for name in names if name not in _PLAIN]
    body = []
    for (setting, half), rows in groups.items():
        costs = Costs(rows, kind)
        shares = (_percent(closed(*costs.from_best_heuristic(name))) for name in shown)
        body.append((setting.name, half, costs.best_heuristic or NOTHING, *shares))
    caption = f"Closed, {what}: part of the distance between the best heuristic and the bound."
    return ResultTable(caption, ("setting", "tables", "best heuristic", *shown), body)


def _common(costs: Costs, names: Sequence[str]) -> list[Value]:
    """Tasks that all strategies placed; `rnn` may have been tried on some only, and must not take the others away."""
    return costs.common([name for name in names if name != RNN and name in costs.of])


def mean_table(groups: Groups, names: Sequence[str], half: str) -> ResultTable:
    """Mean step and mean kernels of each strategy, over the same tasks."""
    body = []
    for kind, what in (("step_ms", "step"), ("compute_ms", "kernels")):
        for (setting, of), rows in groups.items():
            if of != half:
                continue
            costs = Costs(rows, kind)
            tasks = _common(costs, names)
            means = [_mean([costs.of.get(name, {}).get(task) for task in tasks]) for name in names]
            bound = _mean([costs.bound.get(task) for task in tasks])
            tried = len({row["task"] for row in rows})
            body.append((what, setting.name, tried, len(tasks), *means, bound))
    caption = (
        f"Mean step, and mean of the kernels of the slowest device, ms; {half} tables. (of n): a mean over n of these tasks only, not "
        "comparable with those beside it."
    )
    return ResultTable(caption, ("cost", "setting", "tasks", "of them in the means", *names, "bound"), body)


def paper_table(groups: Groups, names: Sequence[str], half: str) -> ResultTable:
    """Embedding cost as the paper gives it: mean, standard deviation, and speed-up over random placement."""
    body = []
    for (setting, of), rows in groups.items():
        if of != half:
            continue
        costs = Costs(rows, "embedding_cost_ms").of
        tasks = _common(Costs(rows, "embedding_cost_ms"), names)
        cells = []
        for name in names:
            chosen = [task for task in tasks if task in costs.get(name, {})]
            values = [costs[name][task] for task in chosen]
            faster = ratio_of_means(costs["random"], costs[name], chosen) if "random" in costs and chosen else None
            speed = "" if faster is None else f", {faster - 1:+.1%}"
            cells.append(f"{np.mean(values):.2f} ± {np.std(values):.2f}{speed}" if values else NOTHING)
        body.append((setting.name, len(tasks), *cells))
    caption = (
        f"As the paper's tables: embedding cost, ms, mean ± standard deviation over tasks, and how much faster than random placement; "
        f"{half} tables. {RNN}'s are over its own tasks."
    )
    return ResultTable(caption, ("setting", "tasks", *names), body)


def detail_table(groups: Groups, names: Sequence[str], half: str) -> ResultTable:
    """Everything else by setting and strategy."""
    heads = ("setting", "strategy", "tasks", "placed", "mean step, ms (95% interval)", "closed", "its 95% interval",
             "closed, from each task's best heuristic", "above the bound, median", "90th percentile", "worst", "search, median s",
             "longest s")  # fmt: skip
    body: list[tuple[object, ...]] = []
    for (setting, of), rows in groups.items():
        costs = Costs(rows, "step_ms")
        for name in names if of == half else ():
            own = [row for row in rows if row["strategy"] == name]
            if not own:
                continue
            gains = costs.from_best_heuristic(name)
            low, high = closed_interval(*gains)
            times = search_seconds(own)
            body.append(
                (
                    setting.name, name, len(own), *_placed(own), with_interval(list(costs.of[name].values()), ".3f"),
                    _share(name, *gains), NOTHING if name in _PLAIN else f"{_percent(low)} to {_percent(high)}",
                    _share(name, *costs.from_best_heuristic(name, each=True)),
                    *_percentiles(costs.above_bound(name), (50, 90, 100)), _median_search(own), cell(max(times, default=None), ".4f"),
                )
            )  # fmt: skip
    caption = (
        f"By setting and strategy, {half} tables: each over the tasks it placed itself. Seconds are by the clock, and {RNN} trains within "
        "them. Intervals are bootstrapped over tasks."
    )
    return ResultTable(caption, heads, body)


def _mean(values: Sequence[float | None]) -> str:
    """The mean of the known values, with their number where some are not."""
    known = [value for value in values if value is not None]
    if not known:
        return NOTHING
    return f"{np.mean(known):.3f}" + ("" if len(known) == len(values) else f" (of {len(known)})")


def _share(name: str, gained: Floats, possible: Floats) -> str:
    """The share closed; a dash for what it is measured from."""
    return NOTHING if name in _PLAIN else _percent(closed(gained, possible))


def _percent(share: float) -> str:
    return NOTHING if np.isnan(share) else f"{share:.1%}"


def _percentiles(values: Floats, percentiles: Sequence[int]) -> list[str]:
    return [f"{np.percentile(values, p):.2%}" if values.size else NOTHING for p in percentiles]
