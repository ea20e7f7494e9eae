"""What the page of `ablations` says: sentences whose figures come from the rows."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from experiments.ablations.found import beside, geometric
from experiments.ablations.heads_found import head_pairs
from experiments.ablations.parts import MEASURED, SAMPLES, SEARCH, TRAINED
from experiments.ablations.variants import FULL, NEUROSHARD, VARIANTS
from experiments.experiment import Row

_NOTABLE = 0.005  # longer or shorter step, as a share: what is called mattering

_INTRODUCTION = (
    "NeuroShard's tasks (10 to 59 tables on 4 devices, 20 to 119 on 8; max dim 32 and 128; batch 1,024), priced by the bundled model of "
    "CPU kernels. Each search runs as it is and without one part; every plan is judged by the same fused costs, whatever it was searched "
    "with. Costs are `step_ms`; the paper's cost, the largest device's sum, is beside it."
)
_HEADS = (
    "**The heads.** A convex head is what `certified`'s bound rests on: under the mlp head it searches just the same but proves nothing, "
    "so that no gap is known and no search ends early. What the convex head costs in accuracy is in the tables: both heads are trained on "
    "the same samples, measured on one machine by the same program, and plans found under either are run on its kernels."
)


def paragraphs(rows: Sequence[Row]) -> Sequence[str]:
    """The text of the page."""
    parts = [_INTRODUCTION, *(verdict(rows, system) for system in VARIANTS), cache(rows), heads(rows)]
    return [part for part in parts if part]


def verdict(rows: Sequence[Row], system: str) -> str:
    """Which parts matter; empty without rows."""
    matters: list[str] = []
    little: list[str] = []
    better: list[str] = []
    for name in list(VARIANTS[system])[1:]:
        found = beside(rows, system, name, FULL)
        if not found.pairs:
            continue
        mean, low, high = geometric(found.ratios())
        said = f"{name} ({mean - 1:+.2%}{_failures(found.own_failures - found.full_failures)})"
        sure = low > 1 or high < 1 or len(found.pairs) == 1
        (matters if mean > 1 + _NOTABLE and sure else better if mean < 1 - _NOTABLE and sure else little).append(said)
    if not (matters or little or better):
        return ""
    tasks = sum(row["part"] == SEARCH and (row["system"], row["variant"]) == (system, FULL) for row in rows)
    sentences = [f"**`{system}`**, {tasks} tasks; change of the step without the part, geometric mean."]
    sentences += [f"What matters: {', '.join(matters)}."] if matters else []
    sentences += [f"What matters by less than {_NOTABLE:.1%}, or not for sure: {', '.join(little)}."] if little else []
    sentences += [f"Better without: {', '.join(better)}."] if better else []
    return " ".join(sentences)


def cache(rows: Sequence[Row]) -> str:
    """What the cache is here, and what it saves; empty without rows."""
    found = beside(rows, NEUROSHARD, "no cache", FULL)
    if not found.pairs:
        return ""
    return (
        "**The cache.** The paper's search keeps predictions for sets of tables, since its greedy asks a network at every step. The search "
        "here has no such cache to switch off: it encodes every width of every table once, keeps the sums of encodings of the devices, and "
        "passes over bounds of the grid that cannot change a placement. *No cache* does without the first and the last of these, which "
        f"changes times only: the same plan for {found.same_plans} of {len(found.pairs)} tasks, in "
        f"{np.median(found.ratios('search_s')):.0f} times the time (median). Predicting anew for every device that the greedy considers, "
        "as the paper's search without a cache would, takes longer still."
    )


def heads(rows: Sequence[Row]) -> str:
    """Convex against mlp; what is said depends on what is there."""
    if not any(row["part"] in (SAMPLES, TRAINED, MEASURED) for row in rows):
        return ""
    sentences = [_HEADS]
    collected = max((int(row["sets"] or 0) for row in rows if row["part"] == SAMPLES), default=0)
    if collected:
        sentences.append(f"{collected:,} sets of tables were measured for this.")
    errors = {
        head: [float(row["mean_error"] or 0.0) for row in rows if (row["part"], row["head"]) == (TRAINED, head)]
        for head in ("convex", "mlp")
    }
    if all(errors.values()):
        convex, mlp = (float(np.mean(found)) for found in errors.values())
        sets = max(int(row["sets"] or 0) for row in rows if row["part"] == TRAINED)
        sentences.append(
            f"Held-out error: {convex:.1%} convex, {mlp:.1%} mlp (means over seeds, {sets} held-out sets)."
        )
    for strategy, pairs in head_pairs(rows).items():
        mean, low, high = geometric(pairs.ratios("measured_ms"))
        told = "tells them apart" if low > 1 or high < 1 else "does not tell them apart"
        sentences.append(
            f"`{strategy}`'s plans under mlp take {mean:.3f} of the measured time of those under convex ({low:.3f} to {high:.3f}, "
            f"{len(pairs.pairs)} pairs, of which {pairs.same_plans} are the same plan), which {told}."
        )
    failed = sum(row["part"] == MEASURED and row["measured_ms"] is None for row in rows)
    sentences += [f"{failed} plans were not found or not measured."] if failed else []
    return " ".join(sentences)


def _failures(more: int) -> str:
    return f", {more} tasks more not placed" if more > 0 else f", {-more} tasks more placed" if more < 0 else ""
