"""Strategies by name."""

from __future__ import annotations

from shardwright.errors import InvalidInput
from shardwright.search.certified import Certified
from shardwright.search.exact import Exact
from shardwright.search.greedy import FusedGreedy
from shardwright.search.heuristics import HEURISTICS, Random
from shardwright.search.neuroshard import NeuroShard
from shardwright.search.strategy import Strategy

AUTO = "certified"
_BUILT_IN: tuple[Strategy, ...] = (Random(), *HEURISTICS, FusedGreedy(), NeuroShard(), Certified())
_STRATEGIES: dict[str, Strategy] = {strategy.name: strategy for strategy in _BUILT_IN}
_REFEREES: dict[str, Strategy] = {"exact": Exact()}
"""Known by name, but not listed: they are for small tasks, and no command tries them unasked."""


def register(strategy: Strategy) -> Strategy:
    """Make a strategy known by its name; the name must be new.

    Raises:
        InvalidInput: another strategy has this name.
    """
    if (_STRATEGIES | _REFEREES).get(strategy.name, strategy) != strategy:
        raise InvalidInput(f"strategy name {strategy.name!r} is taken; register yours under another name")
    _STRATEGIES[strategy.name] = strategy
    return strategy


def strategy_named(name: str) -> Strategy:
    """The strategy of this name; "auto" is the best there is.

    Raises:
        InvalidInput: no strategy has this name.
    """
    name = AUTO if name == "auto" else name
    known = _STRATEGIES | _REFEREES
    if name not in known:
        raise InvalidInput(f"unknown strategy {name!r}; known strategies are auto, {', '.join(known)}")
    return known[name]


def strategy_names() -> tuple[str, ...]:
    """Names of all strategies for tasks of any size, in order of registration."""
    return tuple(_STRATEGIES)
