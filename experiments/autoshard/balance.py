"""The degree of balance, AutoShard's own measure, of what was placed in `autoshard-transfer`.

References:
    [autoshard] Zha et al., AutoShard: Automated Embedding Table Sharding for Recommender Systems, KDD 2022.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from experiments.autoshard.kinds import Kind, Part
from experiments.entrants import SORTED
from experiments.experiment import ResultTable, Row
from experiments.summaries import NOTHING, with_interval
from shardwright.sharding.plan import Plan

BALANCE = "compute_balance"
"""Column: kernel time of the device with the least over that of the device with the most."""
_BUNDLED = "bundled"


def degree_of_balance(plan: Plan | None) -> float | None:
    """The degree of balance of the kernel times that a plan is predicted to have; None without a plan, costs or work."""
    devices = [device.compute_ms for device in plan.cost.devices] if plan is not None and plan.cost else []
    return min(devices) / max(devices) if devices and max(devices) > 0 else None


def balance_table(rows: Sequence[Row], parts: Iterable[Part]) -> ResultTable:
    """Mean degrees of balance by kind of tasks: AutoShard's policies on and off their target, and the others."""
    heads = (
        "part",
        "tested on",
        "trained on the same kind",
        "on other kinds",
        "bundled policy",
        "best sorted heuristic",
        "random",
        "certified",
    )
    caption = (
        "AutoShard's own measure, the degree of balance: kernel time of the device with the least over that of the device with the most, "
        "mean over tasks with its 95% interval (1 is even). Best sorted heuristic: the one with the highest mean of its column."
    )
    return ResultTable(caption, heads, [line for part in parts for line in _lines(rows, part)])


def _lines(rows: Sequence[Row], part: Part) -> Iterator[tuple[object, ...]]:
    for (kind, label), target in zip(part.tested, part.targets, strict=True):
        other = [each.name for each, _ in part.trained if each != target]
        heuristics = [_degrees(rows, kind, name) for name in SORTED]
        best = max(filter(None, heuristics), key=lambda found: sum(found) / len(found), default=[])
        shown = (
            _degrees(rows, kind, "autoshard", [target.name]),
            _degrees(rows, kind, "autoshard", other),
            _degrees(rows, kind, "autoshard", [_BUNDLED]),
            best,
            _degrees(rows, kind, "random"),
            _degrees(rows, kind, "certified"),
        )
        yield (part.name, label, *(with_interval(found) if found else NOTHING for found in shown))


def _degrees(rows: Sequence[Row], kind: Kind, strategy: str, trained: Sequence[str] | None = None) -> list[float]:
    """Of all tasks of a kind that a strategy placed, by policies trained on certain kinds if it learns."""
    return [
        float(balance)
        for row in rows
        if row["tested"] == kind.name
        and row["strategy"] == strategy
        and (trained is None or row["trained"] in trained)
        and (balance := row[BALANCE]) is not None
    ]
