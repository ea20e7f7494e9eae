"""Command-line options for the strategies that a program about learned placement runs."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from pathlib import Path

from experiments.entrants import Entrant, Limits
from experiments.learned.tasks import NAMES, UPDATES, learned_entrant


def add_options(parser: ArgumentParser, names: tuple[str, ...] = NAMES) -> None:
    """Add the options to a parser."""
    parser.add_argument("--strategies", nargs="+", default=list(names), choices=names)
    parser.add_argument(
        "--dreamshard", type=Path, metavar="POLICY", help="policy of both dreamshards; by default the bundled one"
    )
    parser.add_argument(
        "--autoshard", type=Path, metavar="POLICY", help="policy of autoshard; by default the bundled one"
    )
    parser.add_argument(
        "--time-limit", type=float, default=5.0, help="seconds a search of certified, neuroshard and dreamshard+"
    )
    parser.add_argument("--tolerance", type=float, default=0.002, help="gap at which certified stops")
    parser.add_argument("--rnn-updates", type=int, default=UPDATES, help="updates of rnn, on every task anew")


def entrants(options: Namespace) -> list[Entrant]:
    """Return the chosen strategies."""
    limits = Limits(seconds=options.time_limit, tolerance=options.tolerance)
    policies = {
        "autoshard": options.autoshard,
        "dreamshard": options.dreamshard,
        "dreamshard+": options.dreamshard,
    }
    return [
        learned_entrant(name, limits, rnn_updates=options.rnn_updates, policy=policies.get(name))
        for name in options.strategies
    ]
