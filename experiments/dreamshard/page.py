"""The page of `dreamshard-tables`."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from experiments.dreamshard.distances import Costs, closed
from experiments.dreamshard.page_tables import (
    Groups,
    closed_matrix,
    detail_table,
    mean_table,
    paper_table,
    summary_table,
)
from experiments.dreamshard.pictures import above_bound_picture, halves_picture
from experiments.experiment import Page, Row
from experiments.learned.entrants import NAMES, RNN
from experiments.learned.tasks import BATCH, DIM, MEMORY, POOL, TEST_SEED, Setting
from experiments.rows import VERSION
from experiments.summaries import conditions, grouped, in_order


def page(rows: Sequence[Row], tasks: int) -> Page:
    """The page.

    Args:
        rows: what was planned so far.
        tasks: tasks of each setting and half, once all is planned.
    """
    groups = by_setting(rows)
    names = in_order((row["strategy"] for row in rows), NAMES)
    halves = list(dict.fromkeys(half for _, half in groups))
    tables = [
        summary_table(groups, names),
        closed_matrix(groups, names, "step_ms", "step"),
        closed_matrix(groups, names, "compute_ms", "kernels of the slowest device"),
        *(mean_table(groups, names, half) for half in halves),
        *(paper_table(groups, names, half) for half in halves),
        *(detail_table(groups, names, half) for half in halves),
    ]
    figures = {
        "": above_bound_picture(groups, "step_ms"),
        "compute": above_bound_picture(groups, "compute_ms"),
        "halves": halves_picture(groups),
    }
    return Page("Learned placement on DreamShard's tasks", text(rows, groups, tasks), tables, figures, conditions(rows))


def by_setting(rows: Sequence[Row]) -> Groups:
    """Rows by setting and half, few devices and tables first, unseen tables first."""
    found = {
        (Setting(int(tables or 0), int(devices or 0)), str(half)): own
        for (tables, devices, half), own in grouped(rows, "tables", "devices", "half").items()
    }
    return dict(sorted(found.items(), key=lambda one: (one[0][0].devices, one[0][0].tables, one[0][1] != "unseen")))


def text(rows: Sequence[Row], groups: Groups, tasks: int) -> list[str]:
    """What was run, and what its figures leave out."""
    made_with = {str(row["strategy"]): str(row[VERSION]) for row in rows}
    versions = "; ".join(f"{name}: {made}" for name, made in made_with.items())
    return [
        f"Tasks of so many tables of dim {DIM} in fp32, each drawn at most once from the pool {POOL}, on 4 or 8 devices of {MEMORY}, batch "
        f"{BATCH:,}, every table whole; seed {TEST_SEED}. Half of the pool's tables are those that the bundled policies were trained on "
        "(seen), the other half no policy has met (unseen); no task was part of a training. Wanted are "
        f"{tasks} tasks of each half and setting; {RNN} trains on every task by itself and gets the first ones only. "
        f"{versions}.",
        "**What differs from the paper.** Costs are those of the bundled CPU cost model, trained on kernels measured on a CPU, where the "
        "paper measures on GPUs: milliseconds compare with each other here and with nothing there. The paper trains a policy for each "
        "setting; here one bundled policy of each strategy, trained on tasks of 10 to 120 tables on 2 to 16 devices, places all. "
        "The papers compare embedding costs, the slowest device's sum over the phases; `step` adds up the slowest device of each phase, "
        "which is what a synchronous step waits for, and what `dreamshard` and `certified` are asked to make small. "
        "`autoshard` makes the kernels of the slowest device small, and is to be judged by those.",
        "**How to read it.** The bound is what `certified` proves: no plan of whole tables has a shorter step. The bound on kernels is the "
        "larger of an even share of everything and of the costliest table alone. *Closed* is the part of the distance between the best "
        "sorted heuristic and the bound that a strategy closes: (heuristic − strategy) / (heuristic − bound), of the sums over tasks; "
        "whole tables cannot reach all of it, and `certified` shows how much can be reached by searching. Means are over tasks that all "
        f"strategies but {RNN} placed." + _untimed(groups),
        _finding(groups),
    ]


def _untimed(groups: Groups) -> str:
    """How many plans have no search time: those whose rows were made on another machine than the page's."""
    rows = [row for own in groups.values() for row in own]
    count = sum(row["step_ms"] is not None and row["search_s"] is None for row in rows)
    return f" {count:,} of the plans were made on another machine and have no search time here." if count else ""


def _finding(groups: Groups) -> str:
    """The sentence that the paper's claim is about: how policies fare against heuristics, on both halves."""
    parts = []
    for name in ("dreamshard", "autoshard"):
        kind, of = ("step_ms", "step") if name == "dreamshard" else ("compute_ms", "kernels")
        for half in ("unseen", "seen"):
            shares = [each for _, each in _closed_by_setting(groups, name, kind, half)]
            if shares:
                spread = f"{min(shares):.0%} to {max(shares):.0%} of the distance, over {len(shares)} settings"
                parts.append(f"`{name}` closes {spread} ({of}, {half} tables)")
    return "**Found.** " + ("; ".join(parts) if parts else "nothing yet") + "."


def _closed_by_setting(groups: Groups, name: str, kind: str, half: str) -> list[tuple[Setting, float]]:
    each = [
        (setting, closed(*Costs(rows, kind).from_best_heuristic(name)))
        for (setting, of), rows in groups.items()
        if of == half
    ]
    return [(setting, share) for setting, share in each if not np.isnan(share)]
