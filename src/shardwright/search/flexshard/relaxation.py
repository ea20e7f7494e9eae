r"""All tables together: which mixture of tiers costs least, and a bound on every plan's communication.

With x the rows of each segment held in each way, T_f ≥ wait_l + ms_l(x) for both link classes l, T_b likewise, bytes(x) ≤ the
memory of all devices: minimise T_f + T_b, a linear programme. Its Lagrangian at prices λ of the link classes (which sum to 1 in
each pass) and μ of a byte falls apart into segments:

    L(λ, μ) = Σ_l λ_l wait_l - μ memory + Σ over segments of min over ways of (λ · ms + μ bytes)

L is a bound for any prices. The best ones are the dual solution of the programme over mixtures of the answers so far; the
segments' cheapest ways at those prices are the next answer. It ends where both meet. A mixture is no compromise: rows of a segment
are alike, so the segment is cut.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from shardwright.cost.flows import Floats
from shardwright.search.flexshard.rates import Ints, Rates

_ROUNDS = 60
_EXACT = 1e-4  # of the optimum
_FIRST_PRICES = 2.0 ** np.arange(
    -8, 9, 4
)  # of a byte, in communication of the cold plan per byte of memory that is free beside it


@dataclass(frozen=True, eq=False)
class Limits:
    """What bounds the mixture.

    Attributes:
        memory: bytes of all devices together.
        each: bytes that every single device can take of what lies on all of them; None where the total says enough.
        waits: `(4,)` ms that each link class takes besides: latency, and the traffic of other tables.
    """

    memory: float
    each: float | None
    waits: Floats


@dataclass(frozen=True, eq=False)
class Mixture:
    """The best mixture.

    Attributes:
        ms: what it takes, forward and backward.
        bound_ms: what every mixture takes at least.
        rows: `(w, n)` rows of each segment in each way.
    """

    ms: float
    bound_ms: float
    rows: Floats


@dataclass(frozen=True, eq=False)
class _Answer:
    """Ways of all segments: `(n,)` chosen; `(6,)` ms on the links, memory in all and on every device."""

    chosen: Ints
    sums: Floats


class Relaxation:
    """The programme of some tables; answers found under some limits serve under others too."""

    def __init__(self, rates: Rates, known: Relaxation | None = None) -> None:
        """Of some rates; answers of `known`, whose ways are these and some more, are taken over where they can be."""
        self.rates = rates
        memory = np.stack([rates.bytes, rates.each], axis=2)
        self._terms = np.concatenate([rates.ms, memory], axis=2)
        answers: list[_Answer] = known._answers if known else []
        self._answers: list[_Answer] = [
            self._of(answer.chosen) for answer in answers if answer.chosen.max() < len(rates.ways)
        ]

    def solve(self, limits: Limits) -> Mixture | None:
        """The best mixture under the limits; None where even the way of fewest bytes breaks them."""
        if not self._answers:
            self._first()
        if self._answers[0].sums[4] > limits.memory:
            return None
        self._scan(limits)
        bound, ms = -np.inf, np.inf
        for _ in range(_ROUNDS):
            ms, weights, prices = _programme([answer.sums for answer in self._answers], limits)
            answer = self._cheapest(prices)
            bound = max(bound, float(answer.sums @ prices + prices[:4] @ limits.waits - _paid(prices, limits)))
            if ms - bound <= _EXACT * max(ms, 0.0):
                break
            self._answers.append(answer)
        rows = np.zeros_like(self.rates.bytes)
        every = np.arange(self.rates.rows.size)
        for weight, answer in zip(weights, self._answers, strict=False):
            if weight > 0:
                rows[answer.chosen, every] += weight * self.rates.rows
        return Mixture(ms, min(bound, ms), rows)

    def _first(self) -> None:
        """The way of fewest bytes for all rows."""
        least = int(np.argmin(self.rates.bytes.sum(axis=1)))
        self._answers.append(self._of(np.full(self.rates.rows.size, least)))

    def _scan(self, limits: Limits) -> None:
        """Answers at a few prices of a byte, between which the best one lies."""
        cold = self._answers[0].sums
        times = (cold[:4] + limits.waits).reshape(2, 2)
        slowest, free = times.max(axis=1, keepdims=True), limits.memory - float(cold[4])
        if len(self._answers) > 1 or free <= 0:
            return
        links = (times == slowest) / (times == slowest).sum(axis=1, keepdims=True)
        for factor in _FIRST_PRICES:
            price = factor * float(slowest.sum()) / free
            self._answers.append(self._cheapest(np.concatenate([links.ravel(), [price, 0.0]])))

    def _cheapest(self, prices: Floats) -> _Answer:
        return self._of((self._terms @ prices).argmin(axis=0))

    def _of(self, chosen: Ints) -> _Answer:
        sums: Floats = self._terms[chosen, np.arange(chosen.size)].sum(axis=0)
        return _Answer(chosen, sums)


def _paid(prices: Floats, limits: Limits) -> float:
    each = 0.0 if limits.each is None else limits.each
    return float(prices[4]) * limits.memory + float(prices[5]) * each


def _programme(sums: list[Floats], limits: Limits) -> tuple[float, Floats, Floats]:
    """The best mixture of some answers: its ms, `(answers,)` weights, and `(6,)` prices of link classes and bytes."""
    from scipy.optimize import linprog

    columns = np.array(sums).T
    unit = float(columns[:4, 0].max() + limits.waits.max()) or 1.0  # the solver's tolerances are absolute
    scale = np.array([limits.memory or 1.0, limits.each or 1.0])
    times = np.zeros((4, 2))
    times[[0, 1, 2, 3], [0, 0, 1, 1]] = -1.0
    memory = np.hstack([columns[4:] / scale[:, None], np.zeros((2, 2))])
    limit = np.array([1.0, 1.0 if limits.each is not None else np.inf])
    kept = np.isfinite(limit)
    found = linprog(
        np.concatenate([np.zeros(len(sums)), [1.0, 1.0]]),
        A_ub=np.vstack([np.hstack([columns[:4] / unit, times]), memory[kept]]),
        b_ub=np.concatenate([-limits.waits / unit, limit[kept]]),
        A_eq=np.concatenate([np.ones(len(sums)), [0.0, 0.0]])[None],
        b_eq=[1.0],
        bounds=[(0, None)] * len(sums) + [(None, None)] * 2,
        method="highs",
    )
    if found.x is None or found.fun is None:
        return np.inf, np.zeros(len(sums)), np.concatenate([np.full(4, 0.5), 1.0 / scale])
    marginals = np.maximum(-found.ineqlin.marginals, 0.0)
    prices = np.zeros(6)
    prices[:4] = marginals[:4] / np.repeat(np.maximum(marginals[:4].reshape(2, 2).sum(axis=1), 1e-300), 2)
    prices[4:][kept] = marginals[4:] * unit / scale[kept]
    return float(found.fun) * unit, found.x[:-2], prices
