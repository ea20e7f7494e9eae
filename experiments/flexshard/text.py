"""What the page of `flexshard-traffic` says: sentences whose figures come from the rows."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from experiments.flexshard.found import Found, gained, some
from experiments.flexshard.settings import EVERY, MODELS, PER_HOST, SHAPES, SWEEP

CLAIMED_SAVED, CLAIMED_FASTER = 0.85, 6.0
_MEMORY = 1.25

_INTRODUCTION = (
    "The rows of a sequence table are not pooled, so each one that is looked up travels. `flexshard` keeps the hottest rows on every "
    "device and the next on every host, and deals out the rest; the boundaries of all tables are chosen together, within the memory of "
    "every device. Bytes and times are **predicted** here: bytes counted for each link by expectation, latency and bandwidth as "
    "stated. The same counts are held against the kernel's counters and the clock on two hosts and on four with slow links in "
    "[flexshard_measured](flexshard_measured.md) and [flexshard_measured_4x2](flexshard_measured_4x2.md)."
)
_DIFFERENCES = (
    "What differs from the paper: no code of it is public and its models are not known. The tables here are synthetic, with accesses by "
    "Zipf's law, and the formulation is ours. For the state of the art before it stands `recshard`: rows on every device or on one, "
    "without regard to hosts, with boundaries chosen by the same search. Pooled tables, kernels and everything else in a step are left out."
)


def paragraphs(found: Found) -> Sequence[str]:
    """The text of the page."""
    parts = (claim(found), _INTRODUCTION, verdict(found), main_finding(found), where_tiers_pay(found), _DIFFERENCES)
    return [part for part in parts if part]


def claim(found: Found) -> str:
    """The first sentence: what the paper's claim becomes at equal memory, and what reaches it; empty without rows."""
    by_tiers, by_hosts = [], []
    for accesses in SHAPES:
        tiers, hosts = (
            _medians(found, accesses, EVERY, other="recshard"),
            _medians(found, accesses, PER_HOST, strategy="row_wise", memory=1.0),
        )
        if tiers is not None and hosts is not None:
            by_tiers.append(f"{tiers[0]:.0%}")
            by_hosts.append(f"{hosts[0]:.0%}")
    if not by_tiers:
        return ""
    return (
        f"**The paper's {CLAIMED_SAVED:.0%} less traffic in no more memory is not shown by tiers: at equal memory `flexshard` sends "
        f"{' and '.join(by_tiers)} less than `recshard` ({' and '.join(SHAPES)}). De-duplication by host reaches it without tiers: "
        f"`row_wise` then sends {' and '.join(by_hosts)} less than when every lookup travels, in the same memory.** Predicted."
    )


def where_tiers_pay(found: Found) -> str:
    """What the sweep shows; empty without its rows."""
    own = found.of(part=SWEEP, strategy="flexshard")
    said = []
    for exchange, rival in ((PER_HOST, "row_wise"), (EVERY, "recshard")):
        gains = {
            (int(row["gbits"] or 0), str(row["accesses"]), int(row["batch"] or 0)): gain
            for row in own
            if row["exchange"] == exchange and (gain := gained(found, row, rival)) is not None
        }
        if gains:
            most, least = max(gains, key=gains.__getitem__), min(gains, key=gains.__getitem__)
            said.append(
                f"With {exchange.partition(',')[0] if exchange == EVERY else 'rows de-duplicated by host'}, against `{rival}`: "
                f"{gains[least] - 1:+.1%} in speed ({_case(least)}) to {gains[most] - 1:+.1%} ({_case(most)})"
            )
    if not said:
        return ""
    return (
        "**Where tiers still pay**, by the sweep of links, accesses and batch (second picture): slow links hardly matter, many lookups of "
        f"a row do, and only where every lookup travels. {'. '.join(said)}."
    )


def _case(key: tuple[int, str, int]) -> str:
    gbits, accesses, batch = key
    return f"{gbits} Gbit/s, {accesses}, {batch:,} samples"


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
