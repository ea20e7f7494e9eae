"""The tables of `search_quality.py`: each function returns column heads and rows."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from benchmarks.search_outcome import RIVALS, Outcome

Rows = list[tuple[str, ...]]
HeadsAndRows = tuple[tuple[str, ...], Rows]


def groups_of(outcomes: list[Outcome]) -> dict[str, list[Outcome]]:
    """Group outcomes by setting."""
    groups: dict[str, list[Outcome]] = {}
    for outcome in outcomes:
        groups.setdefault(outcome.group, []).append(outcome)
    return groups


def paper_table(every: list[Outcome]) -> HeadsAndRows:
    """Wins and gaps by setting."""
    heads = (
        "setting", "tasks", "win / tie / loss", "largest certified / neuroshard", "gap, median", "gap, 90th percentile", "gap, worst",
        "gap ≤ 1%", "tasks: a table binds", "gap, worst of the others", "tasks: a table is costly to cut, or binds",
        "gap, worst of the others ",
    )  # fmt: skip
    rows: Rows = []
    for group, outcomes in groups_of(every).items():
        gaps = _known(outcome.above_bound("certified") for outcome in outcomes)
        free = _known(o.above_bound("certified") for o in outcomes if not o.binds)
        easy = _known(o.above_bound("certified") for o in outcomes if not o.cut_dearly)
        ratios = _known(outcome.ratio("neuroshard") for outcome in outcomes)
        rows.append(
            (
                group, str(len(outcomes)), _score(outcomes), f"{max(ratios, default=np.nan):.4f}", *_percentiles(gaps, (50, 90, 100)),
                f"{np.mean([gap <= 0.01 for gap in gaps]) if gaps else np.nan:.0%}",
                str(sum(outcome.binds for outcome in outcomes)), *_percentiles(free, (100,)),
                str(sum(outcome.cut_dearly for outcome in outcomes)), *_percentiles(easy, (100,)),
            )
        )  # fmt: skip
    return heads, rows


def large_table(every: list[Outcome]) -> HeadsAndRows:
    """Gaps by size, and the share of `neuroshard`'s cost above the bound that `certified` removes."""
    heads = (
        "setting", "tasks", "win / tie / loss", "gap, median", "gap, worst", "neuroshard above bound, median", "removed, median",
        "removed, range", "removed, of all", "tasks: a table binds", "tasks: a table is costly to cut, or binds",
    )  # fmt: skip
    rows: Rows = []
    for group, outcomes in groups_of(every).items():
        gaps = _known(outcome.above_bound("certified") for outcome in outcomes)
        theirs = _known(outcome.above_bound("neuroshard") for outcome in outcomes)
        removed = [1 - own / their for own, their in _excesses(outcomes) if their > 0]
        own, their = np.sum([*_excesses(outcomes), (0.0, 0.0)], axis=0)
        rows.append(
            (
                group, str(len(outcomes)), _score(outcomes), *_percentiles(gaps, (50, 100)), *_percentiles(theirs, (50,)),
                *_percentiles(removed, (50,)), " to ".join(_percentiles(removed, (0, 100))), f"{1 - own / their if their else np.nan:.1%}",
                *(str(sum(getattr(outcome, what) for outcome in outcomes)) for what in ("binds", "cut_dearly")),
            )
        )  # fmt: skip
    return heads, rows


def above_bound_table(every: list[Outcome]) -> HeadsAndRows:
    """Ratios of `certified` to each rival."""
    heads = (
        "setting", "rival", "win / tie / loss", "certified / rival, median", "10th to 90th percentile", "range",
        "rival above bound, median", "worst",
    )  # fmt: skip
    rows: Rows = []
    for group, outcomes in groups_of(every).items():
        for rival in RIVALS:
            ratios = _known(outcome.ratio(rival) for outcome in outcomes)
            above = _known(outcome.above_bound(rival) for outcome in outcomes)
            at = [f"{np.percentile(ratios, p):.3f}" if ratios else "–" for p in (0, 10, 50, 90, 100)]
            rows.append(
                (
                    group, rival, _score(outcomes, rival), at[2], f"{at[1]} to {at[3]}", f"{at[0]} to {at[4]}",
                    *_percentiles(above, (50, 100)),
                )
            )  # fmt: skip
    return heads, rows


def strategy_table(every: list[Outcome]) -> HeadsAndRows:
    """Shares of tasks that were not placed, and search times."""
    names = list(every[0].step_ms)
    heads = ("setting", *(f"{name}, not placed" for name in names), *(f"{name}, s" for name in every[0].search_s))
    rows: Rows = []
    for group, outcomes in groups_of(every).items():
        failed = [np.mean([outcome.step_ms[name] is None for outcome in outcomes]) for name in names]
        times = [[o.search_s[name] for o in outcomes if o.step_ms[name] is not None] for name in every[0].search_s]
        medians = (f"{np.median(each):.3f}" if each else "–" for each in times)
        rows.append((group, *(f"{share:.0%}" for share in failed), *medians))
    return heads, rows


def proof_table(every: list[Outcome]) -> HeadsAndRows:
    """Reasons why searches ended, gaps after each part of the proof, and the part that gave the bound."""
    ends, parts = ("proven", "settled", "deadline"), ("prices", "pieces", "kernels", "holders", "classes")
    heads = (
        "setting", *ends, "gap by prices, median", "+ pieces on their own", "+ ranges of kernels and holders",
        *(f"by {part}" for part in parts),
    )  # fmt: skip
    rows: Rows = []
    for group, outcomes in groups_of(every).items():
        placed = [outcome for outcome in outcomes if outcome.proofs]
        steps = np.array([outcome.step_ms["certified"] or np.nan for outcome in placed])
        proven = np.array([[bound.ms for bound in outcome.proofs] for outcome in placed]).reshape(-1, 3)
        gaps = [_percentiles(list(steps / column - 1), (50,))[0] for column in proven.T]
        counts = [str(sum(outcome.ended == end for outcome in placed)) for end in ends]
        by = [str(sum(outcome.proofs[-1].by == part for outcome in placed)) for part in parts]
        rows.append((group, *counts, *gaps, *by))
    return heads, rows


def worst_table(every: list[Outcome], count: int = 10) -> HeadsAndRows:
    """The widest gaps, and possible causes of each."""
    heads = (
        "setting", "tables", "step ms", "bound ms", "gap", "heaviest block of a finest way: table, share of the step", "binds",
        "heaviest block of a cheapest way: table, share of the step", "heaviest shard in the plan, share of the step",
        "memory in use",
    )  # fmt: skip
    with_gap = [(gap, outcome) for outcome in every if (gap := outcome.above_bound("certified")) is not None]
    rows: Rows = []
    for gap, outcome in sorted(with_gap, key=lambda pair: -pair[0])[:count]:
        rows.append(
            (
                outcome.group, str(outcome.tables), f"{outcome.step_ms['certified']:.4f}", f"{outcome.bound_ms:.4f}", f"{gap:.2%}",
                f"{outcome.finest.table}, {outcome.share(outcome.finest.ms):.0%}", "yes" if outcome.binds else "no",
                f"{outcome.cheapest.table}, {outcome.share(outcome.cheapest.ms):.0%}", f"{outcome.share(outcome.heaviest_ms):.0%}",
                f"{outcome.memory_share:.0%}",
            )
        )  # fmt: skip
    return heads, rows


def _score(outcomes: list[Outcome], rival: str = "neuroshard") -> str:
    results = [outcome.against(rival) for outcome in outcomes]
    return " / ".join(str(results.count(result)) for result in ("win", "tie", "loss"))


def _excesses(outcomes: list[Outcome]) -> list[tuple[float, float]]:
    """For tasks that both placed, how far `certified` and `neuroshard` lie above the bound, as shares of the bound."""
    pairs = [(outcome.above_bound("certified"), outcome.above_bound("neuroshard")) for outcome in outcomes]
    return [(own, their) for own, their in pairs if own is not None and their is not None]


def _known(values: Iterable[float | None]) -> list[float]:
    return [value for value in values if value is not None]


def _percentiles(values: list[float], percentiles: tuple[int, ...]) -> list[str]:
    return [f"{np.percentile(values, p):.2%}" if values else "–" for p in percentiles]
