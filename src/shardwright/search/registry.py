"""Strategies by name."""

from __future__ import annotations

from shardwright.errors import InvalidInput
from shardwright.search.autoshard.strategy import AutoShard
from shardwright.search.certified import Certified
from shardwright.search.dreamshard.strategy import DreamShard, DreamShardPlus
from shardwright.search.exact import Exact
from shardwright.search.greedy import FusedGreedy
from shardwright.search.heuristics import HEURISTICS, Random
from shardwright.search.neuroshard import NeuroShard
from shardwright.search.rnn.strategy import Rnn
from shardwright.search.strategy import Strategy
from shardwright.task.task import Task

AUTO = "certified"
_LEARNED: tuple[Strategy, ...] = (AutoShard(), DreamShard(), DreamShardPlus())
_BUILT_IN: tuple[Strategy, ...] = (Random(), *HEURISTICS, FusedGreedy(), NeuroShard(), *_LEARNED, Certified())
_STRATEGIES: dict[str, Strategy] = {strategy.name: strategy for strategy in _BUILT_IN}
_UNLISTED: dict[str, Strategy] = {strategy.name: strategy for strategy in (Exact(), Rnn())}
"""Known by name, but not listed: no command tries them unasked, for one is for small tasks, and one trains anew on each."""


def register(strategy: Strategy) -> Strategy:
    """Make a strategy known by its name; the name must be new.

    Raises:
        InvalidInput: another strategy has this name.
    """
    if (_STRATEGIES | _UNLISTED).get(strategy.name, strategy) != strategy:
        raise InvalidInput(f"strategy name {strategy.name!r} is taken; register yours under another name")
    _STRATEGIES[strategy.name] = strategy
    return strategy


def strategy_named(name: str) -> Strategy:
    """The strategy of this name; "auto" is the best there is.

    Raises:
        InvalidInput: no strategy has this name.
    """
    name = AUTO if name == "auto" else name
    known = _STRATEGIES | _UNLISTED
    if name not in known:
        raise InvalidInput(f"unknown strategy {name!r}; known strategies are auto, {', '.join(known)}")
    return known[name]


def strategy_names(task: Task | None = None) -> tuple[str, ...]:
    """Names of all strategies for tasks of any size, in order of registration; with a task, of those that can plan it."""
    return tuple(name for name, strategy in _STRATEGIES.items() if task is None or strategy.supports(task) is None)
