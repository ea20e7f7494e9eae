"""The strategies that the figures about learned placement compare, and what their results depend on."""

from __future__ import annotations

import hashlib
from argparse import ArgumentParser, Namespace
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from shardwright.cost.files import bundled_models
from shardwright.search.autoshard.strategy import AutoShard
from shardwright.search.certified import Certified
from shardwright.search.dreamshard.strategy import DreamShard, DreamShardPlus
from shardwright.search.heuristics import HEURISTICS
from shardwright.search.learned.policy_files import bundled_policy
from shardwright.search.neuroshard import NeuroShard
from shardwright.search.registry import strategy_named
from shardwright.search.rnn import Rnn, RnnOptions
from shardwright.search.strategy import Strategy

SORTED = tuple(strategy.name for strategy in HEURISTICS)
LEARNED = ("autoshard", "dreamshard", "dreamshard+")
NAMES = ("random", *SORTED, "greedy", "rnn", *LEARNED, "neuroshard", "certified")
COLOURS = {
    "random": "#bbbbbb", "size": "#999999", "dim": "#999999", "lookup": "#999999", "size_lookup": "#777777", "greedy": "#4062bb",
    "rnn": "#b58900", "autoshard": "#7b3f98", "dreamshard": "#d81b60", "dreamshard+": "#2aa198", "neuroshard": "#c1440e",
    "certified": "#0b6e4f",
}  # fmt: skip


@dataclass(frozen=True)
class Entrant:
    """A strategy in a comparison.

    Attributes:
        strategy: the strategy.
        made_with: options and policy, as far as its plans depend on them.
        time_limit: seconds a search; None for no limit.
    """

    strategy: Strategy
    made_with: str
    time_limit: float | None = None

    @property
    def name(self) -> str:
        """The strategy's name."""
        return self.strategy.name

    @property
    def version(self) -> str:
        """Changes with whatever its results depend on besides the task."""
        return ", ".join(part for part in (self.made_with, model_version()) if part)


def add_options(parser: ArgumentParser, names: tuple[str, ...] = NAMES) -> None:
    """Options that say which strategies run, and how."""
    parser.add_argument("--strategies", nargs="+", default=list(names), choices=names)
    parser.add_argument(
        "--dreamshard", type=Path, metavar="POLICY", help="policy of both dreamshards; by default the bundled one"
    )
    parser.add_argument("--autoshard", type=Path, metavar="POLICY", help="likewise")
    parser.add_argument(
        "--time-limit", type=float, default=5.0, help="seconds a search of certified, neuroshard and dreamshard+"
    )
    parser.add_argument("--tolerance", type=float, default=0.002, help="gap at which certified stops")
    parser.add_argument(
        "--rnn-updates", type=int, default=RnnOptions().updates, help="updates of rnn, on every task anew"
    )


def entrants(options: Namespace) -> list[Entrant]:
    """The chosen strategies."""
    return [entrant(name, options) for name in options.strategies]


def entrant(name: str, options: Namespace) -> Entrant:
    """A strategy by name, as the options say."""
    limit, dreamshard, autoshard = options.time_limit, options.dreamshard, options.autoshard
    made: dict[str, Callable[[], Entrant]] = {
        "certified": lambda: Entrant(
            Certified(tolerance=options.tolerance), f"tolerance {options.tolerance:g}, {limit:g} s", limit
        ),
        "neuroshard": lambda: Entrant(NeuroShard(), f"{limit:g} s", limit),
        "rnn": lambda: Entrant(Rnn(RnnOptions(updates=options.rnn_updates)), f"{options.rnn_updates} updates"),
        "autoshard": lambda: Entrant(AutoShard(policy=autoshard), digest(autoshard, "autoshard")),
        "dreamshard": lambda: Entrant(DreamShard(policy=dreamshard), digest(dreamshard, "dreamshard")),
        "dreamshard+": lambda: Entrant(
            DreamShardPlus(policy=dreamshard, tolerance=options.tolerance),
            f"{digest(dreamshard, 'dreamshard')}, tolerance {options.tolerance:g}, {limit:g} s",
            limit,
        ),
    }
    return made[name]() if name in made else Entrant(strategy_named(name), "")


def digest(path: Path | None, strategy: str) -> str:
    """As in "policy 0123abcd": what the policy file's bytes are."""
    chosen = path or bundled_policy(strategy, "cpu")
    return "no policy" if chosen is None else f"policy {_short(chosen)}"


@cache
def model_version() -> str:
    """As in "model 0123abcd": what the bundled CPU cost model's bytes are."""
    return f"model {_short(bundled_models()['cpu'])}"


def _short(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()[:8]


def with_policy(name: str, path: Path) -> Strategy:
    """A learned strategy on a policy of its own."""
    return AutoShard(policy=path) if name == "autoshard" else DreamShard(policy=path)
