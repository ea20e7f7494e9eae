"""What the page of `flexshard-traffic` says: sentences whose figures come from the rows."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from experiments.flexshard.found import Found, some
from experiments.flexshard.settings import EVERY, MODELS, PER_HOST, SHAPES

CLAIMED_SAVED, CLAIMED_FASTER = 0.85, 6.0
_MEMORY = 1.25

_INTRODUCTION = (
    "The rows of a sequence table are not pooled, so each one that is looked up travels. `flexshard` keeps the hottest rows on every "
    "device and the next on every host, and deals out the rest; the boundaries of all tables are chosen together, within the memory of "
    "every device. Bytes and times are **predicted** here: bytes counted for each link by expectation, latency and bandwidth as "
    "stated. The same counts are held against the kernel's counters and the clock on two hosts with a slow link between them in "
    "[flexshard_measured](flexshard_measured.md), which needs root and is a benchmark of its own."
)
_DIFFERENCES = (
    "What differs from the paper: no code of it is public and its models are not known. The tables here are synthetic, with accesses by "
    "Zipf's law, and the formulation is ours. For the state of the art before it stands `recshard`: rows on every device or on one, "
    "without regard to hosts, with boundaries chosen by the same search. Pooled tables, kernels and everything else in a step are left out."
)


def paragraphs(found: Found) -> Sequence[str]:
    """The text of the page."""
    return [part for part in (_INTRODUCTION, verdict(found), main_finding(found), _DIFFERENCES) if part]


def verdict(found: Found) -> str:
    """Whether the paper's figures are reached, by accesses; empty without rows."""
    sentences = []
    for accesses in SHAPES:
        row_wise = _medians(found, accesses, EVERY)
        recshard = _medians(found, accesses, EVERY, other="recshard")
        if row_wise is None:
            continue
        sentences.append(
            f"At {accesses} and {_MEMORY}× memory, `flexshard` takes {row_wise[0]:.1%} of `row_wise`'s traffic off the links "
            f"between hosts ({_reached(row_wise[0], CLAIMED_SAVED)} the paper's {CLAIMED_SAVED:.0%}) and makes communication "
            f"{row_wise[1]:.1f} times as fast ({_reached(row_wise[1], CLAIMED_FASTER)} its {CLAIMED_FASTER:g})"
            + (f"; against `recshard` it is {recshard[0]:.1%} and {recshard[1]:.2f} times." if recshard else ".")
        )
    counts = [row["tables"] for row in found.of(part=MODELS, strategy="flexshard", exchange=EVERY, memory=_MEMORY)]
    sizes = f" Medians over {len(counts)} models of {min(counts)} to {max(counts)} tables." if sentences else ""  # type: ignore[type-var]
    return " ".join(sentences) + sizes


def main_finding(found: Found) -> str:
    """What de-duplication by host leaves for replicas to gain; empty without rows."""
    sentences = []
    for accesses in SHAPES:
        plain = _medians(found, accesses, PER_HOST, strategy="row_wise", memory=1.0)
        tiers = _medians(found, accesses, PER_HOST)
        added = _medians(found, accesses, PER_HOST, other="row_wise")
        if plain is None or tiers is None or added is None:
            continue
        sentences.append(
            f"at {accesses} `row_wise` then sends {plain[0]:.1%} less in 1× the memory and is {plain[1]:.1f} times as fast as when "
            f"every lookup travels; `flexshard` with {_MEMORY}× sends {tiers[0]:.1%} less and is {tiers[1]:.1f} times as fast, "
            f"{added[1] - 1:+.2%} on top"
        )
    if not sentences:
        return ""
    return (
        "**The main finding: where rows are de-duplicated by host, replicas are worth next to nothing.** "
        "A host that reads a row must get its value and send its gradient once a step, whether it keeps a replica or not. "
        + _capitalised("; ".join(sentences))
        + ". Tiers pay where "
        "rows are not de-duplicated, as in TorchRec's exchange."
    )


def _capitalised(text: str) -> str:
    return text[:1].upper() + text[1:]


def _reached(value: float, claimed: float) -> str:
    return "more than" if value > claimed else "less than"


def _medians(
    found: Found,
    accesses: str,
    exchange: str,
    *,
    strategy: str = "flexshard",
    memory: float = _MEMORY,
    other: str | None = None,
) -> tuple[float, float] | None:
    """Medians over the models: bytes saved and speed, against `row_wise` with every lookup sent, or another with the same exchange."""
    rows = found.of(part=MODELS, accesses=accesses, exchange=exchange, memory=memory, strategy=strategy)
    others = (exchange, 1.0 if other == "row_wise" else memory, other) if other else (EVERY, 1.0, "row_wise")
    compared = some(found.against(row, *others) for row in rows)
    if not compared:
        return None
    return float(np.median([one.saved for one in compared])), float(np.median([one.faster for one in compared]))
